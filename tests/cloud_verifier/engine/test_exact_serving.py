"""Level L2 through the real scheduler and wire: the same bits alone and among 15, with drafts or not."""

from __future__ import annotations

import pytest

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from common.sampling import SamplingParams
from tests.cloud_verifier.engine.exact_world import Noting, near_tied, noted
from tests.cloud_verifier.engine.serving import (
    GREEDY,
    PRINT,
    SAMPLED,
    Scenario,
    serve,
    serve_by,
)

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]


def some_engine(exact: bool = True, num_slots: int = 2048) -> Noting:
    """An engine of the near-tied model, whose texts turn at the last bit, with its notes."""
    return noted(near_tied(), num_slots, exact=exact, fingerprint=PRINT)


def scenarios(sampling: SamplingParams) -> dict[str, Scenario]:
    everybody = range(16)
    return {
        "alone": Scenario([3], sampling),
        "alone with drafts": Scenario([3], sampling, drafts=True),
        "among 15": Scenario(everybody, sampling),
        "among 15 with drafts": Scenario(everybody, sampling, drafts=True),
        "among 15, guessing": Scenario(everybody, sampling, limits=SchedulerConfig(recall=True)),
        "chunks of 1": Scenario([5, 3], sampling, limits=SchedulerConfig(prefill_chunk=1)),
        "chunks of 7": Scenario([3, 1, 2], sampling, limits=SchedulerConfig(prefill_chunk=7)),
    }


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_session_has_the_same_bits_and_text_in_any_company(sampling: SamplingParams) -> None:
    engine = some_engine()
    notes = engine.notes
    known = {key: serve(engine, Scenario([key], sampling), {})[key] for key in range(16)}
    assert all(len(text) == sampling.max_tokens for text in known.values())
    for name, scenario in scenarios(sampling).items():
        before = notes.num_again
        texts = serve(engine, scenario, known)
        assert texts == {key: known[key] for key in scenario.keys}, name
        assert notes.num_again > before, f"{name}: nothing was evaluated again, so nothing was compared"
        assert not notes.unlike, name


def test_what_was_dropped_and_evaluated_anew_has_the_same_bits() -> None:
    """Few slots: the youngest sessions give way and come back, with recomputed KV and shared prefixes."""
    engine = some_engine(num_slots=96)
    known = {key: serve(engine, Scenario([key]), {})[key] for key in range(3)}
    limits = SchedulerConfig(promised_text=1, max_nodes_per_session=4)
    scheduler = VerifyScheduler(engine.info, limits)
    assert serve_by(scheduler, engine, Scenario(range(3), drafts=True), known) == known
    assert scheduler.preemption.num_preempted > 0
    assert not engine.notes.unlike


def test_a_cached_prefix_has_the_bits_of_a_prefix_that_is_read() -> None:
    engine = some_engine()
    scheduler = VerifyScheduler(engine.info, SchedulerConfig(prefix_cache=True))
    first, again = (serve_by(scheduler, engine, Scenario([3, 4]), {}) for _ in range(2))
    assert scheduler.counters.num_cached_tokens > 0
    assert again == first
    assert not engine.notes.unlike


def test_the_default_engine_turns_near_ties() -> None:
    """So the tests above can fail: on the same model other company means other bits, and other texts."""
    engine = some_engine(exact=False)
    alone = {key: serve(engine, Scenario([key]), {})[key] for key in range(16)}
    together = serve(engine, Scenario(range(16)), {})
    assert len(engine.notes.unlike) > 100
    assert together != alone
