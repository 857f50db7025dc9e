"""A text survives what its sessions do not: what was shown stays, and every token says who wrote it."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from common.errors import UnavailableError
from common.messages import FinishReason
from common.sampling import SamplingParams
from edge_client.core.effects import (
    ChangeMode,
    Emit,
    Fallback,
    Mode,
    ModeStatus,
    Preview,
    SessionStats,
    Shown,
    Traffic,
    Withdraw,
)
from edge_client.formats.detokenizer import TokenOrigin
from edge_client.texts.answer import TextAnswer
from edge_client.texts.events import AnswerEvent, TextAdded
from edge_client.texts.figures import TextAccount
from edge_client.texts.text_request import TextRequest, Writer
from tests.edge_client.api.world import LETTERS, Letters

PROMPT = (1, 2, 3)
GONE = ChangeMode(ModeStatus(Mode.DEVICE_ONLY, "the verifier has not answered for 1.0 s"))
BACK = ChangeMode(ModeStatus(Mode.AHEAD, "the verifier writes again after 3.0 s"))


@dataclass
class Scripted:
    """A session that shows what it is told to."""

    items: Sequence[Shown]
    end: FinishReason | Exception = FinishReason.LENGTH
    traffic: Traffic = field(default_factory=lambda: Traffic(10, 5))
    reason: FinishReason | None = None
    stats: SessionStats = field(default_factory=SessionStats)
    rtts: Sequence[float] = ()
    streaming_time: float = 0.0
    verifier: str = ""
    was_closed: bool = False

    async def shown(self) -> AsyncGenerator[Shown]:
        try:
            for item in self.items:
                yield item
        finally:
            self.was_closed = True
        if isinstance(self.end, Exception):
            raise self.end
        self.reason = self.end


def emit(place: int, letters: str, server_made: int = 0) -> Emit:
    return Emit(len(PROMPT) + place, tuple(LETTERS.index(each) for each in letters), server_made)


def preview(place: int, letters: str) -> Preview:
    return Preview(len(PROMPT) + place, tuple(LETTERS.index(each) for each in letters))


def withdraw(place: int, letters: str) -> Withdraw:
    return Withdraw(len(PROMPT) + place, tuple(LETTERS.index(each) for each in letters))


@dataclass
class Told:
    """What a client learnt."""

    answer: TextAnswer
    events: list[AnswerEvent]
    begun: list[tuple[int, ...]]  # the text that each session began with
    error: Exception | None = None

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.events if isinstance(each, TextAdded))

    @property
    def ours(self) -> list[dict[str, Any]]:
        return [each for each in self.events if not isinstance(each, TextAdded)]


REQUEST = TextRequest(PROMPT, SamplingParams(max_tokens=12))


async def tell(*sessions: Scripted, request: TextRequest = REQUEST) -> Told:
    """Run an answer over these sessions, one after the other."""
    waiting, begun = list(sessions), list[tuple[int, ...]]()

    def begin(written: Sequence[int]) -> Scripted:
        begun.append(tuple(written))
        return waiting.pop(0)

    ticks = iter(range(1000))
    answer = TextAnswer(
        request, Letters(), frozenset((0,)), begin, TextAccount(asked_at=0.0), lambda: float(next(ticks))
    )
    told = Told(answer, [], begun)
    list(answer.begun())
    try:
        async for event in answer.events():
            told.events.append(event)
    except UnavailableError as error:
        told.error = error
    assert all(session.was_closed for session in sessions)
    return told


async def test_alone_the_device_goes_on_and_every_token_says_so() -> None:
    request = replace(REQUEST, fallback=Fallback.DRAFT)
    session = Scripted([emit(0, "ab"), GONE, preview(2, "c"), preview(3, "d"), BACK, emit(2, "cdef", 0b1000)])
    told = await tell(session, request=request)
    assert told.text == "abcdef"
    assert told.answer.figures.device_tokens == 2
    modes = [event["mode"] for event in told.ours if "mode" in event]
    assert modes == [Mode.DEVICE_ONLY.value, Mode.AHEAD.value]
    origins = [each.origin for event in told.events if isinstance(event, TextAdded) for each in event.spans]
    assert origins == [TokenOrigin.DRAFTED] * 2 + [TokenOrigin.DEVICE] * 2 + [
        TokenOrigin.DRAFTED,
        TokenOrigin.SERVER,
    ]


async def test_where_the_target_differs_it_says_so_and_the_text_goes_on_from_what_was_read() -> None:
    request = replace(REQUEST, fallback=Fallback.DRAFT)
    first = Scripted([emit(0, "ab"), GONE, preview(2, "cde"), BACK, withdraw(3, "de"), emit(2, "cfa")])
    second = Scripted([emit(5, "bb")])
    told = await tell(first, second, request=request)
    assert told.text == "abcdebb"
    difference = {"place": 3, "device": "de", "target": "fa"}
    assert [event["difference"] for event in told.ours if "difference" in event] == [difference]
    assert told.begun == [(), tuple(LETTERS.index(each) for each in "abcde")]
    assert told.answer.figures.resumes == 1
    assert told.answer.figures.bytes_up == 20


async def test_alone_to_the_end_the_text_is_whole() -> None:
    request = replace(REQUEST, fallback=Fallback.DRAFT)
    told = await tell(Scripted([emit(0, "a"), GONE, preview(1, "bc~")]), request=request)
    assert told.text == "abc"
    assert told.answer.finish is FinishReason.STOP
    by_length = await tell(Scripted([GONE, preview(0, "abcdefabcdef")]), request=request)
    assert by_length.text == "abcdefabcdef"
    assert by_length.answer.finish is FinishReason.LENGTH
    own = replace(REQUEST, writer=Writer.DRAFT, revises=True)
    by_draft = await tell(Scripted([preview(0, "a"), preview(1, "b")]), request=own)
    assert (by_draft.text, by_draft.answer.figures.device_tokens) == ("ab", 2)


async def test_a_client_that_revises_sees_guesses_and_the_targets_own_text() -> None:
    request = replace(REQUEST, revises=True)
    told = await tell(
        Scripted([emit(0, "ab"), GONE, preview(2, "cd"), BACK, withdraw(3, "d"), emit(2, "cfa")]),
        request=request,
    )
    assert told.text == "abcfa"
    shown = [event for event in told.ours if "mode" not in event]
    assert shown == [{"guess": {"start": 2, "texts": ["c", "d"]}}, {"retract": 3}]
    assert told.answer.figures.device_tokens == 0


async def test_a_client_that_revises_keeps_the_guess_if_it_is_whole_and_allowed() -> None:
    request = replace(REQUEST, revises=True, fallback=Fallback.DRAFT)
    told = await tell(Scripted([emit(0, "ab"), GONE, preview(2, "cd"), preview(4, "e~")]), request=request)
    assert told.text == "abcde"
    assert told.answer.figures.device_tokens == 4
    assert told.answer.finish is FinishReason.STOP


@pytest.mark.parametrize(("step", "expected"), [(0.0, 0.0), (3.0, 3.0)])
async def test_the_estimated_speedup_is_over_streaming_at_the_verifiers_pace(
    step: float, expected: float
) -> None:
    """Tokens are a second apart by the test's clock; a step of the verifier takes `step` seconds."""
    told = await tell(Scripted([emit(0, "ab"), emit(2, "cd")], streaming_time=step))
    assert told.answer.figures.estimated_speedup == expected
