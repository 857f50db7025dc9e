"""Attacks on a daemon: by programs of its machine, and by verifiers that lie."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import stat
import time
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

from common.pb import verifier_pb2 as pb
from forerun.prompts import bundled
from lab.benchmarks.faults.draws import Kind, draw_job
from lab.benchmarks.faults.run import RunSettings, run
from lab.benchmarks.faults.stage import RealStage
from lab.benchmarks.http_stream import BrokenError
from tests.attacks.honest import WORDS, events
from tests.attacks.stages import DaemonStage, Lie, Write, expect, log_bytes, opened, response, silent
from tests.fuzz.laws import Broken

Over = asyncio.Event
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


# The disk ---------------------------------------------------------------------------------------------------


async def full_disk(stage: DaemonStage, over: Over) -> None:
    """The disk is full in the middle of a text, and the daemon is killed.

    A client that comes back either gets its text exactly or hears that it cannot.
    """
    body = completion(max_tokens=300, stream=True)
    whole = await read_named(stage, "whole", body)
    for name, heals in (("stays-full", False), ("heals", True)):
        seen = await read_named(stage, name, body, most=10)
        pid = stage.daemon.program.pid
        entry = max((stage.state / "journal").glob("*.jsonl"), key=os.path.getmtime)
        limit = max(entry.stat().st_size, log_bytes(stage.daemon) + 8192) + 1500
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        seen = await read_named(stage, name, body, seen, most=60)
        if heals:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            seen = await read_named(stage, name, body, seen, most=90)
        await stage.restart(signal.SIGKILL)
        seen = await resumed(stage, name, body, seen)
        expect(
            text_of(whole).startswith(text_of(seen)),
            f"{name}: the text is not what it was: {text_of(seen)[:200]!r}",
        )


Event = tuple[int, dict[str, Any]]


async def read_named(
    stage: DaemonStage, name: str, body: dict[str, Any], seen: Sequence[Event] = (), most: int = 1 << 30
) -> list[Event]:
    """Read a named stream from the event after those seen, until `most` are known or it ends."""
    found, headers = list(seen), {"x-conversation-id": name}
    if found:
        headers["last-event-id"] = str(found[-1][0])
    async with stage.http() as http:
        answer = await http.ask("POST", "/v1/completions", body, headers)
        if answer.status != 200:
            raise BrokenError(f"{answer.status}: {(await http.body())[:200]!r}")
        rest, number = b"", 0
        async for chunk in http.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: {"):
                    found.append((number, json.loads(line[6:])))
                    if len(found) >= most:
                        return found
    return found


async def resumed(stage: DaemonStage, name: str, body: dict[str, Any], seen: list[Event]) -> list[Event]:
    """Come back as clients do, again and again for a while. What was seen, if nothing more is to be had."""
    deadline = time.monotonic() + 8.0
    while time.monotonic() < deadline:
        last = {"last-event-id": str(seen[-1][0])}
        async with stage.http() as http:
            answer = await http.ask("GET", f"/v1/stream?conv_id={name}", None, last)
            if answer.status == 200:
                return [*seen, *[(0, event) async for event in events(http)]]
            await http.body()
        if answer.status == 404:
            return seen
        await asyncio.sleep(0.5)
    return seen


def text_of(found: Sequence[Event]) -> str:
    """The text in these events."""
    return "".join(
        choice["text"] for _, event in found if "error" not in event for choice in event["choices"]
    )


async def names_that_fail(stage: DaemonStage, over: Over) -> None:
    """Named streams whose start fails: by characters that no file can hold, and by a folder that is gone."""
    body, odd = completion(stream=True), completion(stream=True, user="\ud800")

    async def ask(name: str, asked: dict[str, Any]) -> int:
        status, _, _ = await stage.ask("/v1/completions", asked, {"x-conversation-id": name})
        return status

    first = await ask("odd", odd)
    expect(first < 500, f"a user that is half a character was answered {first}")
    if first == 200:
        await stage.ask("/v1/stream?conv_id=odd", method="DELETE")
    expect(await ask("odd", body) == 200, "a name whose start failed is not free")
    writing = asyncio.create_task(stage.ask("/v1/completions", completion(max_tokens=60, user="\ud800")))
    await asyncio.sleep(0.5)
    status, _, _ = await stage.ask("/v1/sessions")
    expect(status == 200, f"/v1/sessions was answered {status}")
    await writing
    journal = stage.state / "journal"
    journal.rename(aside := stage.state / "aside")
    try:
        for number in range(260):
            await ask(f"gone-{number % 257}", completion(stream=True, max_tokens=1))
    finally:
        if journal.exists():  # the daemon may make it anew
            for each in aside.iterdir():
                each.rename(journal / each.name)
        else:
            aside.rename(journal)
    for name in ("gone-0", "fresh"):
        status = await ask(name, body)
        if status == 429:
            raise Broken("260 streams that never began have taken all names")
        if name == "gone-0" and status == 409:
            raise Broken("a name whose start failed is not free")
        expect(status == 200, f"the stream {name} was answered {status}")


async def rights_of_files(stage: DaemonStage, over: Over) -> None:
    """Token, texts and process file are their owner's alone."""
    await read_named(stage, "private", completion(stream=True), most=3)
    expect(stat.S_IMODE(stage.state.stat().st_mode) == 0o700, "the state folder is open to others")
    for path in (stage.state / "token", stage.state / "edge.pid", *(stage.state / "journal").iterdir()):
        expect(stat.S_IMODE(path.stat().st_mode) == 0o600, f"{path.name} is open to others")


