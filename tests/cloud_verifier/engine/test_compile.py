"""A compiled target is one graph for every step, and computes what the plain one does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.conformance_probe import TOLERANCE, probe
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from cloud_verifier.engine.torch_loading import check, load_engine
from common.errors import UserError
from lab import demo_models
from schemes.drafters.heads import keep_features
from tests import wording
from tests.cloud_verifier.engine.conformance import random_target
from tests.cloud_verifier.engine.families import SERVED_FAMILIES
from tests.cloud_verifier.engine.tiny import Session, Slots, plain_greedy, target

pytestmark = [pytest.mark.torch, pytest.mark.slow]

FAMILIES = ("llama", "gpt_oss", "deepseek_v3", "lfm2")
"""Plain attention, sinks and windows, latent attention with experts, and a state."""

NUM_SLOTS = 200


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects the graphs that torch.compile makes, and runs them without compiling."""
    found: list[Any] = []

    def run(graph: Any, _inputs: list[Tensor]) -> Callable[..., Any]:
        found.append(graph)
        forward: Callable[..., Any] = graph.forward
        return forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=run))
    return found


@pytest.fixture
def functional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch.compile trace through autograd and functionalization, without compiling."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def steps(vocab_size: int) -> list[StepPlan]:
    """A prompt in two chunks, then a tree, a tip alone, and both of two sessions; of all kinds of sizes."""
    slots = Slots(NUM_SLOTS)
    first, second = Session(0, slots), Session(1, slots)
    tokens = [3 * token % vocab_size for token in range(40)]
    plans = []

    def add(*items: Any) -> None:
        plans.append(StepPlan(items))
        for item in items:
            (first, second)[item.session].keep(item, [0])

    add(first.chunk(tokens[:9], [7, 8]))
    add(first.chunk(tokens[9:30]))
    add(first.item([5, 9, 6, 9], [-1, 0, 0, 2], range(4)))
    add(first.chunk([8], [0]))
    add(first.chunk([4], [0]), second.chunk(tokens[:12], [11]))
    add(second.item([5, 9], [-1, 0], range(2)))
    return plans


def logits_of(model: TargetModel) -> list[Tensor]:
    engine = TorchEngine(model, NUM_SLOTS)
    return [engine.logits(plan) for plan in steps(model.vocab_size)]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_is_one_graph_for_all_numbers_of_rows(model_type: str, graphs: list[Any]) -> None:
    family = next(each for each in SERVED_FAMILIES if each.model_type == model_type)
    model = random_target(family.name, model_type, family.settings, dtype="float32")
    expected = logits_of(model)
    model.merge_projections()
    model.compile()
    breaks = torch._dynamo.utils.counters["graph_break"]
    breaks.clear()
    for found, right in zip(logits_of(model), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
    assert breaks == {}
    operations = ("torch.ops.forerun.attend", "torch.ops.forerun.run_states")
    attending = [sum(map(str(graph.graph).count, operations)) for graph in graphs]
    assert attending == [model.num_layers] * 2  # one graph for steps of one row, and one for all others


def test_the_probe_compares_compiled_rows_with_plain_ones(graphs: list[Any]) -> None:
    model = target("llama", torch.bfloat16)
    plain = probe(model)
    model.compile()
    compiled = probe(model)
    assert (compiled.num_rows, compiled.shapes) == (plain.num_rows, plain.shapes)
    assert compiled.worst < TOLERANCE
    assert len(graphs) == 1  # none of it in float32, to which layers are widened one by one


def test_a_compiler_that_errs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph: Any, _inputs: list[Tensor]) -> Callable[..., Any]:
        return lambda *inputs: tuple(each + each.roll(1, 1) for each in graph.forward(*inputs))

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=wrong))
    model = target("llama")
    model.compile()
    with wording.raises(UserError):
        check(model, TorchEngine(model, 1).backend)


@pytest.mark.usefixtures("functional")
def test_a_drafter_gets_the_features_of_compiled_steps() -> None:
    kept = []
    for is_compiled in (False, True):
        model = target("llama")
        keep_features(model)
        if is_compiled:
            model.compile()
        engine = TorchEngine(model, NUM_SLOTS)
        for plan in steps(model.vocab_size):
            engine.logits(plan)
        assert engine.kv.features is not None
        kept.append(engine.kv.features)
    assert kept[0].any()
    torch.testing.assert_close(kept[1], kept[0])


def test_a_load_compiles_before_it_serves(graphs: list[Any]) -> None:
    engine, _ = load_engine(str(demo_models.TARGET_DIR), NUM_SLOTS, dtype="float32", compiled=True)
    assert engine.model.is_compiled
    logits_of(engine.model)
    assert len(graphs) == 2


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler
def test_a_compiled_target_writes_what_the_plain_one_does() -> None:
    """With the real compiler, which takes many seconds where nothing is cached."""
    model = target("llama")
    model.compile()
    assert probe(model).worst < TOLERANCE
    engine = TorchEngine(model, NUM_SLOTS)
    given = prompt = [3, 60, 11, 7]
    session, text = Session(0, Slots(NUM_SLOTS)), list[int]()
    while len(text) < 40:
        item = session.chunk(given, [len(given) - 1])
        (choices,) = engine.evaluate(StepPlan((item,))).choices
        session.keep(item, range(len(given)))
        given = choices.tolist()
        text += given
    assert text == plain_greedy(model, prompt, 40)
