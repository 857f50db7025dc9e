"""A text's events as server-sent events, or gathered into one object."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from common.errors import ForerunError
from edge_client.api.errors import api_error
from edge_client.api.shapes import FINISHES, Heading, Json, Shape
from edge_client.daemon.admission import Place
from edge_client.daemon.answer import Answer, AnswerEvent, Difference, Guess, ModeChange, Piece, Retract
from edge_client.daemon.device import Device, Live
from edge_client.daemon.request import Begun, TextRequest
from edge_client.text import Origin, Words, Written

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"
KEEP_ALIVE_TIME = 10.0
"""Seconds without an event after which a comment is sent: proxies give up on silent connections."""


@dataclass(frozen=True, slots=True)
class Telling:
    """How one response is told."""

    heading: Heading
    shape: Shape
    request: TextRequest
    client: str
    words: Words | None  # to spell log-probabilities, if they were asked for
    include_usage: bool
    origins: bool  # tell of every token who wrote it; of the device's own it is always told


def frame(number: int, chunk: Json) -> bytes:
    """One server-sent event. Its number is what `Last-Event-ID` names."""
    return b"id: %d\ndata: %s\n\n" % (number, json.dumps(chunk, ensure_ascii=False).encode())


Part = tuple[Json, Begun]
"""A chunk, and the tokens that came with it: of its own text, or held back until more is known."""

NOTHING = Begun()


async def parts(
    device: Device, telling: Telling, place: Place | None = None, resumed: bool = False
) -> AsyncGenerator[Part]:
    """A text in chunks, the last of which says why it ended, and how it went. Errors are a chunk, too.

    `place` is the text's own in the queue. A `resumed` text was begun before and goes on without the
    chunks of a beginning.
    """
    heading, shape = telling.heading, telling.shape
    for chunk in () if resumed else shape.first(heading):
        yield chunk, NOTHING
    try:
        async with device.writing(telling.request, telling.client, place) as live:
            answer = live.answer
            yield _said(telling, {"mode": answer.account.mode, "notes": live.notes}), NOTHING
            told = len(answer.tokens)
            async with contextlib.aclosing(answer.events()) as events:
                async for event in events:
                    for chunk in _told(telling, event):
                        new = answer.since(told)
                        told += len(new.tokens)
                        yield chunk, new
            final = shape.chunk(heading, (), None, finish_word(answer))
            yield {**final, "forerun": summary(live)}, answer.since(told)
            if telling.include_usage:
                yield {**final, "choices": [], "usage": usage(answer)}, NOTHING
    except ForerunError as error:
        yield api_error(error).body, NOTHING
    except Exception as error:  # outermost frame of a response: its reader must learn that it ended
        logger.exception("! a text failed")
        yield api_error(error).body, NOTHING


async def whole(device: Device, telling: Telling) -> Json:
    """The whole text at once. Raises the `ForerunError` that ended it."""
    written = list[Written]()
    async with device.writing(telling.request, telling.client) as live:
        answer = live.answer
        async with contextlib.aclosing(answer.events()) as events:
            async for event in events:
                if isinstance(event, Piece):
                    written += event.written
        body = telling.shape.whole(telling.heading, written, telling.words, finish_word(answer))
        found = {**body, "usage": usage(answer), "forerun": summary(live)}
    if telling.origins or answer.account.device_tokens:
        found["forerun"]["origins"] = runs_of(written)
    return found


def finish_word(answer: Answer) -> str:
    """OpenAI's reason."""
    assert answer.finish is not None, "asked for at the end"
    return FINISHES[answer.finish]


def usage(answer: Answer) -> Json:
    """Tokens of prompt and text."""
    return _usage(len(answer.request.prompt), len(answer.tokens))


def left_to_say(telling: Telling, frames: Sequence[bytes]) -> list[bytes] | None:
    """What is missing of a stream whose text was told to its end; None if it was not. The daemon may have
    been killed between any two events."""
    if not frames or frames[-1] == DONE:
        return [] if frames else None
    last = json.loads(frames[-1].partition(b"data: ")[2] or b"{}")
    if "error" in last:
        return []
    if last.get("usage"):
        return [DONE]
    if not any(choice["finish_reason"] for choice in last.get("choices", ())):
        return None
    if not telling.include_usage:
        return [DONE]
    request = telling.request
    counts = _usage(len(request.prompt), len(request.begun.tokens))
    last.pop("forerun", None)
    return [frame(_number(frames[-1]) + 1, {**last, "choices": [], "usage": counts}), DONE]


def not_kept(telling: Telling, why: str) -> Json:
    """A chunk for a stream that was to outlive the daemon and does not any more."""
    words = f"this stream is not kept on disk any more ({why}), so it ends with the daemon"
    return _said(telling, {"notes": [words]})


def summary(live: Live) -> Json:
    """Our own object at the end of a response."""
    answer = live.answer
    found: Json = {**answer.figures.as_json(), "seed": answer.request.sampling.seed, "notes": live.notes}
    if answer.stopped_by is not None:
        found["stopped_by"] = answer.stopped_by
    if answer.differences:
        found["differences"] = [_difference(each) for each in answer.differences]
    return found


def runs_of(written: list[Written] | tuple[Written, ...]) -> list[list[Any]]:
    """Text by who wrote it, joined where the writer stays: [text, origin, number of tokens]."""
    runs = list[list[Any]]()
    for each in written:
        if runs and runs[-1][1] == each.origin.value:
            runs[-1][0] += each.text
            runs[-1][2] += 1
        else:
            runs.append([each.text, each.origin.value, 1])
    return runs


async def keep_alive(comment: Any, total: Any) -> None:
    """Call `comment(KEEP_ALIVE)` whenever nothing has come for a while, until cancelled."""
    before = -1
    while True:
        now = total()
        if now == before:
            comment(KEEP_ALIVE)
            now = total()
        before = now
        await asyncio.sleep(KEEP_ALIVE_TIME)


def _usage(prompt: int, text: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": text, "total_tokens": prompt + text}


def _number(event: bytes) -> int:
    """Of an event's frame."""
    return int(event.partition(b"\n")[0].removeprefix(b"id: "))


def _told(telling: Telling, event: AnswerEvent) -> Iterator[Json]:
    match event:
        case Piece():
            chunk = telling.shape.chunk(telling.heading, event.written, telling.words, None)
            if telling.origins or any(each.origin is Origin.DEVICE for each in event.written):
                chunk["forerun"] = {"origins": runs_of(event.written)}
            yield chunk
        case ModeChange():
            yield _said(telling, {"mode": event.standing.mode.value, "why": event.standing.why})
        case Guess():
            yield _said(telling, {"guess": {"start": event.start, "texts": list(event.texts)}})
        case Retract():
            yield _said(telling, {"retract": event.start})
        case Difference():
            yield _said(telling, {"difference": _difference(event)})
        case _:
            assert_never(event)


def _said(telling: Telling, ours: Json) -> Json:
    """A chunk without text, for what OpenAI has no words for."""
    return {**telling.shape.chunk(telling.heading, (), None, None), "forerun": ours}


def _difference(difference: Difference) -> Json:
    return {"place": difference.place, "device": difference.device, "target": difference.target}
