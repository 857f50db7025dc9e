"""Runs a daemon as a process of its own, and reads its streams as a client."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lab.benchmarks.http_stream import BrokenError, HttpClient
from lab.benchmarks.processes import LoggedProcess, attempts, free_port, own_places
from lab.benchmarks.stream_forms import FORMS, Form
from lab.demo_models import DRAFT_GGUF


class Violation(Exception):
    """Reports a broken stream, or a text that differs from the one without faults; names the stream."""


@dataclass(frozen=True, slots=True)
class Told:
    """Holds a stream's content, without its division into events and without the tokens' origins."""

    text: str
    num_tokens: int  # by the events' own origins
    tokens: tuple[str, ...]  # where log-probabilities were asked for
    finish: str
    usage: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Reading:
    """Joins a stream at its client: all bytes so far, and the whole events among them."""

    name: str
    form: Form = FORMS["/v1/completions"]
    data: bytearray = field(default_factory=bytearray)
    events: list[Any] = field(default_factory=list)
    num_texts: int = 0  # events with text in them
    done: bool = False
    num_connections: int = 0
    _read: int = 0  # bytes of whole events
    _last_id: int = 0

    def feed(self, chunk: bytes) -> bool:
        """Add bytes; return whether text was among them. Raises `Violation` for an event out of place."""
        self.data += chunk
        before, separator = self.num_texts, self.form.separator
        while (end := self.data.find(separator, self._read)) >= 0:
            frame = bytes(self.data[self._read : end])
            self._read = end + len(separator)
            lines = [line for line in frame.split(b"\n") if not line.startswith(b":")]  # comments
            self._take(b"\n".join(lines))
        return self.num_texts > before

    def _take(self, frame: bytes) -> None:
        if frame.startswith(b"event: ping\n"):
            return  # keeps a silent connection open, and has no number
        if self.done:
            raise Violation(f"{self.name}: {frame[:200]!r} came after the end")
        if frame == self.form.done:
            self.done = True
            return
        event = json.loads(self._numbered(frame) if self.form.is_numbered else frame)
        if error := self.form.error(event):
            raise Violation(f"{self.name}: ended with an error: {error}")
        self.events.append(event)
        self.num_texts += bool(self.form.text(event))
        self.done = self.form.is_end(event)

    def _numbered(self, frame: bytes) -> bytes:
        """Return the data of an event. Raises `Violation` unless it is the next one."""
        head, _, data = frame.partition(b"\ndata: ")
        self._last_id += 1
        if head.partition(b"\nevent: ")[0] != b"id: %d" % self._last_id:
            raise Violation(f"{self.name}: event {self._last_id} was due and {head!r} came")
        return data

    def told(self) -> Told:
        """Return the stream's text. Raises `Violation` unless the stream has exactly one end."""
        finishes, usages = self.form.finishes(self.events), self.form.usages(self.events)
        if len(finishes) != 1 or len(usages) != 1:
            raise Violation(f"{self.name}: {len(finishes)} ends and {len(usages)} counts of its tokens")
        counts = {name: count for name, count in usages[0].items() if isinstance(count, int)}
        return Told(
            "".join(map(self.form.text, self.events)),
            sum(map(num_tokens, self.events)),
            self.form.logprobs(self.events),
            finishes[0],
            tuple(sorted(counts.items())),
        )

    @property
    def figures(self) -> dict[str, Any]:
        """Return the daemon's figures of the text, from the last event that has figures."""
        state: dict[str, Any] = next(
            event["forerun"] for event in reversed(self.events) if "proposed" in event.get("forerun", {})
        )
        return state


def num_tokens(event: dict[str, Any]) -> int:
    """Count the tokens that an event brings, by its origins."""
    return sum(count for _, _, count in event.get("forerun", {}).get("origins", ()))


class DaemonProcess:
    """Runs a daemon with folders of its own below `folder`. An async context manager, ready when entered."""

    def __init__(self, folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        common = ["--draft", str(DRAFT_GGUF), "--threads", "1", "--listen", self.address, "--no-api-auth"]
        log, places = folder / "daemon.log", own_places(folder) | dict(environment or {})
        self.child = LoggedProcess("daemon", "edge", *common, *options, log=log, environment=places)

    async def __aenter__(self) -> Self:
        try:
            await self.child.spawn()
            await self.until_ready()
        except BaseException:
            await self.child.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.child.close()

    async def until_ready(self) -> None:
        """Wait until the daemon answers and finds every verifier ready."""
        async for _ in attempts():
            self.child.check()
            with contextlib.suppress(BrokenError):
                status = await self.ask("/v1/status")
                if all(each["health"] == "ready" for each in status["verifiers"]):
                    return

    async def ask(self, path: str) -> Any:
        """Return the JSON at `path`."""
        async with HttpClient(self.address) as http:
            await http.ask("GET", path)
            return json.loads(await http.body())

    async def text(self, body: dict[str, Any]) -> tuple[Reading, list[tuple[float, int]]]:
        """Stream one completion; return for each event with tokens its arrival and number of tokens."""
        reading, arrivals = Reading("text"), list[tuple[float, int]]()
        asked = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        async with HttpClient(self.address) as http:
            await http.ask("POST", "/v1/completions", {**asked, "forerun": {"origins": True}, **body})
            async for chunk in http.chunks():
                now = time.monotonic()
                known = len(reading.events)
                reading.feed(chunk)
                arrivals += [(now, count) for count in map(num_tokens, reading.events[known:]) if count]
        return reading, arrivals
