"""Attacks on a daemon by programs of its machine."""

import asyncio
import contextlib
import json
import time
from typing import Any

from edge_client.api.listening import REQUEST_TIME
from lab.benchmarks.http_stream import BrokenError
from tests.attacks.honest import WORDS, events
from tests.attacks.stages import DaemonStage, expect, log_bytes
from tests.fuzz.laws import Broken

MIB = 1 << 20
BUSY = 3.0
"""Seconds in which /healthz must be answered, whatever goes on; a busy machine has its own delays."""


def completion(**fields: Any) -> dict[str, Any]:
    """A request's body."""
    return {"prompt": WORDS, "max_tokens": 20, "temperature": 0, "ignore_eos": True, **fields}


async def slow_heads(stage: DaemonStage) -> None:
    """More connections than the daemon may have files, each with half a request's head and no token.

    Others are answered when these have had their time, and the connections are cut.
    """
    part, longest = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", REQUEST_TIME + 5.0
    before = log_bytes(stage.daemon)
    host, _, port = stage.address.rpartition(":")
    peers = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

    async def half() -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(3):
                peer = await asyncio.open_connection(host, int(port))
            peer[1].write(part)
            peers.append(peer)

    began = time.monotonic()
    try:
        for _ in range(22):
            await asyncio.gather(*(half() for _ in range(50)))
        await _until_healthy(stage, began + longest)
        await asyncio.sleep(max(0.0, began + longest - time.monotonic()))
        cut = 0
        for reader, _ in peers:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(0.001):
                    await reader.read()
                cut += 1
                continue
            cut += reader.at_eof() or reader.exception() is not None  # closed, or reset
        left = f"{len(peers) - cut} of {len(peers)} half requests stand after {longest:g} s"
        expect(cut > 0.9 * len(peers), left)
    finally:
        for _, writer in peers:
            writer.transport.abort()
    grown = log_bytes(stage.daemon) - before
    expect(grown < MIB, f"the log has grown by {grown >> 20} MiB")


async def _until_healthy(stage: DaemonStage, deadline: float) -> None:
    while True:
        try:
            async with asyncio.timeout(BUSY):
                await stage.ask("/healthz")
            return
        except (BrokenError, TimeoutError):
            if time.monotonic() > deadline:
                raise Broken("the daemon answers nobody while slow connections stand") from None
            await asyncio.sleep(0.2)


async def burst(stage: DaemonStage) -> None:
    """120 streams at once where 72 have a place. What is refused is refused by its status."""

    async def one() -> tuple[int, bool, bool]:
        async with stage.http() as http:
            answer = await http.ask("POST", "/v1/completions", completion(stream=True))
            advised = "retry-after" in answer.headers
            if answer.status != 200:
                await http.body()
                return answer.status, advised, False
            return 200, advised, any(["error" in event async for event in events(http)])

    found = await asyncio.gather(*(one() for _ in range(120)))
    late = sum(failed for _, _, failed in found)
    expect(not late, f"{late} streams were answered 200 and then refused")
    refused = [(status, advised) for status, advised, _ in found if status != 200]
    expect(all(each == (429, True) for each in refused), f"refusals were {sorted(set(refused))}")
    expect(len(refused) <= 60, f"{len(refused)} of 120 were refused, and 72 have a place")


async def control_words(stage: DaemonStage) -> None:
    """A chat's content that spells a control token is text, and no control token."""
    word = "<|endoftext|>"

    async def length(content: str) -> int:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        status, _, answer = await stage.ask("/v1/chat/completions", body)
        expect(status == 200, f"answered {status}: {answer[:200]!r}")
        found: int = json.loads(answer)["usage"]["prompt_tokens"]
        return found

    expect(await length(f"x = 1{word * 9}") - await length("x = 1") > 2 * 9, f"{word} became a control token")