async def clock_ahead(stage: DaemonStage, over: Over) -> None:
    """The wall clock is set a day ahead. A stream that ended a second ago is still there."""
    body = completion(stream=True)
    seen = await read_named(stage, "ended", body)
    stage.daemon.program.send(signal.SIGUSR1)
    await asyncio.sleep(0.2)
    status, _, _ = await stage.ask("/v1/stream?conv_id=ended&from=0")
    expect(status == 200, f"a stream that ended a second ago was answered {status}")
    expect(len(seen) > 5, "the text has no events")


# Programs of the machine ------------------------------------------------------------------------------------


async def slow_heads(stage: DaemonStage, over: Over) -> None:
    """More connections than the daemon may have files, each with half a request's head and no token."""
    await _slow_requests(stage, b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", 20.0)


async def slow_bodies(stage: DaemonStage, over: Over) -> None:
    """As many by a program that has the token; each keeps the end of its body to itself."""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {stage.address}\r\nContent-Length: 900\r\n"
        f"Authorization: Bearer {stage.token}\r\n\r\n"
    )
    await _slow_requests(stage, head.encode() + b'{"prompt": "', 40.0)


async def _slow_requests(stage: DaemonStage, part: bytes, longest: float) -> None:
    """Others are answered meanwhile, and the connections are cut within `longest` seconds."""
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
        await _until_healthy(stage, began + 25.0)
        await asyncio.sleep(max(0.0, began + longest - time.monotonic()))
        cut = 0
        for reader, _ in peers:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(0.001):
                    await reader.read()
                cut += 1
                continue
            cut += reader.at_eof()
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


async def burst(stage: DaemonStage, over: Over) -> None:
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


async def large_texts(stage: DaemonStage, over: Over) -> None:
    """4 MB to turn into tokens, and a million tokens to turn into text."""
    async with prompt_health(stage, 1.0):
        for body in ({"content": " " * 3_900_000}, {"content": "a" * 3_900_000}):
            await stage.ask("/v1/tokenize", body)
        await stage.ask("/v1/completions", completion(prompt=" " * 3_900_000))
        await stage.ask("/v1/detokenize", {"tokens": [7] * 1_300_000})


