"""One answer, followed to its end: over connections that break and a daemon that is started again.

The daemon keeps a named stream for a while (`X-Conversation-Id`): whoever comes back with the number of the
last event goes on after it. Where it is gone, the same request with the same seed gives the same text, so it
is asked again and what was told already is passed over.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from urllib.parse import quote

from common.errors import CapacityError, Code, ForerunError, UnavailableError, UserError
from edge_client.local_client import LocalClient, ServerEvent
from forerun.chat.asking import Json
from forerun.chat.parts import Anew, Ended, Mode, Note, Part, Run, StoppingError, Text, read_parts

DONE = "[DONE]"
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to find the daemon again; the last one stays."""

PATIENCE = 60.0
"""Seconds without a daemon after which an answer is given up; a service manager restarts one in two."""


class Following:
    """One answer. Iterate over `parts()` once; `text` is what has come.

    Args: find, the daemon that runs now (raises `UnavailableError` if none does); path and body, the request;
    patience, seconds; sleep and clock, the system's.
    """

    def __init__(
        self,
        find: Callable[[], LocalClient],
        path: str,
        body: Json,
        *,
        patience: float = PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.text = ""
        self.num_resumes = 0
        self._find, self._path, self._body = find, path, body
        self._patience, self._sleep, self._clock = patience, sleep, clock
        self._name = ""
        self._last_id = ""
        self._overlap: Overlap | None = None
        self._is_over = False
        self._until: float | None = None  # once lost: when to give up, unless more text comes

    def parts(self) -> Iterator[Part]:
        """As they come. Raises the `ForerunError` that ends the answer; what has come stands."""
        events = self._ask()
        while True:
            try:
                for event in events:
                    yield from self._take(event)
                    if self._is_over:
                        self.stop()
                        return
                lost: ForerunError = UnavailableError("the daemon ended the answer before it was whole")
            except ToldError:
                raise  # the daemon is there, and its word counts
            except UnavailableError as error:
                if not self._last_id:
                    raise
                lost = error
            yield Note("the daemon has gone away; waiting for it")
            events = self._again(lost)
            del lost  # it holds the frames, and so the socket, of the connection that broke
            yield Note("the daemon is back; the answer goes on")

    def stop(self) -> None:
        """The daemon may forget the answer; if it is being written, it ends. Nobody there is as good."""
        try:
            if self._name:
                self._find().delete(f"/v1/stream?conv_id={quote(self._name)}")
        except ForerunError:
            pass

    # one connection -----------------------------------------------------------------------------------------

    def _ask(self) -> Iterator[ServerEvent]:
        self._name, self._last_id = f"forerun-{secrets.token_hex(8)}", ""
        return self._find().events(self._path, self._body, headers={"X-Conversation-Id": self._name})

    def _take(self, event: ServerEvent) -> Iterator[Part]:
        self._last_id = event.id or self._last_id
        if event.data == DONE:
            self._is_over = True
            return
        for part in self._read(event):
            for each in self._new(part):
                if isinstance(each, Text):
                    self.text += each.text
                    self._until = None
                elif isinstance(each, Anew):
                    self.text = ""
                yield each

    def _read(self, event: ServerEvent) -> Iterator[Part]:
        try:
            yield from read_parts(event.json())
        except StoppingError:
            raise
        except UnavailableError as error:
            raise ToldError(str(error)) from error

    def _new(self, part: Part) -> Iterator[Part]:
        """What of it was not told before."""
        if self._overlap is None:
            yield part
            return
        yield from self._overlap.take(part)
        if self._overlap.is_over:
            self._overlap = None

    # the next one -------------------------------------------------------------------------------------------

    def _again(self, lost: ForerunError) -> Iterator[ServerEvent]:
        """The events after those that came, as soon as the daemon is there. Raises `lost` after a while."""
        if self._until is None:
            self._until = self._clock() + self._patience
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            self._sleep(pause)
            try:
                if (events := self._kept()) is None:
                    events = self._asked_again()
                self.num_resumes += 1
                return events
            except (UnavailableError, CapacityError) as error:
                if self._clock() >= self._until:
                    raise lost from error
        raise AssertionError("pauses do not end")

    def _kept(self) -> Iterator[ServerEvent] | None:
        """What the daemon still has of the stream; None if it is gone, or was broken off."""
        try:
            headers = {"Last-Event-ID": self._last_id}
            return _begun(self._find().events(f"/v1/stream?conv_id={quote(self._name)}", headers=headers))
        except UserError as error:
            if error.code is Code.FAILED_PRECONDITION:  # not let in
                raise
        return None

    def _asked_again(self) -> Iterator[ServerEvent]:
        """The same text from its beginning."""
        last_id = self._last_id
        try:
            events = _begun(self._ask())
        except ForerunError:
            self._last_id = last_id  # still in the middle of an answer
            raise
        if events is None:
            self._last_id = last_id
            raise UnavailableError("the daemon ended the answer before it began")
        self._overlap = Overlap(self.text) if self.text else None
        return events


class ToldError(UnavailableError):
    """The daemon's own word that nobody can be reached."""


@dataclass(slots=True)
class Overlap:
    """Passes over what was told of a text that comes again. If it is another text, all of it is told."""

    told: str
    seen: str = ""
    is_over: bool = False

    def take(self, part: Part) -> Iterator[Part]:
        match part:
            case Text():
                yield from self._text(part)
            case Ended():
                if not self.is_over and self.seen != self.told:
                    yield from self._anew()
                yield part
            case Note() | Mode():
                yield part
            case _:
                return  # guesses stand behind the text, which is not there yet

    def _text(self, part: Text) -> Iterator[Part]:
        self.seen += part.text
        if self.told.startswith(self.seen):
            self.is_over = self.seen == self.told
        elif self.seen.startswith(self.told):
            self.is_over = True
            yield Text(_last(part.runs, len(self.seen) - len(self.told)))
        else:
            yield from self._anew()

    def _anew(self) -> Iterator[Part]:
        self.is_over = True
        yield Anew()
        yield Text((Run(self.seen, "", 1),))


def _last(runs: tuple[Run, ...], length: int) -> tuple[Run, ...]:
    """The last `length` characters of them."""
    found = list[Run]()
    for run in reversed(runs):
        if length <= 0:
            break
        found.append(Run(run.text[-length:], run.origin, run.tokens))
        length -= len(run.text)
    return tuple(reversed(found))


def _begun(events: Iterator[ServerEvent]) -> Iterator[ServerEvent] | None:
    """The same events, the first of which must have come; None if there are none."""
    first = next(events, None)
    return None if first is None else chain((first,), events)
