"""Clients that stream named texts, and take them up again whenever their connection breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from urllib.parse import quote

from benchmarks.faults.draws import Job
from benchmarks.faults.reading import Reading, Violation
from benchmarks.http_stream import Answer, BrokenError, HttpClient

PAUSE = 0.05
"""Seconds before a client whose connection broke comes back."""

PATIENCE = 240.0
"""Seconds without any byte, reconnects included, after which a text counts as lost: on a busy machine a
verifier takes a minute to start."""


class Client:
    """Asks the daemon at `address`. `on_text` is called with a stream's name whenever new text of it came."""

    def __init__(self, address: str, token: str, on_text: Callable[[str], None]) -> None:
        self.reading: Reading | None = None  # the text that it streams now
        self.num_cuts = 0
        self._address, self._token = address, token
        self._on_text = on_text
        self._http: HttpClient | None = None

    def cut(self) -> None:
        """Break its connection."""
        if self._http is not None:
            self._http.cut()

    async def stream(self, name: str, job: Job) -> Reading:
        """A text from its request to its end. Raises `Violation` if it is lost, doubled or out of order."""
        reading = self.reading = Reading(name)
        heard_at = time.monotonic()
        while not reading.done:
            before = len(reading.data)
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._connection(reading, job)
            except BrokenError:
                self.num_cuts += 1
                await asyncio.sleep(PAUSE)
            except TimeoutError as error:
                raise Violation(f"{name}: a connection stayed open for {PATIENCE:g} s") from error
            now = time.monotonic()
            heard_at = now if len(reading.data) > before else heard_at
            if now - heard_at > PATIENCE:
                raise Violation(f"{name}: nothing came for {PATIENCE:g} s")
        self.reading = None
        return reading

    async def again(self, name: str) -> bytes:
        """A stream that has ended, from its beginning; then it is deleted."""
        while True:
            try:
                async with HttpClient(self._address, self._token) as http:
                    answer = await http.ask("GET", f"/v1/stream?conv_id={quote(name)}&from=0")
                    found = await http.body()
                if answer.status != 200:
                    raise Violation(f"{name}: cannot be read again: {answer.status} {found[:200]!r}")
                await self._delete(name)
                return found
            except BrokenError:
                await asyncio.sleep(PAUSE)

    async def _delete(self, name: str) -> None:
        async with HttpClient(self._address, self._token) as http:
            await http.ask("DELETE", f"/v1/stream?conv_id={quote(name)}")

    async def _connection(self, reading: Reading, job: Job) -> None:
        """One, for as long as it lasts. A request that was lost may have begun the text, so before it is sent
        again the client looks."""
        async with HttpClient(self._address, self._token) as self._http:
            http = self._http
            reading.num_connections += 1
            if reading.num_connections > 1:
                answer = await http.ask(
                    "GET", f"/v1/stream?conv_id={quote(reading.name)}&from={len(reading.data)}"
                )
                if await self._is_new(reading, answer, http):
                    reading.num_connections = 0
                    return
            else:
                answer = await http.ask("POST", job.path, job.body, {"x-conversation-id": reading.name})
            await self._read(reading, answer, http)

    async def _is_new(self, reading: Reading, answer: Answer, http: HttpClient) -> bool:
        """Whether the text had not begun. Raises `Violation` if it had."""
        if answer.status != 404:
            return False
        if reading.data:
            said = await http.body()
            raise Violation(f"{reading.name}: lost after {len(reading.data)} bytes: {said[:200]!r}")
        return True

    async def _read(self, reading: Reading, answer: Answer, http: HttpClient) -> None:
        if answer.status in (429, 503):
            raise BrokenError("busy")
        if answer.status != 200:
            said = await http.body()
            raise Violation(f"{reading.name}: was answered {answer.status} {said[:300]!r}")
        async for chunk in http.chunks():
            if reading.feed(chunk):
                self._on_text(reading.name)
        if not reading.done:
            raise BrokenError("the daemon went away in good order")
