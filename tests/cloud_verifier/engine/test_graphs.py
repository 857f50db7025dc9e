"""A replay of fixed places gives what an eager step gives, whatever was replayed before; else steps are
eager.

Where there is no GPU a recording is a call: the body runs again on the same places, and knows nothing of
any step.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepPlan, StepResult
from cloud_verifier.engine.attention.attention_units import AttentionPlan, Cuts, WorkCut, plan_attention
from cloud_verifier.engine.attention.backend import KVStore
from cloud_verifier.engine.attention.triton_backend import TritonBackend
from cloud_verifier.engine.graphs import (
    ROW_BUCKETS,
    Capture,
    CudaCapture,
    DeviceRunner,
    GraphRunner,
    SizeBucket,
    StepBuffers,
)
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import PackedStep, StepLimits, pack
from cloud_verifier.engine.sampling.device_choice import ChoiceTable, choice_table
from cloud_verifier.engine.sampling.host_choice import choice_rows
from cloud_verifier.engine.torch_engine import TorchEngine
from common.errors import LocalError
from common.sampling import SamplingParams
from tests import wording
from tests.cloud_verifier.engine.attention_rig import LIMITS, Shape, random_plan
from tests.cloud_verifier.engine.tiny import Session, Slots, from_config, plain_model, target
from tests.cloud_verifier.engine.triton_rig import device_for_kernels

pytestmark = pytest.mark.triton

NUM_SLOTS = 160
SAMPLED = SamplingParams(temperature=1.5, seed=5)
FILTERED = SamplingParams(temperature=1.2, top_p=0.8, seed=7)


class By:
    """A `Capture` that needs no GPU: it records as `how` does. What is rehearsed may not ask the host."""

    def __init__(
        self, how: Callable[[Callable[[], Tensor]], Callable[[], Tensor]] = lambda body: body
    ) -> None:
        self._how = how
        self.rehearsing = False

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        self.rehearsing = True
        try:
            yield
        finally:
            self.rehearsing = False

    def __call__(self, body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return self._how(body)


def captures() -> Capture:
    """CUDA graphs where there is CUDA, else calls."""
    return CudaCapture() if device_for_kernels().type == "cuda" else By()


def engine_of(capture: Capture | None) -> TorchEngine:
    """A tinier model with Triton's attention, as numpy computes it; without `capture` it runs eagerly."""
    config = plain_model("mistral").config
    config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 1, 2, 1
    torch.manual_seed(0)
    model = TargetModel("mistral", from_config(config).to(device_for_kernels()))
    cuts = Cuts(narrow=WorkCut(rows=4, split=16), wide=WorkCut(rows=16, split=32), most_narrow=12)
    engine = TorchEngine(model, NUM_SLOTS, backend=TritonBackend(cuts))
    if capture is not None:
        engine.runner = DeviceRunner(engine, capture)
    return engine


def plans() -> list[StepPlan]:
    """Steps of one bucket and of others: trees and tips, greedy and sampled, one with filters."""
    slots = Slots(NUM_SLOTS)
    samplings = (SAMPLED, SamplingParams(), FILTERED)
    first, second, third = (Session(key, slots, sampling) for key, sampling in enumerate(samplings))
    made = [StepPlan((chunk(first, 30), chunk(second, 6)))]
    for trees in ([first], [second, first], [first, third]):
        items = [session.item([5, 9, 6, 9], [-1, 0, 0, 2], range(4)) for session in trees]
        made.append(StepPlan(tuple(items)))
        for session, item in zip(trees, items, strict=True):
            session.keep(item, [0, 2])
    return made


def chunk(session: Session, count: int) -> Any:
    item = session.chunk([token % 97 for token in range(3, 3 + count)], [count - 1])
    session.keep(item, range(count))
    return item


