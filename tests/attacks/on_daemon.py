"""Attacks on a daemon: by programs of its machine, and by verifiers that lie."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from common.pb import verifier_pb2 as pb
from edge_client.api.listening import REQUEST_TIME
from lab.benchmarks.http_stream import BrokenError
from tests.attacks.honest import WORDS, events
from tests.attacks.stages import DaemonStage, Lie, Write, expect, log_bytes, opened, response, silent
from tests.fuzz.laws import Broken

MIB = 1 << 20
BUSY = 3.0
"""Seconds in which /healthz must be answered, whatever goes on; a busy machine has its own delays."""


def completion(**fields: Any) -> dict[str, Any]:
    """A request's body."""
    return {"prompt": WORDS, "max_tokens": 20, "temperature": 0, "ignore_eos": True, **fields}


@contextlib.asynccontextmanager
async def prompt_health(stage: DaemonStage, longest: float = BUSY) -> AsyncIterator[None]:
    """/healthz is answered in time as long as the block runs. Raises `Broken` if it was not."""
    slowest = 0.0

    async def ask() -> None:
        nonlocal slowest
        while True:
            began = time.monotonic()
            with contextlib.suppress(BrokenError, TimeoutError):
                async with asyncio.timeout(30):
                    await stage.ask("/healthz")
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.1)

    asking = asyncio.create_task(ask())
    try:
        yield
        await asyncio.sleep(0.2)
    finally:
        asking.cancel()
        await asyncio.wait([asking])
    expect(slowest < longest, f"/healthz took {slowest:.1f} s")


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


ENDLESS_TEMPLATE = "{% for a in range(9**9) %}{% for b in range(9**9) %}{% endfor %}{% endfor %}"


async def endless_template(stage: DaemonStage) -> None:
    """A template that a verifier sends so that the daemon computes without end."""
    assert stage.liar is not None, "the stage lies"
    truth = pb.DescribeResponse()
    truth.CopyFrom(stage.liar.description)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    stage.liar.description.chat_template = ENDLESS_TEMPLATE
    await stage.restart(signal.SIGKILL)
    async with prompt_health(stage), asyncio.timeout(30):
        status, _, answer = await stage.ask("/v1/apply-template", body)
    expect(status in (200, 502, 503), f"answered {status}: {answer[:160]!r}")
    stage.liar.description.CopyFrom(truth)
    await stage.restart(signal.SIGKILL)


def saying(*messages: bytes) -> Lie:
    """What an honest verifier says first, and then these."""

    async def lie(request: pb.SessionRequest, write: Write) -> None:
        await write(opened(request))
        for message in messages:
            await write(message)

    return lie


def commit(request_length: int, *tokens: int, **more: Any) -> bytes:
    """A Commit that follows a prompt of this length."""
    return response(commit=pb.Commit(start=request_length, tokens=tokens, **more))


async def faults_of_the_verifier(stage: DaemonStage, lies: dict[str, Lie], allowed: Sequence[int]) -> None:
    """Play each lie to a request. Raises `Broken` unless it is answered as the verifier's fault."""
    assert stage.liar is not None, "the stage lies"
    for words, lie in lies.items():
        stage.liar.lie = lie
        try:
            async with asyncio.timeout(6):
                status, _, answer = await stage.ask("/v1/completions", completion())
        except TimeoutError:
            expect(0 in allowed, f"{words}: no answer")
            continue
        expect(status in allowed, f"{words}: answered {status}: {answer[:160]!r}")
    stage.liar.lie = silent


async def length_of_words(stage: DaemonStage) -> int:
    """Tokens of the prompt."""
    _, _, answer = await stage.ask("/v1/tokenize", {"content": WORDS})
    found: int = json.loads(answer)["count"]
    return found


async def false_ends(stage: DaemonStage) -> None:
    """A text that is over before it began, or cancelled by nobody, is not told as whole."""
    end = await length_of_words(stage) - 1

    def finish(reason: pb.FinishReason, at: int = end) -> bytes:
        return response(finish=pb.Finish(reason=reason, position=at))

    lies = {
        "length after nothing": saying(finish(pb.FINISH_REASON_LENGTH)),
        "stop after nothing": saying(finish(pb.FINISH_REASON_STOP)),
        "cancelled by nobody": saying(finish(pb.FINISH_REASON_CANCELLED)),
        "length after one": saying(commit(end + 1, 300), finish(pb.FINISH_REASON_LENGTH, end + 1)),
    }
    await faults_of_the_verifier(stage, lies, (502,))


async def tokens_that_are_none(stage: DaemonStage) -> None:
    """Ids beyond the vocabulary, and bytes that are no message."""
    start = await length_of_words(stage)
    lies = {
        "the first id beyond": saying(commit(start, 3072)),
        "a large id": saying(commit(start, 2**31 - 1)),
        "no protobuf": saying(b"\xff" * 30),
    }
    await faults_of_the_verifier(stage, lies, (502,))
