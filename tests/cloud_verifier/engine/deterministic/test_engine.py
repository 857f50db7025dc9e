"""Level L2: a row's logits are a function of its path alone, bit for bit, whatever else is in the step."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.core.engine_protocol import StepItem, StepPlan
from cloud_verifier.engine.deterministic.exact_engine import ExactEngine
from cloud_verifier.engine.torch_engine import TorchEngine
from tests.cloud_verifier.engine.exact_world import Notes, Noting, alone, noted
from tests.cloud_verifier.engine.tiny import Session, Slots, target

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

SLOTS = 1024
TEXTS = np.random.default_rng(5).integers(97, size=(2, 44)).tolist()
WRONG = 96


@dataclass(frozen=True)
class Part:
    """What one session asks of the engine."""

    text: int
    length: int  # tokens evaluated before the tree; the longest paths pass a padded length
    chunk: int  # of so many at a time
    tree: list[tuple[int, bool]]  # rows as (parent, whether its token is the text's); the first is the tip


def mix(seed: int) -> list[Part]:
    """One to sixteen sessions, from a seed: drawn one by one they would take Hypothesis longer than torch."""
    random = np.random.default_rng(seed)
    return [some_part(random) for _ in range(int(random.integers(1, 17)))]


def some_part(random: np.random.Generator) -> Part:
    parents = [int(random.integers(-1, row)) if row else -1 for row in range(int(random.integers(1, 10)))]
    tree = [
        (parent if parent >= 0 or row == 0 else 0, row == 0 or bool(random.integers(3)))
        for row, parent in enumerate(parents)
    ]
    return Part(
        int(random.integers(len(TEXTS))), int(random.integers(36)), int(random.choice([5, 7, 33])), tree
    )


def evaluate(engine: TorchEngine, sessions: list[Part]) -> None:
    """Prompts in chunks of all sessions together, then a tree of each in one step, all on shuffled slots."""
    slots = Slots(SLOTS)
    held = [Session(key, slots) for key in range(len(sessions))]
    while True:
        chunks = [
            (session, TEXTS[part.text][len(session.held) : min(part.length, len(session.held) + part.chunk)])
            for session, part in zip(held, sessions, strict=True)
        ]
        items = [(session, session.chunk(part, range(len(part)))) for session, part in chunks if part]
        if not items:
            break
        engine.logits(StepPlan(tuple(item for _, item in items)))
        for session, item in items:
            session.keep(item, range(len(item.tokens)))
    trees = [tree_item(*both) for both in zip(held, sessions, strict=True)]
    engine.logits(StepPlan(tuple(trees)))


def tree_item(session: Session, part: Part) -> StepItem:
    depths = list[int]()
    for parent, _ in part.tree:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    text = TEXTS[part.text][len(session.held) :]
    tokens = [text[depth] if right else WRONG for depth, (_, right) in zip(depths, part.tree, strict=True)]
    return session.item(tokens, [parent for parent, _ in part.tree], range(len(part.tree)))


def references(engine: TorchEngine, depth: int = 44) -> None:
    """Every text decoded plainly."""
    for text in TEXTS:
        alone(engine, tuple(text[:depth]))


def test_a_row_has_the_bits_of_plain_decoding_in_any_step() -> None:
    engine = noted(target("llama"), SLOTS)
    references(engine)

    @settings(max_examples=12)
    @given(st.integers(0, 2**32 - 1))
    def in_any_step(seed: int) -> None:
        evaluate(engine, mix(seed))
        assert not engine.notes.unlike

    in_any_step()
    assert engine.notes.num_again > 300


def evaluate_some(engine: Noting) -> Notes:
    """A few mixes that cover chunks, trees, company and places."""
    references(engine, 24)
    tree = [(-1, True), (0, False), (0, True), (1, True), (2, True)]
    sessions = [Part(key % 2, (11 * key) % 21, (5, 7, 64)[key % 3], tree) for key in range(16)]
    evaluate(engine, sessions)
    assert engine.notes.num_again > 150
    return engine.notes


@pytest.mark.parametrize(
    ("family", "dtype", "tile_rows"),
    [("gemma2", torch.float32, 32), ("gpt_oss", torch.float32, 5), ("llama", torch.bfloat16, 32)],
)
def test_windows_caps_sinks_experts_half_precision_and_any_tile_keep_their_bits(
    family: str, dtype: torch.dtype, tile_rows: int
) -> None:
    assert not evaluate_some(noted(target(family, dtype), SLOTS, tile_rows=tile_rows)).unlike


def test_the_default_engine_does_not_promise_this() -> None:
    """The test above can fail: without tiles and lone attention most rows have several kinds of bits."""
    notes = evaluate_some(noted(target("llama"), SLOTS, exact=False))
    assert len(notes.unlike) > notes.num_again / 2


def test_the_bits_do_not_depend_on_the_thread_that_steps() -> None:
    """A fresh thread would take torch's own number of threads for its first product."""
    engine = noted(target("llama"), SLOTS)
    references(engine, 10)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(references, engine, 10).result()
    assert (engine.notes.num_again, engine.notes.unlike) == (20, [])


def test_several_threads_keep_the_promise() -> None:
    torch.set_num_threads(2)
    engine = noted(target("llama"), SLOTS)
    references(engine, 8)
    evaluate(engine, [Part(key % 2, 3, 7, [(-1, True), (0, True), (0, False)]) for key in range(16)])
    assert engine.notes.num_again > 60
    assert not engine.notes.unlike


def test_the_trash_slot_is_nobodys() -> None:
    """Sessions can have every slot that the engine's info names, and padding writes beside them."""
    engine = ExactEngine(target("llama"), 6)
    session = Session(0, Slots(6))
    item = session.chunk([5, 6, 7, 8, 9, 10], [5])
    engine.logits(StepPlan((item,)))
    assert engine.info.num_slots == 6
    assert engine.kv.num_slots == 7
