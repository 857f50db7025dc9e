"""Forms a text's response: a stream of events, or one object."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from starlette.responses import Response, StreamingResponse

from common.messages import FinishReason
from edge_client.formats.detokenizer import TextSpan, TokenOrigin, Words
from edge_client.formats.dialect import SSE, ChoiceEnd, Dialect, Heading, StopReason, Usage
from edge_client.formats.dialects import BY_NAME
from edge_client.formats.json_text import json_text
from edge_client.formats.message import ContentAdded, Message, MessageForm, MessagePart, arguments_object
from edge_client.formats.message_reader import MessageReader
from edge_client.texts.events import AnswerEvent, Json, TextAdded, origins_of
from edge_client.texts.queue import QueuePlace
from edge_client.texts.resume import NOTHING, Begun, StreamPart
from edge_client.texts.text_request import TextRequest
from edge_client.texts.text_service import Live, TextService

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """Specifies one response: its requests, its endpoint and its form."""

    kind: type[Dialect]
    heading: Heading
    requests: tuple[TextRequest, ...]  # one for each choice, those of one prompt together
    message: MessageForm
    client: str
    origins: bool  # show every token's writer; the device's own tokens always show it
    stream: bool = True
    ended: frozenset[int] = frozenset()  # choices whose end was sent by an earlier run
    pair: str = ""  # of draft model and verifiers
    asked_at: float | None = None  # when the request arrived, by the texts' clock; None: when it begins

    @property
    def n(self) -> int:
        """Return the choices of each prompt."""
        n: int = self.heading.form.get("n", 1)
        return n

    def dialect(self, words: Words) -> Dialect:
        """Return a new former of this response."""
        return self.kind(self.heading, words if self.requests[0].logprobs is not None else None)

    def to_json(self) -> Json:
        """Return all data needed to continue the text."""
        return {
            "shape": self.kind.name,
            "pair": self.pair,
            "heading": asdict(self.heading),
            "message": asdict(self.message),
            "client": self.client,
            "origins": self.origins,
            "requests": [request.to_json() for request in self.requests],
        }

    @classmethod
    def from_json(cls, head: Json, begun: Sequence[Begun], ended: frozenset[int]) -> ResponseSpec:
        """Return the spec of a response whose texts have begun.

        Raises `ValueError`, `KeyError` or `TypeError` for another version's JSON, and `UserError` for values
        that are no longer allowed.
        """
        requests = tuple(map(TextRequest.from_json, head["requests"]))
        started = (*begun, *(NOTHING for _ in requests))
        return cls(
            BY_NAME[head["shape"]],
            Heading(**head["heading"]),
            tuple(replace(each, begun=part) for each, part in zip(requests, started, strict=False)),
            MessageForm(**head["message"]),
            head["client"],
            head["origins"],
            ended=ended,
            pair=head["pair"],
        )


@dataclass(slots=True)
class _Choice:
    """Holds one text of a response while it is written."""

    reader: MessageReader
    prompt_read: asyncio.Event = field(default_factory=asyncio.Event)
    message: Message = field(default_factory=Message)
    end: ChoiceEnd | None = None
    usage: Usage | None = None  # at its end

    def feed(self, spans: Sequence[TextSpan]) -> Sequence[MessagePart]:
        """Add text to the message and return the parts that are certain now."""
        parts = self.reader.feed(spans)
        self.message.add(parts)
        return parts

    def finish(self, live: Live) -> tuple[Sequence[MessagePart], ChoiceEnd]:
        """End the text, which has been read whole. Return the message's rest and the end."""
        answer, figures = live.answer, live.answer.figures
        rest = self.reader.finish(answer.finish is FinishReason.LENGTH or answer.stopped_by is not None)
        self.message.add(rest)
        assert answer.finish is not None, "the text has ended"
        calls = self.message.calls
        is_cut = answer.stopped_by is not None and calls and arguments_object(calls[-1].arguments) is None
        finish = StopReason.CALLS if calls and not is_cut else StopReason.STOP
        finish = StopReason.LENGTH if answer.finish is FinishReason.LENGTH else finish
        self.end = ChoiceEnd(finish, answer.stopped_by, summary(live))
        self.usage = Usage(
            prompt=len(answer.request.prompt),
            cached=min(figures.cached, len(answer.request.prompt)),
            text=len(answer.tokens),
            reasoning=self.reader.num_reasoning,
            accepted=figures.accepted,
            rejected=figures.wasted,
        )
        return rest, self.end


