"""Slots in llama.cpp's cells: what a row sees is what the scheduler's slots say, whatever happens."""

from functools import partial

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import IntArray, StepItem, StepPlan
from cloud_verifier.engine.packing import StepLimits, item_of, pack
from cloud_verifier.llama import sequences
from cloud_verifier.llama.forward import LlamaForward
from cloud_verifier.llama.sequences import RESERVED
from cloud_verifier.llama.shapes import PROMPT_LEAST, PROMPT_UNIT, DecodeShapes, prompt_cuts
from common.errors import CapacityError, LocalError
from tests.cloud_verifier.llama.cells import Cells, CellTarget
from tests.worlds.seeds import check_seed

LIMITS = StepLimits(100, 40, 40)


def ints(*numbers: int) -> IntArray:
    return np.array(numbers, np.int32)


NOTHING = ints()


def forward(
    n_seq_max: int = 256,
    n_together: int = 512,
    max_rows: int = 256,
    shapes: DecodeShapes | None = None,
    num_cells: int = 2 * LIMITS.num_slots,
) -> tuple[LlamaForward, Cells]:
    cells = Cells(num_cells, LIMITS.max_positions, n_seq_max, n_together, max_rows)
    return LlamaForward(cells, LIMITS.num_slots, LIMITS.max_positions, shapes), cells


def seen(engine: LlamaForward, *items: StepItem) -> list[list[int]]:
    rows = engine.run(pack(StepPlan(items), LIMITS))
    return [row[row >= 0].astype(int).tolist() for row in rows]


def chunk(session: int, slots: IntArray, tokens: IntArray, prefix: IntArray = NOTHING) -> StepItem:
    last = len(slots) - 1
    return item_of(range(-1, last), slots, prefix, tokens=tokens, outputs=[last], session=session)