async def named_in_utf8(stage: DaemonStage, over: Over) -> None:
    """A stream named é can be found again, or is refused."""
    body = completion(stream=True)
    status, _, _ = await stage.ask("/v1/completions", body, {"x-conversation-id": "é"})
    if status == 400:
        return
    expect(status == 200, f"answered {status}")
    status, _, _ = await stage.ask("/v1/stream?conv_id=%C3%A9&from=0")
    expect(status == 200, f"the stream is there and cannot be found: {status}")


async def left_in_the_body(stage: DaemonStage, over: Over) -> None:
    """A client that leaves in the middle of a body is no defect of the daemon."""
    host, _, port = stage.address.rpartition(":")
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {stage.address}\r\nContent-Length: 900\r\n"
            f"Authorization: Bearer {stage.token}\r\n\r\n"
        )
        writer.write(head.encode() + b'{"prompt": "')
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()
    await asyncio.sleep(0.5)
    log = stage.daemon.log.read_text("utf-8", "replace")
    expect("Traceback" not in log, "the log has a traceback")


async def control_words(stage: DaemonStage, over: Over) -> None:
    """A chat's content that spells a control token is text, and no control token."""
    word = "<|endoftext|>"

    async def length(content: str) -> int:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        status, _, answer = await stage.ask("/v1/chat/completions", body)
        expect(status == 200, f"answered {status}: {answer[:200]!r}")
        found: int = json.loads(answer)["usage"]["prompt_tokens"]
        return found

    expect(await length(f"x = 1{word * 9}") - await length("x = 1") > 2 * 9, f"{word} became a control token")


async def slow_grammar(stage: DaemonStage, over: Over) -> None:
    """A schema that takes gigabytes to compile, for a text that the draft writes alone."""
    _, _, models = await stage.ask("/v1/models")
    cards = json.loads(models)["data"]
    draft = next((card["id"] for card in cards if card["meta"]["writer"] == "draft"), cards[-1]["id"])
    schema = {"type": "integer", "multipleOf": 9999991}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    asked = {"model": draft, "messages": [{"role": "user", "content": "1"}], "response_format": form}
    async with prompt_health(stage):
        for body in (asked, {**asked, "model": cards[0]["id"]}):
            try:
                async with asyncio.timeout(10):
                    status, _, answer = await stage.ask("/v1/chat/completions", {**body, "max_tokens": 8})
            except TimeoutError:
                raise Broken(f"no answer of {body['model']} within 10 s") from None
            expect(status < 500 or status == 503, f"answered {status}: {answer[:200]!r}")


