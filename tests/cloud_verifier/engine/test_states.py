"""Layers that keep a state: texts are those of the target alone, whatever is drafted, dropped or cached."""

from functools import cache
from typing import Any

import pytest
import torch

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine import torch_loading as loading
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from common.errors import CapacityError, UserError
from common.messages import Open
from tests import wording
from tests.cloud_verifier.engine.serving import GREEDY, PRINT, PROMPTS, Scenario, Texts, serve, serve_by
from tests.cloud_verifier.engine.tiny import Session, Slots, plain_greedy, target
from tests.support.played import played

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

FAMILIES = ("lfm2", "qwen3_5_text", "granitemoehybrid", "jamba")
"""Short convolutions, a gated delta rule, Mamba 2 and Mamba 1, each among attention."""

KEYS = range(4)


@cache
def model_of(family: str) -> TargetModel:
    return target(family)


def engine_of(family: str, num_states: int = 256, num_slots: int = 2048) -> TorchEngine:
    return TorchEngine(model_of(family), num_slots, fingerprint=PRINT, num_states=num_states)


@cache
def plain_texts(family: str) -> Texts:
    """What transformers alone writes."""
    model = model_of(family)
    return {key: tuple(plain_greedy(model, PROMPTS[key], GREEDY.max_tokens)) for key in KEYS}


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_those_of_transformers_alone_with_drafts_and_without(family: str) -> None:
    known = plain_texts(family)
    assert len(set(known.values())) > 1
    for drafts, limits in ((False, SchedulerConfig()), (True, SchedulerConfig(prefill_chunk=7))):
        engine = engine_of(family)
        scheduler = VerifyScheduler(engine.info, limits)
        assert serve_by(scheduler, engine, Scenario(KEYS, drafts=drafts), known) == known
        assert (scheduler.counters.num_won > 0) == drafts
        assert engine.states is not None
        assert engine.states.num_replayed == 0


def test_states_that_were_dropped_are_made_anew() -> None:
    """Three of four sessions run in a step, and the six states are theirs."""
    known = plain_texts("lfm2")
    engine = engine_of("lfm2", num_states=6)
    limits = SchedulerConfig(max_rows=3, max_nodes_per_session=3, prefix_cache=False)
    assert serve(engine, Scenario(KEYS, drafts=True, limits=limits), known) == known
    assert engine.states is not None
    assert engine.states.num_replayed > 0


def test_a_preempted_text_goes_on_from_the_cache_or_anew() -> None:
    known = {key: plain_texts("lfm2")[key] for key in range(3)}
    for cached in (True, False):
        limits = SchedulerConfig(promised_text=1, max_nodes_per_session=4, prefix_cache=cached)
        engine = engine_of("lfm2", num_slots=96)
        scheduler = VerifyScheduler(engine.info, limits)
        assert serve_by(scheduler, engine, Scenario([*known], drafts=True), known) == known
        assert scheduler.preemption.num_preempted > 0


def test_a_cached_text_is_continued_at_its_end_without_reading_it_again() -> None:
    engine = engine_of("granitemoehybrid")
    scheduler = VerifyScheduler(engine.info, SchedulerConfig())
    text = alone(scheduler, engine, PROMPTS[0])
    assert text == plain_texts("granitemoehybrid")[0]
    longer = (*PROMPTS[0], *text, 5, 9)
    assert alone(scheduler, engine, longer) == tuple(plain_greedy(engine.model, longer, GREEDY.max_tokens))
    num_cached = scheduler.counters.num_cached_tokens
    assert num_cached == len(PROMPTS[0]) + len(text) - 1
    # This prompt ends within a cached text, where no state is kept.
    assert alone(scheduler, engine, PROMPTS[0]) == text
    assert scheduler.counters.num_cached_tokens == num_cached
    assert engine.states is not None
    assert engine.states.num_replayed == 0


def alone(scheduler: VerifyScheduler, engine: TorchEngine, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return the text that follows a prompt."""
    key = 1 + scheduler.counters.num_opened
    scheduler.on_open(key, Open(prompt, GREEDY, PRINT), 0.0)
    return tuple(played(scheduler, engine, step_time=0.0)[key])


def test_a_step_with_more_rows_than_states_is_refused_and_a_smaller_one_runs() -> None:
    engine, session = engine_of("lfm2", num_states=4), Session(0, Slots(64))
    first = session.chunk([1, 2, 3], [2])
    engine.logits(StepPlan((first,)))
    session.keep(first, range(3))
    with wording.raises(CapacityError):
        engine.logits(StepPlan((session.chunk([4, 5, 6, 7], range(4)),)))
    small = session.chunk([4, 5, 6], range(3))
    found = engine.logits(StepPlan((small,)))
    with engine.model.plain(), torch.inference_mode():
        assert torch.allclose(found, engine.model.plain_logits([1, 2, 3, 4, 5, 6], 3), atol=1e-5)


@pytest.mark.parametrize("option", [{"deterministic": True}, {"drafter": "exit:1"}], ids=["exact", "drafter"])
def test_what_cannot_be_had_with_states_is_refused(
    option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_target", lambda *_, **__: model_of("lfm2"))
    with wording.raises(UserError):
        loading.load_engine("lfm2", 64, **option)


def test_states_take_a_quarter_of_the_memory_at_most(caplog: pytest.LogCaptureFixture) -> None:
    cpu, mib = torch.device("cpu"), 1 << 20
    assert loading.choose_states(256, None, 75 * mib, cpu) == 576
    assert loading.choose_states(256, 10**12, 75 * mib, cpu) == 576
    assert not caplog.records
    assert loading.choose_states(256, 400 * mib, mib, cpu) == 100
    assert "more than 18 rows" in caplog.text
    with wording.raises(UserError):
        loading.choose_states(256, 100 * mib, mib, cpu)
