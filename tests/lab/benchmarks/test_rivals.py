"""The rivals of `lab.benchmarks.one_machine`: steps are counted, and no draft changes a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from lab.benchmarks.rivals import (
    ArrivalTimes,
    GgufDraft,
    LookupDecoding,
    MachineJob,
    MachineSetting,
    TargetMeter,
    load_llama,
    load_transformers,
    tokenize,
)
from lab.demo_models import DRAFT_GGUF

MakeDraft = Callable[..., GgufDraft]

SETTING = MachineSetting(
    lookaheads=(LookupDecoding(3), LookupDecoding(8, 0.1)),
    floor_s=0.0,
    threads=1,
    num_positions=64,
)
TEXT = [100, 200, 300, 400, 500, 600]
JOB = MachineJob("", tuple(TEXT), 16, 0.0, 3)


def check_one_text(alone: Any, others: Sequence[Any], job: MachineJob, drafts: str, lookup: str) -> None:
    """`alone` writes without drafts; `others` are a draft model and prompt lookup, so named, each with both
    draft lengths."""
    text = alone.write(job)
    assert text["stats"] == {"target_steps": 16, "evaluated": 16, "proposed": 0, "drafted": 0}
    assert len(text["tokens"]) == len(text["arrivals_ms"]) == 16
    runs = {(one.name, one.variant): one.write(job) for one in others}
    assert {key for key, run in runs.items() if run["tokens"] != text["tokens"]} == set()
    assert list(runs) == [(drafts, "3"), (drafts, "8@0.1"), (lookup, "3"), (lookup, "8")]
    stats = runs[drafts, "3"]["stats"]
    assert 0 < stats["proposed"] == stats["drafted"]
    assert stats["target_steps"] < 16


class Clock:
    """Time that passes when told to, or by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_short_step_lasts_as_long_as_asked_and_a_long_one_is_left_alone() -> None:
    for floor, slept in ((0.5, [0.375]), (0.0, [])):
        clock = Clock()
        meter = TargetMeter(floor, clock, clock.sleep)
        for compute_time in (0.125, 0.5, 2.0):
            meter.begin()
            clock.now += compute_time
            meter.end(1)
        assert clock.slept == slept


def test_a_step_is_its_tip_and_what_was_proposed() -> None:
    clock = Clock()
    meter, arrivals = TargetMeter(0.0, clock, clock.sleep), ArrivalTimes(clock)
    for rows in (1, 5, 3):
        meter.begin()
        clock.now += 0.25
        meter.end(rows)
        arrivals.add([rows, 7])
    record = arrivals.record(meter, drafted=9)
    assert record["tokens"] == [1, 7, 5, 7, 3, 7]
    assert record["arrivals_ms"] == [250.0, 250.0, 500.0, 500.0, 750.0, 750.0]
    assert record["stats"] == {"target_steps": 3, "evaluated": 9, "proposed": 6, "drafted": 9}
    meter.reset()
    assert (meter.steps, meter.rows) == (0, 0)


@pytest.mark.parametrize(
    ("text", "lookahead"),
    [("8", LookupDecoding(8)), ("20@0.4", LookupDecoding(20, 0.4)), ("1@0", LookupDecoding(1))],
)
def test_a_draft_length_is_read(text: str, lookahead: LookupDecoding) -> None:
    assert LookupDecoding.parse(text) == lookahead
    assert LookupDecoding.parse(str(lookahead)) == lookahead


@pytest.mark.parametrize("text", ["", "0", "-3", "eight", "8@1", "8@-0.1", "8@x", "257", "8@nan"])
def test_a_wrong_draft_length_is_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match="a draft length is"):
        LookupDecoding.parse(text)


# The libraries


def rivals(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that imports both libraries."""
    marked: Callable[..., None] = pytest.mark.torch(pytest.mark.llama(test))
    return marked


@pytest.fixture(name="draft_of")
def make_drafts() -> Iterator[MakeDraft]:
    """Drafts on the bundled file, each with a context of its own."""
    from common.llama.model import LlamaSettings
    from common.llama.runtime import LlamaRuntime

    with ExitStack() as stack:

        def draft_of(lookahead: LookupDecoding, n_ctx: int = 64) -> GgufDraft:
            settings = LlamaSettings(str(DRAFT_GGUF), n_ctx=n_ctx, threads=1)
            return GgufDraft(stack.enter_context(LlamaRuntime(settings)), lookahead)

        yield draft_of


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.intc)


@rivals
def test_a_draft_with_history_guesses_as_one_without(draft_of: MakeDraft) -> None:
    used, longer = draft_of(LookupDecoding(4)), [*TEXT, 7, 8]
    for text in (TEXT, longer, TEXT[:2], [*TEXT[:3], 9], longer, longer):
        assert used(array(text)).tolist() == draft_of(LookupDecoding(4))(array(text)).tolist()


@rivals
def test_a_guess_is_what_shorter_guesses_say_one_by_one(draft_of: MakeDraft) -> None:
    guess = draft_of(LookupDecoding(4))(array(TEXT)).tolist()
    one, text = draft_of(LookupDecoding(1)), list(TEXT)
    for _ in range(4):
        text += one(array(text)).tolist()
    assert text == [*TEXT, *guess]
    assert one.num_drafted == 4


@rivals
def test_a_draft_stops_where_it_is_unsure(draft_of: MakeDraft) -> None:
    sure = draft_of(LookupDecoding(8))(array(TEXT)).tolist()
    unsure = draft_of(LookupDecoding(8, 0.5))(array(TEXT)).tolist()
    assert len(unsure) < 8
    assert unsure == sure[: len(unsure)]


@rivals
def test_a_draft_ends_with_its_context(draft_of: MakeDraft) -> None:
    draft = draft_of(LookupDecoding(32), 256)
    room = draft._runtime.n_ctx
    assert len(draft(array([5] * (room - 3)))) == 3
    assert len(draft(array([5] * room))) == 0


@rivals
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_draft_changes_the_text(temperature: float) -> None:
    with ExitStack() as stack:
        alone, *others = load_llama(SETTING, stack)
        job = replace(JOB, temperature=temperature)
        assert alone.write(job)["tokens"] == alone.write(job)["tokens"]
        check_one_text(alone, others, job, "llama_cpp_draft", "llama_cpp_prompt_lookup")


@rivals
def test_every_way_writes_the_same_greedy_text() -> None:
    alone, *others = load_transformers(SETTING)
    check_one_text(alone, others, JOB, "transformers_assisted", "transformers_prompt_lookup")


@rivals
def test_a_seed_repeats_a_way_s_own_sampled_text() -> None:
    job = replace(JOB, temperature=0.8)
    for one in load_transformers(SETTING):
        texts = [one.write(each)["tokens"] for each in (job, job, replace(job, seed=4))]
        assert texts[0] == texts[1] != texts[2], one.name


@rivals
def test_a_prompt_is_tokenised_without_a_begin_token() -> None:
    (whole,), (empty,) = tokenize(["def f():"]), tokenize([""])
    assert len(whole) > 1
    assert empty == ()