async def http_without_rights(stage: DaemonStage, over: Over) -> None:
    """Tokens, hosts, origins, paths, bodies and framing that are not right: nothing comes through."""
    good = f"Authorization: Bearer {stage.token}\r\n"
    host, port = stage.address.split(":")
    own = f"Host: {stage.address}\r\n"
    post = "Content-Type: application/json\r\nContent-Length: {}\r\n"

    def posted(body: str, more: str = good) -> str:
        return f"POST /v1/completions HTTP/1.1\r\n{own}{more}{post.format(len(body))}\r\n{body}"

    shut = {
        "no token": f"GET /v1/models HTTP/1.1\r\n{own}\r\n",
        "wrong token": f"GET /v1/models HTTP/1.1\r\n{own}Authorization: Bearer {'a' * 43}\r\n\r\n",
        "token in the query": f"GET /v1/models?token={stage.token} HTTP/1.1\r\n{own}\r\n",
        "two tokens": posted("{}", "Authorization: Bearer x\r\nAuthorization: Basic y\r\n"),
        "traversal": f"GET /healthz/../v1/models HTTP/1.1\r\n{own}\r\n",
        "escaped traversal": f"GET /healthz/%2e%2e/v1/models HTTP/1.1\r\n{own}\r\n",
        "double slash": f"GET //v1/models HTTP/1.1\r\n{own}\r\n",
        "absolute form": f"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\n{good}\r\n",
        "rebinding": f"GET /v1/models HTTP/1.1\r\nHost: evil.example:{port}\r\n{good}\r\n",
        "foreign origin": f"GET /v1/models HTTP/1.1\r\n{own}Origin: https://evil.example\r\n{good}\r\n",
        "null origin": posted("{}", good + "Origin: null\r\n"),
        "not JSON": posted("{"),
        "no object": posted("[1]"),
        "deep JSON": posted("[" * 90_000),
        "not a number": posted('{"prompt": "x", "temperature": NaN}'),
        "a number without end": posted('{"prompt": "x", "max_tokens": ' + "9" * 4000 + "}"),
        "unknown field": posted('{"prompt": "x", "tokens": 1}'),
        "large body": f"POST /v1/completions HTTP/1.1\r\n{own}{good}{post.format(10**12)}\r\n",
        "negative length": f"POST /v1/completions HTTP/1.1\r\n{own}{good}{post.format(-1)}\r\n",
        "two lengths": posted("{}", good + "Content-Length: 3\r\n"),
        "length and chunks": posted("{}", "Transfer-Encoding: chunked\r\n"),
        "long head": f"GET /v1/models HTTP/1.1\r\n{own}X: {'x' * 200_000}\r\n\r\n",
    }  # fmt: skip
    for words, request in shut.items():
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.encode())
        head = b""
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                head = await reader.readuntil(b"\r\n")
        writer.transport.abort()
        status = int(head.split()[1]) if head else 400
        expect(400 <= status < 500, f"{words} was answered {status}")
    status, _, _ = await stage.ask("/v1/models")
    expect(status == 200, f"an honest request was answered {status}")


async def many_streams(stage: DaemonStage, over: Over) -> None:
    """200 streams at once where 256 may wait: all come whole."""

    async def one() -> str:
        async with stage.http() as http:
            answer = await http.ask("POST", "/v1/completions", completion(stream=True, max_tokens=10))
            expect(answer.status == 200, f"a stream was answered {answer.status}")
            return "".join([event["choices"][0]["text"] async for event in events(http) if event["choices"]])

    texts = await asyncio.gather(*(one() for _ in range(200)))
    expect(len(set(texts)) == 1 and bool(texts[0]), f"200 equal requests had {len(set(texts))} texts")


async def kills(stage: DaemonStage, over: Over) -> None:
    """Daemon and verifiers are killed while clients read; each text is compared with one without faults."""
    prompts, folder = tuple(bundled()), stage.folder / "kills"
    folder.mkdir(parents=True)
    jobs = tuple(draw_job(3, number, prompts) for number in range(2))
    weights = dict.fromkeys(Kind, 0.0) | {Kind.DAEMON_KILL: 3.0, Kind.KILL: 1.0}
    async with RealStage(folder) as processes:
        found = await run(processes, jobs, RunSettings(faults=3, seed=3, clients=2, weights=weights))
    expect(not found.violation, found.violation)
    expect(found.texts > 0, "no text was compared")


# Verifiers that lie -----------------------------------------------------------------------------------------


async def unfit_verifiers(stage: DaemonStage, over: Over) -> None:
    """Verifiers of another protocol or vocabulary: no prompt is sent to them, and the client hears why."""
    assert stage.liar is not None, "the stage lies"
    truth = pb.DescribeResponse()
    truth.CopyFrom(stage.liar.description)
    lies: dict[str, dict[str, Any]] = {
        "protocol 99": {"protocol_version": 99},
        "no vocabulary": {"vocab_size": 0},
        "100,001 end tokens": {"eos_token_ids": [1] * 100_001},
    }
    stage.liar.lie = silent
    for words, fields in lies.items():
        stage.liar.description.CopyFrom(truth)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(stage.liar.description, name)[:] = value
            else:
                setattr(stage.liar.description, name, value)
        stage.liar.num_opened = 0
        await stage.restart(signal.SIGKILL)
        try:
            async with asyncio.timeout(8):
                status, _, _ = await stage.ask("/v1/completions", completion())
        except TimeoutError:
            status = 0
        expect(not stage.liar.num_opened, f"a prompt was sent to a verifier of {words}")
        expect(status >= 500, f"the request of a client was answered {status} beside a verifier of {words}")
    stage.liar.description.CopyFrom(truth)
    await stage.restart(signal.SIGKILL)


