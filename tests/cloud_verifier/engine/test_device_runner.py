"""An engine on Triton alone: eager steps with choices where the logits are, counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cloud_verifier.core.target import StepPlan
from common.errors import LocalError
from common.sampling import SamplingParams

pytestmark = pytest.mark.triton


def test_eager_steps_equal_those_of_the_reference() -> None:
    """Greedy, sampled and filtered sessions in one step, and a chunk that wants nothing."""
    from cloud_verifier.engine.device_runner import DeviceRunner
    from cloud_verifier.engine.engine import TorchEngine
    from cloud_verifier.engine.transformers_adapter import TargetModel
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.tiny import Session, Slots, plain_model, target
    from tests.cloud_verifier.engine.triton_rig import device_for_kernels

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


def test_only_the_kernels_own_attention_can_be_replayed() -> None:
    from cloud_verifier.engine.device_runner import DeviceRunner
    from cloud_verifier.engine.engine import TorchEngine
    from tests.cloud_verifier.engine.test_graphs import By
    from tests.cloud_verifier.engine.tiny import target

    with pytest.raises(LocalError, match="TritonBackend"):
        DeviceRunner(TorchEngine(target("llama"), 8), By())


def test_warming_compiles_every_kernel_of_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is compiled when it is first started, which takes seconds on a GPU."""
    from cloud_verifier.engine import triton_choice
    from cloud_verifier.engine.device_runner import DeviceRunner
    from cloud_verifier.engine.engine import TorchEngine
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.tiny import target

    started: set[tuple[str, bool | None]] = set()

    class Noting:
        def __init__(self, name: str) -> None:
            self.name, self.kernel = name, getattr(triton_choice, name)

        def __getitem__(self, grid: Any) -> Any:
            def start(*arguments: Any, **words: Any) -> None:
                started.add((self.name, words.get("BOUNDED")))
                self.kernel[grid](*arguments, **words)

            return start

    names = ("find_best", "find_winner", "weigh", "merge")
    for name in names:
        monkeypatch.setattr(triton_choice, name, Noting(name))
    engine = TorchEngine(target("llama"), 8, backend=TritonBackend())
    DeviceRunner(engine).warm(0)
    assert started == {
        ("find_best", None), ("find_winner", False), ("find_winner", True), ("weigh", None), ("merge", None),
    }  # fmt: skip