def assert_equal(found: StepResult, expected: StepResult) -> None:
    for told, right in zip(found.logprobs, expected.logprobs, strict=True):
        assert told is not None
        assert right is not None
        assert told.top_tokens.tolist() == right.top_tokens.tolist()
        np.testing.assert_allclose(told.choices, right.choices, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(told.top, right.top, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(found.choices, expected.choices, strict=True):
        assert ours.tolist() == theirs.tolist()
        assert ours.dtype == np.int32
    for margins, others in zip(found.margins, expected.margins, strict=True):
        np.testing.assert_allclose(margins, others, rtol=1e-4, atol=1e-6)


def test_replayed_steps_equal_eager_ones() -> None:
    replayed, eager = engine_of(captures()), engine_of(None)
    for plan in plans():
        asking = StepPlan(tuple(replace(item, logprobs=3) for item in plan.items))
        assert_equal(replayed.evaluate(asking), eager.evaluate(asking))
    counts = replayed.runner.counts
    assert counts.captures == 1
    assert counts.graph == 2
    assert (counts.eager, counts.reasons) == (2, {"a prefill chunk": 1, "the first of its size": 1})
    assert eager.runner.counts.eager == 4
    assert replayed.stats() == {
        "graph_steps_total": 2,
        "eager_steps_total": 2,
        "graphs_made_total": 1,
        "eager_reasons_total": counts.reasons,
    }


# What is recorded, refused and counted, with a model that is a table of logits by token and position.


def graphs_of(capture: Capture, before: Callable[[Tensor], None] = lambda _: None) -> GraphRunner:
    """`before` is told the tokens of each forward."""
    device = device_for_kernels()

    def forward(tokens: Tensor, positions: Tensor, outputs: Tensor) -> Tensor:
        before(tokens)
        return table(device)[tokens[0, outputs], positions[0, outputs]]

    return GraphRunner(forward, KVStore(64), TritonBackend(), device, choice_rows, capture)


def table(device: torch.device) -> Tensor:
    """Logits of 20 tokens at 30 positions, float32 [20, 30, 20]."""
    return torch.randn(20, 30, 20, generator=torch.Generator().manual_seed(3)).to(device)


def tips(*tokens: int) -> PackedStep:
    """One session for each token, each with the token as its first, whose choice is wanted."""
    slots = Slots(63)
    items = [Session(key, slots).chunk([token], [0]) for key, token in enumerate(tokens)]
    return pack(StepPlan(tuple(items)), StepLimits(20, 30, 63))


def expected(*tokens: int) -> list[int]:
    return [int(table(torch.device("cpu"))[token, 0].argmax()) for token in tokens]


def counting(replays: list[int], recorded: list[int]) -> By:
    """Notes the rows of each recording, and of each replay."""

    def noting(body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        recorded.append(len(body()))
        repeat = captures()(body)

        def replay() -> Tensor:
            logits = repeat()
            replays.append(len(logits))
            return logits

        return replay

    return By(noting)


def test_buckets_are_recorded_ahead_largest_first() -> None:
    recorded: list[int] = []
    replays: list[int] = []
    graphs = graphs_of(counting(replays, recorded))
    graphs.warm(10)
    assert recorded == [16, 8]
    repeated = list(replays)
    for tokens in ((3, 4), (5,)):
        found = graphs.run(tips(*tokens))
        assert found is not None
        assert found[0].tolist() == expected(*tokens)
    assert (graphs.counts.captures, graphs.counts.graph, len(recorded)) == (2, 2, 2)
    assert (repeated, replays) == ([16, 8], [16, 8, 8, 8])  # compared ahead, and then never again
    assert (graphs.counts.eager, graphs.counts.reasons) == (0, {})  # what was run ahead was nobody's step


def test_a_model_that_cannot_be_recorded_runs_eagerly_and_says_why_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def impossible(body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    graphs = graphs_of(By(impossible))
    with caplog.at_level(logging.WARNING):
        first = graphs.run(tips(3))  # its bucket's first step is eager in any case, and its result counts
        assert first is not None
        assert first[0].tolist() == expected(3)
        assert graphs.run(tips(4)) is None
        assert graphs.run(tips(*range(10))) is None
    reason = "the model cannot be recorded: operation not permitted when stream is capturing"
    assert (graphs.counts.graph, graphs.counts.captures, graphs.counts.eager) == (0, 0, 3)
    assert graphs.counts.reasons == {"the first of its size": 1, reason: 2}
    assert graphs.refusal == reason
    assert [record.getMessage() for record in caplog.records] == [f"no CUDA graphs any more: {reason}"]


def test_a_model_that_asks_the_host_is_never_recorded() -> None:
    """A capture that fails leaves torch's allocator crippled, so none is begun."""
    recorded: list[int] = []

    def recording(body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        recorded.append(1)
        return body

    capture = By(recording)

    def ask(_: Tensor) -> None:
        if capture.rehearsing:
            raise RuntimeError("called a synchronizing CUDA operation")

    graphs = graphs_of(capture, ask)
    assert graphs.run(tips(3)) is None
    assert graphs.run(tips(3)) is None
    graphs.warm(8)
    reason = "the model cannot be recorded: called a synchronizing CUDA operation"
    assert (recorded, graphs.counts.reasons) == ([], {reason: 2})


def test_a_recording_for_which_there_is_no_memory_costs_only_its_bucket() -> None:
    def narrow(body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if len(body()) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return captures()(body)

    graphs, many = graphs_of(By(narrow)), tips(*range(9))
    assert graphs.run(many) is not None
    assert graphs.run(many) is None
    assert graphs.run(tips(3)) is not None
    assert graphs.run(tips(4)) is not None
    assert (graphs.counts.captures, graphs.counts.graph) == (1, 1)
    assert graphs.counts.reasons["larger than the largest graph"] == 1


def test_a_replay_that_differs_is_found_at_its_first_use(caplog: pytest.LogCaptureFixture) -> None:
    """A recording that holds on to the step it was made with: the classic mistake."""

    def stale(body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        remembered = body().clone()
        return lambda: remembered

    graphs = graphs_of(By(stale))
    assert graphs.run(tips(3)) is not None
    assert graphs.run(tips(4)) is None
    assert graphs.counts.graph == 0
    assert graphs.counts.reasons["a replay differed"] == 1
    assert "of the logits' spread" in caplog.text


def test_chunks_and_steps_without_outputs_are_left_to_others() -> None:
    graphs, limits = graphs_of(By()), StepLimits(20, 1000, 63)
    few = pack(StepPlan((Session(0, Slots(63)).chunk([1, 2]),)), limits)
    assert graphs.run(few) is None
    wide = pack(StepPlan((Session(0, Slots(800)).chunk([1] * 65, [64]),)), StepLimits(20, 1000, 800))
    assert graphs.run(wide) is None
    assert graphs.counts.reasons == {"a prefill chunk": 2}


# Eager steps with choices where the logits are.


def test_eager_steps_equal_those_of_the_reference() -> None:
    """Greedy, sampled and filtered sessions in one step, and a chunk that wants nothing."""
    model = TargetModel("llama", plain_model("llama").to(device_for_kernels()))
    engine = TorchEngine(model, 64, backend=TritonBackend())
    engine.runner = DeviceRunner(engine)
    reference = TorchEngine(target("llama"), 64)
    slots = Slots(64)
    samplings = (
        SamplingParams(),
        SamplingParams(temperature=1.5, seed=3),
        SamplingParams(temperature=1.0, top_p=0.7, seed=4),
        SamplingParams(presence_penalty=0.5),
    )
    items = [
        Session(key, slots, sampling).item([5, 9, 6], [-1, 0, 0], range(3))
        for key, sampling in enumerate(samplings)
    ]
    items[3] = replace(items[3], prompt=items[3].tokens[:1], generated=items[3].tokens[:0])
    plan = StepPlan((*items, Session(9, slots).chunk([1, 2, 3])))
    found, expected = engine.evaluate(plan), reference.evaluate(plan)
    assert [one.tolist() for one in found.choices] == [one.tolist() for one in expected.choices]
    for ours, theirs in zip(found.margins, expected.margins, strict=True):
        assert ours.tolist() == pytest.approx(theirs.tolist(), rel=1e-3, abs=1e-5)
    assert [len(one) for one in engine.evaluate(StepPlan((Session(9, slots).chunk([1]),))).choices] == [0]
    assert engine.evaluate(StepPlan(())).choices == ()
    assert (engine.runner.counts.eager, engine.runner.counts.graph) == (2, 0)


def test_a_scheduler_is_told_of_padding_only_where_steps_are_replayed() -> None:
    engine = engine_of(captures())
    assert isinstance(engine.runner, DeviceRunner)
    assert engine.runner.row_buckets == ROW_BUCKETS
    assert engine.runner.graphs is not None
    engine.runner.graphs.refusal = "a replay differed"
    assert engine.runner.row_buckets == DeviceRunner(engine).row_buckets == ()


def test_only_the_kernels_own_attention_can_be_replayed() -> None:
    with wording.raises(LocalError):
        DeviceRunner(TorchEngine(target("llama"), 8), By())


# A step in its bucket's places is the step, and what pads it does nothing.

SPARE = 1023


def buffers(max_units: int = 64, max_keys: int = 500) -> StepBuffers:
    return StepBuffers(device_for_kernels(), max_units, max_keys, rows_per_unit=8, spare_slot=SPARE)


def step_of(shapes: list[Shape]) -> tuple[PackedStep, AttentionPlan, ChoiceTable]:
    """Every row is an output, sampled at 0.5 with filters."""
    sampling = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, seed=9)
    items = [
        replace(
            item,
            outputs=np.arange(len(item.tokens), dtype=np.int32),
            sampling=sampling,
            tokens=item.slots % 10,
        )
        for item in random_plan(shapes).items
    ]
    step = pack(StepPlan(tuple(items)), LIMITS)
    return step, plan_attention(step), choice_table(step, choice_rows)


def test_what_fits_nowhere_has_no_bucket() -> None:
    assert SizeBucket.of(513, 1) is None
    small = buffers(max_units=2, max_keys=40)
    for shapes in ([(3, 4, "tree")] * 3, [(39, 2, "chain")], [(0, 65, "chain")]):
        assert small.bucket(step_of(shapes)[1]) is None
    assert small.bucket(step_of([(3, 4, "tree")])[1]) == SizeBucket(8, 16)


def test_the_device_reads_what_the_step_says_and_padding_belongs_to_no_unit() -> None:
    held = buffers()
    held.send(*prepared(held, [(9, 8, "tree"), (70, 8, "tree")]))  # what a larger step leaves behind
    bucket, step, plan, table = prepared(held, [(5, 3, "tree"), (20, 8, "chain")])
    held.send(bucket, step, plan, table)
    (views, tables), rows = held.on_device(bucket), step.num_rows
    sent = {name: getattr(step, name) for name in ("tokens", "positions", "slots", "outputs")}
    for name, numbers in (sent | {"keys": table.keys}).items():
        assert views[name][:rows].tolist() == numbers.tolist()
    for name in ("units", "rows", "positions", "keys", "ancestors"):
        numbers = getattr(plan, name)
        assert getattr(tables, name)[: len(numbers)].tolist() == numbers.tolist()
    asked, greedy = [0.5, 3.0, 0.9, -math.inf], [0.0, 0.0, 1.0, -math.inf]
    padding = bucket.rows - rows
    assert padding
    assert views["settings"].tolist() == [
        [one] * rows + [other] * padding for one, other in zip(asked, greedy, strict=True)
    ]
    assert set(views["slots"][rows:].tolist()) == {SPARE}
    for name in ("tokens", "positions", "outputs"):
        assert not views[name][rows:].any()
    assert not tables.units[len(plan.units) :, 1].any()
    assert not tables.rows[rows:, 1].any()


def prepared(held: StepBuffers, shapes: list[Shape]) -> tuple[Any, PackedStep, AttentionPlan, ChoiceTable]:
    step, plan, table = step_of(shapes)
    return held.bucket(plan), step, plan, table
