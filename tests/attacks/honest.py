"""The honest client: a process of its own, so that an attack cannot slow the clock that judges it."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from common.errors import ForerunError
from common.sampling import SamplingParams
from edge_client.core.effects import SessionConfig
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import VerifierChannel
from edge_client.network.client_tls import TlsSettings
from edge_client.network.generation import Generation
from lab.benchmarks.http_stream import BrokenError, HttpClient
from lab.rig import START_TIMEOUT, RigProcess
from simulator.figures import percentile

PROMPT = tuple(range(40, 64))
WORDS = "def parse_header(line):"
PATIENCE = 120.0
"""Seconds that an undisturbed text may take. On an idle machine it takes six."""


@dataclass(slots=True)
class Text:
    """A text as its reader saw it. `gaps` are seconds between one arrival and the next."""

    asked_tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    text: str = ""
    error: str = ""

    @property
    def p95(self) -> float:
        return percentile(self.gaps, 95) or 0.0


class Honest:
    """The process, seen from the one that attacks."""

    def __init__(self, child: RigProcess) -> None:
        self._child = child

    @classmethod
    async def start(cls) -> Self:
        child = RigProcess("honest client", module="tests.attacks.honest")
        await child.spawn()
        return cls(child)

    async def text(self, **asked: Any) -> Text:
        """One text. `asked` is what `answer` reads."""
        await self._child.write(asked)
        return Text(**await self._child.read(START_TIMEOUT))

    async def stop(self) -> None:
        await self._child.stop()


async def answer(asked: dict[str, Any]) -> Text:
    """The text that a line of standard input asks for: from the verifier or the daemon at `address`."""
    text = Text(asked["tokens"])
    arrivals = from_daemon if asked["kind"] == "daemon" else from_verifier
    before = 0.0
    try:
        async with asyncio.timeout(asked["patience"]):
            async for piece in arrivals(asked):
                now = time.monotonic()
                if before:
                    text.gaps.append(now - before)
                text.text, before = text.text + piece, now
    except (ForerunError, BrokenError) as error:
        text.error = str(error)
    except TimeoutError:
        text.error = f"not whole after {asked['patience']:g} s"
    return text


async def from_verifier(asked: dict[str, Any]) -> AsyncIterator[str]:
    """Tokens of a session without drafts. It does not reconnect: a stream that is cut is an error."""
    tls = asked.get("tls")
    files: Any = {name: Path(path) for name, path in (tls or {}).items()}
    settings = None if tls is None else TlsSettings(**files)
    async with VerifierChannel(asked["address"], tls=settings) as channel:
        fingerprint = (await channel.describe()).fingerprint
        sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=asked["tokens"], ignore_eos=True)
        config = SessionConfig(PROMPT, sampling, fingerprint, max_attempts=0, patience=None)
        generation = Generation(EdgeSession(config, make_policy("off")), channel, None)
        async for piece in generation:
            yield " ".join(map(str, (*piece.tokens, "")))


async def from_daemon(asked: dict[str, Any]) -> AsyncIterator[str]:
    """Pieces of a streamed completion."""
    body = {
        "prompt": WORDS, "max_tokens": asked["tokens"], "temperature": 0, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    async with HttpClient(asked["address"], asked["token"]) as http:
        found = await http.ask("POST", "/v1/completions", body)
        if found.status != 200:
            raise BrokenError(f"{found.status}: {(await http.body())[:200]!r}")
        async for event in events(http):
            if "error" in event:
                raise BrokenError(str(event["error"]))
            if event["choices"] and event["choices"][0]["text"]:
                yield event["choices"][0]["text"]


async def events(http: HttpClient) -> AsyncIterator[dict[str, Any]]:
    """The events of an answer, each a JSON object."""
    rest = b""
    async for chunk in http.chunks():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


async def _serve() -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(asdict(await answer(json.loads(line)))), flush=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(_serve())