def saying(*messages: bytes, then_silent: bool = False) -> Lie:
    """What an honest verifier says first, and then these."""

    async def lie(request: pb.SessionRequest, write: Write) -> None:
        await write(opened(request))
        for message in messages:
            await write(message)
        if then_silent:
            await silent(request, write)

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


async def false_ends(stage: DaemonStage, over: Over) -> None:
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


async def tokens_that_are_none(stage: DaemonStage, over: Over) -> None:
    """Ids beyond the vocabulary, and bytes that are no message."""
    start = await length_of_words(stage)
    lies = {
        "the first id beyond": saying(commit(start, 3072)),
        "a large id": saying(commit(start, 2**31 - 1)),
        "no protobuf": saying(b"\xff" * 30),
    }
    await faults_of_the_verifier(stage, lies, (502,))


async def lying_sessions(stage: DaemonStage, over: Over) -> None:
    """Responses in any order, out of bounds, or without end."""
    start = await length_of_words(stage)
    noise = Random(1).randbytes(4000)
    lies = {
        "commit before opened": _only(commit(start, 5)),
        "twice opened": _twice_opened,
        "commit in the past": saying(commit(0, 5)),
        "commit in the future": saying(commit(start + 900, 5)),
        "nothing committed": saying(commit(start), then_silent=True),
        "credit without end": saying(commit(start, 5, credit=2**32 - 1), then_silent=True),
        "more than asked for": saying(commit(start, *[5] * 5000)),
        "log-probabilities of nobody": saying(commit(start, 5, logprobs=[float("nan")] * 50)),
        "piece of noise": saying(*[b"\x2a\xa3\x1f\x0a\xa0\x1f" + noise] * 50),
        "idle": saying(*[response(idle=pb.Idle())] * 2000, then_silent=True),
        "padding": saying(pb.SessionResponse(padding=[b""] * 300_000).SerializeToString()),
        "large": saying(pb.SessionResponse(padding=[bytes(7 * MIB)]).SerializeToString()),
        "drain for ever": saying(*[response(drain=pb.Drain(grace_us=2**32 - 1))] * 50),
        "finish twice": saying(*[response(finish=pb.Finish(reason=pb.FINISH_REASON_CANCELLED))] * 2),
        "nothing at all": silent,
    }
    async with prompt_health(stage):
        await faults_of_the_verifier(stage, lies, (0, 200, 400, 429, 500, 502, 503, 504))


def _only(message: bytes) -> Lie:
    async def lie(request: pb.SessionRequest, write: Write) -> None:
        await write(message)

    return lie


async def _twice_opened(request: pb.SessionRequest, write: Write) -> None:
    for _ in range(2):
        await write(opened(request))


TEMPLATES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 'a'.ljust(4000000000) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ " + "[" * 3000,
)


async def hostile_templates(stage: DaemonStage, over: Over) -> None:
    """Chat templates that reach for objects, loop, recurse or fill the memory."""
    assert stage.liar is not None, "the stage lies"
    body = {"messages": [{"role": "user", "content": "hello"}]}
    for source in TEMPLATES:
        stage.liar.description.chat_template = source
        await stage.restart(signal.SIGKILL)
        async with prompt_health(stage):
            async with asyncio.timeout(15):
                status, _, answer = await stage.ask("/v1/apply-template", body)
        expect(status in (502, 503), f"{source[:60]} was answered {status}: {answer[:160]!r}")