@pytest.mark.slow
def test_the_laws_hold_with_slots_in_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds of `tests.worlds`: preemption, shared prefixes, lost streams, trees of all drafters. Dead
    cells go at once, so that living ones are moved."""
    monkeypatch.setattr(sequences, "FEW_DEAD", 0)
    monkeypatch.setattr(CellTarget, "num_moved", 0)
    target = partial(CellTarget, num_sequences=16 + RESERVED)
    monkeypatch.setattr("tests.worlds.world.TinyTarget", target)
    found = [wrong for seed in range(50) if (wrong := check_seed(seed)) is not None]
    assert not found
    assert CellTarget.num_moved > 0


def test_a_session_that_lost_its_sequence_is_evaluated_again() -> None:
    engine, cells = forward(n_seq_max=2 + RESERVED)
    seen(engine, chunk(1, ints(0, 1), ints(5, 6)), chunk(2, ints(2, 3), ints(7, 8)))
    seen(engine, chunk(3, ints(4), ints(9)))  # takes the first session's sequence
    assert engine.num_again == 0
    assert seen(engine, chunk(1, ints(5), ints(4), ints(0, 1))) == [[5, 6, 4]]
    assert engine.num_again == 2
    engine.sequences.compact()
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
    engine.sequences.compact()
    assert (engine.num_again, len(cells.cells)) == (0, 6)


def test_moved_cells_outside_a_sliding_window_are_still_there() -> None:
    """A later text may begin in the middle of a longer one, whose last row did not see its first cells."""
    engine, cells = forward()
    cells.window = 4
    text = ints(*range(1, 10))
    seen(engine, chunk(1, ints(0), ints(5)))
    seen(engine, chunk(2, text, text))
    seen(engine, chunk(1, ints(10), ints(4)))  # the cell below the long text is dead
    engine.sequences.compact()
    assert engine.sequences.num_moved
    assert seen(engine, chunk(3, ints(11), ints(6), text[:3])) == [[1, 2, 3, 6]]


def test_slots_of_equal_tokens_may_take_each_others_place() -> None:
    """The prefix cache gives a session the slots of another one that has read the same prompt."""
    engine, _ = forward()
    seen(engine, chunk(1, ints(0, 1, 2), ints(5, 6, 7)), chunk(2, ints(3, 4, 5), ints(5, 6, 8)))
    assert seen(engine, chunk(3, ints(3, 4), ints(1, 2)), chunk(2, ints(6), ints(9), ints(0, 1, 5))) == [
        [1, 2],
        [5, 6, 8, 9],
    ]
    assert engine.num_again == 0


def test_a_step_larger_than_a_batch_is_several() -> None:
    engine, cells = forward(n_together=4, max_rows=4)
    items = [chunk(session, ints(3 * session, 3 * session + 1), ints(session, 50)) for session in range(5)]
    assert seen(engine, *items) == [[session, 50] for session in range(5)]
    assert cells.num_decodes == 3
    assert max(map(len, cells.decoded)) == 4


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
    cells.n_ctx = 1
    with pytest.raises(CapacityError):
        seen(engine, chunk(1, ints(0, 1), ints(5, 6)))


def test_a_tree_with_more_leaves_than_sequences_is_refused() -> None:
    engine, _ = forward(n_seq_max=2 + RESERVED)
    with pytest.raises(LocalError):
        seen(engine, item_of((-1, -1, -1), ints(0, 1, 2), tokens=ints(5, 6, 7), outputs=[0], session=1))


def test_cells_stay_in_order_when_two_sessions_take_turns_and_branches_die() -> None:
    """`Cells` holds each row to the order of what it sees."""
    engine, cells = forward(num_cells=LIMITS.num_slots + 4)
    free, texts = list(range(40)), {1: ([5], [0]), 2: ([6], [1])}
    del free[:2]
    seen(engine, chunk(1, ints(0), ints(5)), chunk(2, ints(1), ints(6)))
    for turn in range(12):
        items = list[StepItem]()
        for session, (_, slots) in texts.items():
            own, free = free[:4], free[4:]
            tree = item_of(
                (-1, 0, 0, 2),
                ints(*own),
                slots,
                tokens=ints(turn, 1, 2, 3),
                outputs=range(4),
                session=session,
            )
            items.append(tree)
        rows = seen(engine, *items)
        for place, (item, (tokens, slots)) in enumerate(zip(items, texts.values(), strict=True)):
            assert rows[4 * place + 3] == [*tokens, turn, 2, 3]
            kept = (0, 2) if turn % 2 else (0,)
            tokens += [item.tokens[row] for row in kept]
            slots += [int(item.slots[row]) for row in kept]
            free = [int(slot) for row, slot in enumerate(item.slots) if row not in kept] + free
        if len(texts[1][1]) > 14:
            free += texts[1][1][1:]
            texts[1] = texts[1][0][:1], texts[1][1][:1]
    assert engine.sequences.num_moved
    assert engine.num_again == 0
    assert len(cells.cells) <= cells.n_ctx


def test_prefixes_that_were_joined_out_of_order_are_laid_again() -> None:
    engine, _ = forward()
    seen(engine, chunk(1, ints(0, 1, 2), ints(5, 6, 7)), chunk(2, ints(3, 4), ints(5, 6)))
    # The cache keeps the second session's slots of the common tokens.
    assert seen(engine, chunk(1, ints(5), ints(9), ints(3, 4, 2))) == [[5, 6, 7, 9]]
    assert engine.sequences.num_moved
    assert engine.num_again == 0


def test_written_tokens_and_prompts_are_decoded_apart() -> None:
    engine, cells = forward(shapes=DecodeShapes(text_rows=3))
    prompt = item_of(range(-1, 9), ints(*range(10)), tokens=ints(*range(10)), session=1, prompt_length=10)
    text = item_of((-1, 0, 1, 2), ints(20, 21, 22, 23), tokens=ints(1, 2, 3, 4), outputs=[3], session=2)
    assert seen(engine, prompt, text) == [[1, 2, 3, 4]]
    first, *others = cells.decoded
    assert first == [*range(10), 0, 1]  # filled up
    assert [len(rows) for rows in others] == [3, 1]
    mixed = item_of(
        (-1, 0), ints(10, 11), ints(*range(10)), tokens=ints(7, 8), outputs=[1], session=1, prompt_length=11
    )
    cells.decoded.clear()
    assert seen(engine, mixed) == [[*range(10), 7, 8]]
    assert [len(rows) for rows in cells.decoded] == [8, 1]


def test_a_prompt_s_logits_are_read_from_as_many_rows_as_they_need() -> None:
    engine, cells = forward(shapes=DecodeShapes(text_rows=1, prompt_outputs=PROMPT_LEAST))
    prompts = [
        item_of(
            range(-1, 4), ints(*slots), tokens=ints(*slots), outputs=[4], session=session, prompt_length=5
        )
        for session, slots in ((1, range(5)), (2, range(5, 10)))
    ]
    assert seen(engine, *prompts) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert cells.num_outputs == [PROMPT_LEAST]
    cells.num_outputs.clear()
    assert seen(engine, chunk(1, ints(10), ints(4), ints(*range(5)))) == [[0, 1, 2, 3, 4, 4]]
    assert cells.num_outputs == [1]


def test_a_decode_may_be_filled_up() -> None:
    engine, cells = forward(shapes=DecodeShapes(((1, 52.0), (3, 152.0), (4, 90.0)), text_rows=4))
    text = item_of((-1, 0, 1), ints(20, 21, 22), tokens=ints(1, 2, 3), outputs=range(3), session=2)
    assert seen(engine, text) == [[1], [1, 2], [1, 2, 3]]
    assert cells.decoded == [[0, 1, 2, 0]]
    assert seen(engine, chunk(2, ints(23), ints(4), ints(20, 21, 22))) == [[1, 2, 3, 4]]


@pytest.mark.parametrize("num_rows", range(1, 40))
def test_all_rows_of_a_step_have_a_decode(num_rows: int) -> None:
    shapes = DecodeShapes(((1, 20.0), (2, 72.0), (3, 60.0), (4, 60.0), (8, 90.0)), text_rows=num_rows % 4)
    sizes = shapes.cut(num_rows, 16)
    assert sum(sizes[:-1]) < num_rows <= sum(sizes)
    assert max(sizes) <= (num_rows % 4 or 16)


@pytest.mark.parametrize("num_rows", [1, 3, 8, 9, 511, 512, 513, 519, 1024, 1027])
def test_every_decode_of_a_prompt_is_of_one_kind(num_rows: int) -> None:
    sizes = prompt_cuts(num_rows, 512)
    assert all(PROMPT_LEAST <= size <= 512 and size % PROMPT_UNIT == 0 for size in sizes)
    assert num_rows <= sum(sizes) < num_rows + PROMPT_LEAST + PROMPT_UNIT


def test_a_step_is_cut_where_that_takes_least_time() -> None:
    dear_pairs = DecodeShapes(((1, 20.0), (2, 72.0), (3, 91.0), (4, 60.0), (5, 99.0), (8, 131.0)))
    assert dear_pairs.cut(2, 256) == [1, 1]
    assert sorted(dear_pairs.cut(5, 256)) == [1, 4]
    assert dear_pairs.cut(4, 3) == [1, 1, 1, 1]
    assert dear_pairs.step_seconds(5, 256) == pytest.approx(80.0)
    cheap_fours = DecodeShapes(((1, 52.0), (2, 100.0), (3, 152.0), (4, 120.0), (5, 179.0)))
    assert cheap_fours.cut(3, 256) == [4]
    assert cheap_fours.cut(7, 256) == [4, 4]
    assert sorted(cheap_fours.cut(3, 3)) == [1, 2]
    assert DecodeShapes().cut(5, 256) == [5]
    assert DecodeShapes(text_rows=2).cut(5, 256) == [2, 2, 1]
