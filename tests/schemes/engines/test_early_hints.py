"""Early hints are what the target's first layers and its head would choose, and change no choice."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import HINTED, StepHints, StepPlan, StepResult
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.deterministic.exact_engine import ExactEngine
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.errors import UserError
from common.messages import Hint, ServerMessage
from common.sampling import SamplingParams
from edge_client.core.session import EdgeSession
from schemes.drafters.other_layers import with_layers
from schemes.engines.early_hints import HintingEngine
from schemes.policies.tree import TreePolicy
from tests.cloud_verifier.engine.serving import PRINT, TABLE, Scenario, over_the_wire, serve
from tests.cloud_verifier.engine.serving import SAMPLED as SERVED
from tests.cloud_verifier.engine.tiny import Session, Slots, target

pytestmark = pytest.mark.torch

PROMPT = [5, 9, 2, 41, 7, 7, 80, 13]
SAMPLED = SamplingParams(temperature=0.8, seed=3, max_tokens=20)


class Heard:
    """An engine with hints, and all that it told."""

    def __init__(self, model: TargetModel, share: float) -> None:
        self.told: list[StepHints] = []
        self.engine = HintingEngine(TorchEngine(model, 128), share)
        self.engine.listen(self.told.append)

    def evaluate(self, plan: StepPlan) -> StepResult:
        return self.engine.evaluate(plan)


def plan_of(hint: bool, sampling: SamplingParams = SAMPLED) -> StepPlan:
    """A prompt whose every row is asked about, and another of whom nothing is."""
    session, other = Session(1, Slots(64)), Session(2, Slots(64))
    item = replace(session.chunk(PROMPT), sampling=sampling, hint=hint)
    beside = replace(other.chunk(PROMPT[:3]), slots=np.arange(100, 103, dtype=np.int32))
    return StepPlan((beside, replace(item, outputs=np.arange(len(PROMPT), dtype=np.int32))))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("sampling", [SAMPLED, replace(SAMPLED, temperature=0.0)])
def test_hints_are_the_choices_of_the_first_layers(family: str, sampling: SamplingParams) -> None:
    model = target(family)
    heard = Heard(model, 0.5)
    plan = plan_of(True, sampling)
    found, expected = heard.evaluate(plan), TorchEngine(target(family), 128).evaluate(plan)
    for own, other in zip(found.choices, expected.choices, strict=True):
        assert own.tolist() == other.tolist(), "hints change no choice"
    (hints,) = heard.told
    half = model.num_layers // 2
    assert hints.share == half / model.num_layers
    exit_engine = TorchEngine(with_layers(model, model.layers[:half]), 128)
    assert hints.tokens[0] == ()
    first = [said[0] for said in hints.tokens[1]]
    assert first == exit_engine.evaluate(plan).choices[1].tolist()
    assert {len(said) for said in hints.tokens[1]} == {HINTED}


def test_a_step_without_an_edge_that_asks_computes_no_hint() -> None:
    heard = Heard(target("llama"), 0.5)
    heard.evaluate(plan_of(False))
    assert heard.told == []


@pytest.mark.parametrize("family", ["jamba", "lfm2"])
def test_a_target_that_keeps_states_is_refused(family: str) -> None:
    with pytest.raises(UserError):
        HintingEngine(TorchEngine(target(family), 128), 0.5)


def test_the_last_layer_is_refused() -> None:
    with pytest.raises(UserError):
        HintingEngine(TorchEngine(target("llama"), 128), 1.0)


def test_deterministic_steps_are_refused() -> None:
    with pytest.raises(UserError):
        HintingEngine(ExactEngine(target("llama"), 128, tile_rows=16), 0.5)


@pytest.mark.grpc
async def test_hints_reach_real_edges_and_change_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TorchEngine(target("llama"), 512, fingerprint=PRINT)
    known = {key: serve(plain, Scenario([key], SERVED), {})[key] for key in range(4)}
    taken = list[tuple[int, ...]]()
    take = EdgeSession.on_message

    def seen(session: EdgeSession, message: ServerMessage, now: float, *, plan: bool = True) -> None:
        if isinstance(message, Hint):
            taken.append(message.tokens)
        take(session, message, now, plan=plan)

    monkeypatch.setattr(EdgeSession, "on_message", seen)
    engine = HintingEngine(TorchEngine(target("llama"), 512, fingerprint=PRINT), 0.5)
    worker = Worker(engine, VerifyScheduler(engine.info, SchedulerConfig()))
    async with Server(worker, engine.info, TABLE, "127.0.0.1:0") as server:
        texts = await asyncio.gather(
            *(over_the_wire(f"127.0.0.1:{server.port}", key, TreePolicy(), known[key]) for key in known)
        )
    assert dict(enumerate(texts)) == known
    assert taken
    assert {len(tokens) for tokens in taken} == {HINTED}