class ResponseWriter:
    """Writes the texts of one response. `send` takes its parts, as they are written."""

    def __init__(
        self, texts: TextService, spec: ResponseSpec, dialect: Dialect, send: Callable[[StreamPart], None]
    ) -> None:
        self._texts, self._spec, self._dialect, self._send = texts, spec, dialect, send
        self.choices = [_Choice(MessageReader(spec.message)) for _ in spec.requests]

    async def write(self, places: Sequence[QueuePlace] = (), *, resumed: bool = False) -> None:
        """Write all texts. The last part holds their end. Raises the `ForerunError` that ends one.

        `places` are the texts' places in the queue. A `resumed` response goes on after what an earlier run
        sent.
        """
        if not resumed:
            prompt = len(self._spec.requests[0].prompt)
            self._send(StreamPart(self._dialect.first(Usage(prompt=prompt))))
        numbers = range(len(self.choices))
        tasks = [asyncio.create_task(self._write(at, places[at] if places else None)) for at in numbers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _write(self, index: int, place: QueuePlace | None) -> None:
        """Write one text. The part that ends the last text also ends the response."""
        spec, dialect, choice = self._spec, self._dialect, self.choices[index]
        first = self.choices[index - index % spec.n]  # of this prompt: the others find it in the prefix cache
        if choice is not first:
            await first.prompt_read.wait()
        async with self._texts.writing(spec.requests[index], spec.client, place, spec.asked_at) as live:
            answer = live.answer
            for spans in answer.begun():
                dialect.added(choice.feed(spans), {}, index)  # sent by the earlier run
                await asyncio.sleep(0)
            if index not in spec.ended:
                ours = {"mode": answer.account.mode, "notes": live.notes}
                self._send(StreamPart(dialect.added((), ours, index)))
            num_sent, last = len(answer.tokens), list[Json]()
            async with contextlib.aclosing(answer.events()) as events:
                async for event in events:
                    added = choice.feed(event.spans) if isinstance(event, TextAdded) else ()
                    if isinstance(event, TextAdded):
                        choice.prompt_read.set()
                    chunks = dialect.added(added, _ours(spec, event, added), index)
                    if isinstance(event, TextAdded) and event.ends:
                        # A resumed text holds them back again, unless their record has its end.
                        last += chunks
                        continue
                    new = answer.text.since(num_sent)
                    num_sent += len(new.tokens)
                    if chunks or new.tokens:
                        self._send(StreamPart(chunks, new, index))
            choice.prompt_read.set()
            rest, end = choice.finish(live)
            last += dialect.added(rest, {}, index) + dialect.choice_end(end, index)
            chunks = [] if index in spec.ended else last
            ends = self.ends
            is_last = len(ends) == len(self.choices)
            if is_last:
                chunks += dialect.end(ends[0], self.usage)
            self._send(StreamPart(chunks, answer.text.since(num_sent), index, ends=True, is_last=is_last))

    @property
    def ends(self) -> list[ChoiceEnd]:
        """Return the ends of the texts that have ended."""
        return [each.end for each in self.choices if each.end is not None]

    @property
    def usage(self) -> Usage:
        """Return the usage of all texts, which have ended. Each prompt counts once."""
        usages = [each.usage for each in self.choices if each.usage is not None]
        prompts = [usages[at : at + self._spec.n] for at in range(0, len(usages), self._spec.n)]
        return Usage(
            prompt=sum(of_one[0].prompt for of_one in prompts),
            cached=sum(max(each.cached for each in of_one) for of_one in prompts),
            text=sum(each.text for each in usages),
            reasoning=sum(each.reasoning for each in usages),
            accepted=sum(each.accepted for each in usages),
            rejected=sum(each.rejected for each in usages),
        )


async def whole(texts: TextService, spec: ResponseSpec) -> Json:
    """Return the response with the whole texts. Raises the `ForerunError` that ended one."""
    writer = ResponseWriter(texts, spec, spec.dialect(texts.words), lambda part: None)
    places = texts.admission.places(spec.client, len(spec.requests))
    try:
        await writer.write(places)  # the message is formed from its whole texts
    finally:
        for place in places:
            place.release()
    ended = list[tuple[Message, ChoiceEnd]]()
    for choice in writer.choices:
        assert choice.end is not None, "written whole"
        if spec.origins or choice.end.ours["device_tokens"]:
            choice.end.ours["origins"] = origins_of(choice.message.content)
        ended.append((choice.message, choice.end))
    return spec.dialect(texts.words).whole(ended, writer.usage)


class JsonResponse(Response):
    """Answers with a JSON value, whatever its strings and numbers are."""

    media_type = "application/json"

    def render(self, content: Json) -> bytes:
        return json_text(content, (",", ":")).encode()


def event_stream(body: AsyncIterator[bytes], media_type: str = SSE) -> Response:
    """Return a response of events."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # the latter: nginx does not buffer it
    return StreamingResponse(body, media_type=media_type, headers=headers)


def summary(live: Live) -> Json:
    """Return our own object at the end of a response."""
    answer = live.answer
    ours: Json = {**answer.figures.as_json(), "seed": answer.request.sampling.seed, "notes": live.notes}
    if answer.request.advised:
        ours["sampling_defaults"] = dict(answer.request.advised)
    if answer.stopped_by is not None:
        ours["stopped_by"] = answer.stopped_by
    if answer.differences:
        ours["differences"] = answer.differences
    return ours


def _ours(spec: ResponseSpec, event: AnswerEvent, added: Sequence[MessagePart]) -> Json:
    """Return our own object of an event. Its origins show the content and count the event's tokens once.

    Tokens without content have no text. Text that was held back comes after its tokens were counted.
    """
    if not isinstance(event, TextAdded):
        return event
    spans = [span for part in added if isinstance(part, ContentAdded) for span in part.spans]
    num_hidden = sum(span.num_tokens for span in event.spans) - sum(span.num_tokens for span in spans)
    if num_hidden > 0:
        spans.append(TextSpan("", event.spans[-1].origin, num_hidden))
    for at, span in enumerate(spans):
        num_known = min(max(0, -num_hidden), span.num_tokens)
        num_hidden += num_known
        spans[at] = replace(span, num_tokens=span.num_tokens - num_known)
    is_told = spec.origins or any(span.origin is TokenOrigin.DEVICE for span in spans)
    return {"origins": origins_of(spans)} if is_told and spans else {}
