"""Slots in llama.cpp's cells: what a row sees is what the scheduler's slots say, whatever happens."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from cloud_verifier.core.nouns import IntArray, StepItem, StepPlan
from cloud_verifier.engine.packing import StepLimits, item_of, pack
from cloud_verifier.llama.forward import LlamaForward
from common.errors import CapacityError, LocalError
from tests.cloud_verifier.llama.cells import Cells, CellTarget
from tests.worlds.seeds import check_seed

LIMITS = StepLimits(100, 40, 40)


def ints(*numbers: int) -> IntArray:
    return np.array(numbers, np.int32)


NOTHING = ints()


def forward(n_seq_max: int = 256, n_batch: int = 512, max_rows: int = 256) -> tuple[LlamaForward, Cells]:
    cells = Cells(LIMITS.num_slots, LIMITS.max_positions, n_seq_max, n_batch, max_rows)
    return LlamaForward(cells, LIMITS.num_slots, LIMITS.max_positions), cells


def seen(engine: LlamaForward, *items: StepItem) -> list[list[int]]:
    rows = engine.run(pack(StepPlan(items), LIMITS))
    return [row[row >= 0].astype(int).tolist() for row in rows]


def chunk(session: int, slots: IntArray, tokens: IntArray, prefix: IntArray = NOTHING) -> StepItem:
    last = len(slots) - 1
    return item_of(range(-1, last), slots, prefix, tokens=tokens, outputs=[last], session=session)


@pytest.mark.slow
@pytest.mark.parametrize("num_sequences", [256, 16])
@pytest.mark.parametrize("first", [0, 50])
def test_the_laws_hold_with_slots_in_cells(
    first: int, num_sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worlds of `tests.worlds`: preemption, shared prefixes, lost streams, trees of all drafters."""
    target = partial(CellTarget, num_sequences=num_sequences)
    monkeypatch.setattr("tests.worlds.world.TinyTarget", target)
    found = [wrong for seed in range(first, first + 50) if (wrong := check_seed(seed)) is not None]
    assert not found


def test_a_session_that_lost_its_sequence_is_evaluated_again() -> None:
    engine, cells = forward(n_seq_max=2)
    seen(engine, chunk(1, ints(0, 1), ints(5, 6)), chunk(2, ints(2, 3), ints(7, 8)))
    seen(engine, chunk(3, ints(4), ints(9)))  # takes the first session's sequence
    assert engine.num_again == 0
    assert seen(engine, chunk(1, ints(5), ints(4), ints(0, 1))) == [[5, 6, 4]]
    assert engine.num_again == 2
    assert len(cells.cells) <= 6


def test_a_prefix_of_several_sessions_is_shared_and_outlives_each() -> None:
    engine, cells = forward()
    seen(engine, chunk(1, ints(0, 1, 2), ints(5, 6, 7)))
    assert seen(engine, chunk(2, ints(3), ints(8), ints(0, 1)), chunk(3, ints(4), ints(9), ints(0, 1))) == [
        [5, 6, 8],
        [5, 6, 9],
    ]
    # The first session starts anew, and overwrites its own slot.
    assert seen(engine, chunk(1, ints(2), ints(4))) == [[4]]
    assert seen(engine, chunk(2, ints(5), ints(1), ints(0, 1, 3))) == [[5, 6, 8, 1]]
    assert (engine.num_again, len(cells.cells)) == (0, 6)


def test_slots_of_equal_tokens_may_take_each_others_place() -> None:
    """The prefix cache gives a session the slots of another one that has read the same prompt."""
    engine, _ = forward()
    seen(engine, chunk(1, ints(0, 1, 2), ints(5, 6, 7)), chunk(2, ints(3, 4, 5), ints(5, 6, 8)))
    assert seen(engine, chunk(3, ints(3, 4), ints(1, 2)), chunk(2, ints(6), ints(9), ints(0, 1, 5))) == [
        [1, 2],
        [5, 6, 8, 9],
    ]
    assert engine.num_again == 0


def test_a_branch_that_was_not_the_first_goes_on() -> None:
    engine, _ = forward()
    seen(engine, chunk(1, ints(0), ints(5)))
    slots, tokens = ints(1, 2, 3, 4, 5), ints(6, 7, 8, 9, 1)
    tree = item_of((-1, 0, 0, 1, 2), slots, ints(0), tokens=tokens, outputs=range(5), session=1)
    assert seen(engine, tree) == [[5, 6], [5, 6, 7], [5, 6, 8], [5, 6, 7, 9], [5, 6, 8, 1]]
    assert seen(engine, chunk(1, ints(2), ints(3), ints(0, 1, 3, 5))) == [[5, 6, 8, 1, 3]]
    assert engine.num_again == 0


def test_a_step_larger_than_a_batch_is_several() -> None:
    engine, cells = forward(n_batch=4, max_rows=2)
    items = [chunk(session, ints(3 * session, 3 * session + 1), ints(session, 50)) for session in range(5)]
    assert seen(engine, *items) == [[session, 50] for session in range(5)]
    assert cells.num_decodes == 3


def test_after_a_failure_everything_is_evaluated_again() -> None:
    engine, cells = forward()
    seen(engine, chunk(1, ints(0, 1), ints(5, 6)))
    cells.failing = 1
    with pytest.raises(LocalError):
        seen(engine, chunk(1, ints(2, 3), ints(7, 8), ints(0, 1)))
    assert seen(engine, chunk(1, ints(2, 3), ints(7, 8), ints(0, 1))) == [[5, 6, 7, 8]]
    assert engine.num_again == 2


def test_too_few_cells_are_a_lack_of_capacity() -> None:
    engine, cells = forward()
    cells.num_cells = 1
    with pytest.raises(CapacityError):
        seen(engine, chunk(1, ints(0, 1), ints(5, 6)))


def test_a_tree_with_more_leaves_than_sequences_is_refused() -> None:
    engine, _ = forward(n_seq_max=2)
    with pytest.raises(LocalError, match="leaves"):
        seen(engine, item_of((-1, -1, -1), ints(0, 1, 2), tokens=ints(5, 6, 7), outputs=[0], session=1))


def test_a_step_without_rows_gives_no_logits() -> None:
    engine, cells = forward()
    assert seen(engine) == []
    assert cells.num_decodes == 0
