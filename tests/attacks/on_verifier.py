"""Attacks on a verifier. Each is a client that does what it likes; what it must not achieve is in `table`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.request import urlopen

import grpc
import grpc.aio
from prometheus_client.parser import text_string_to_metric_families

from common.errors import CapacityError, ForerunError
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingParams
from common.wire.status import Status
from edge_client.core.effects import SessionConfig
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import OWN_CONNECTION, VerifierChannel
from edge_client.network.client_tls import TlsSettings
from edge_client.network.generation import Generation
from forerun.commands.dev_certs import Authority, spiffe_id
from tests.attacks.honest import PROMPT
from tests.attacks.stages import GRACE, HONEST, HOSTILE, TENANT_KEY, VerifierStage, expect, log_bytes
from tests.drivers.raw_http2 import (
    ACK,
    DATA,
    END_STREAM,
    PING,
    RST_STREAM,
    SESSION,
    WINDOW_UPDATE,
    Frame,
    RawPeer,
)
from tests.drivers.town import DOMAIN
from tests.fuzz.cases import Credential
from tests.fuzz.laws import Broken, check_status
from tests.fuzz.strangers import BAD, authorization
from tests.fuzz.wire import OVER, UNHEARD

Code = grpc.StatusCode
Over = asyncio.Event
"""Set when the honest text beside the attack has come to its end."""

DESCRIBE, CHECK = b"/forerun.v1.VerifierService/Describe", b"/grpc.health.v1.Health/Check"
EMPTY_PADDING = b"\x7a\x00"
MIB = 1 << 20
REFUSED = (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED)

SLOW_SCHEMA = 'start: %json {"type":"integer","multipleOf":9999991}'
AMBIGUOUS = "start: e\ne: e e e e | e e e | e e | /[a-z ]/ |"
"""75 bytes that take gigabytes to compile, and 48 with which every mask takes most of a second."""
LARGE_SCHEMA = 'start: %json {{"type":"integer","multipleOf":{}}}'
"""Numbers of 20,000 and more take 13 MiB each and a third of a second: less than what is refused."""


async def told(
    channel: grpc.aio.Channel,
    *messages: bytes,
    path: bytes = SESSION,
    metadata: Any = (),
    squeezed: bool = False,
    patience: float = 15.0,
    stays: bool = False,
) -> Status:
    """One call of raw messages, to its end; DEADLINE_EXCEEDED if that does not come.

    With `stays` the client keeps its half of the stream open, as a session needs it. A call is made again if
    gRPC's client has lost its status.
    """
    compression = grpc.Compression.Gzip if squeezed else None
    method: Any = channel.stream_stream(path.decode())
    status = UNHEARD
    for _ in range(5):
        call = method(metadata=metadata, compression=compression, timeout=patience)
        with contextlib.suppress(*OVER):
            for message in messages:
                await call.write(message)
            if not stays:
                await call.done_writing()
        with contextlib.suppress(*OVER):
            async for _ in call:
                pass
        details, trailers = await call.details(), await call.trailing_metadata()
        status = Status(await call.code(), details or "", tuple(trailers or ()))
        if status != UNHEARD:
            break
    return status


# Memory -----------------------------------------------------------------------------------------------------


async def compressed_padding(stage: VerifierStage, over: Over) -> None:
    """Messages of 8 MiB that are four million empty entries: 8 KB on the wire each."""
    bomb = EMPTY_PADDING * (8 * MIB // len(EMPTY_PADDING) - 8)
    async with stage.channel() as channel:
        for squeezed in (True, False):
            calls = [told(channel, bomb, metadata=stage.metadata(), squeezed=squeezed) for _ in range(24)]
            for status in await asyncio.gather(*calls):
                expect(status.code is not Code.OK, "a message of 8 MiB of padding was taken")
        for path in (CHECK, DESCRIBE):
            await asyncio.gather(*(told(channel, bomb, path=path, squeezed=True) for _ in range(24)))
    async with stage.channel() as channel:
        metadata, session = stage.metadata(), (stage.opening(), *[bomb] * 4)
        inside = [told(channel, *session, metadata=metadata, squeezed=True, stays=True) for _ in range(2)]
        await asyncio.gather(*inside)


async def slow_grammars(stage: VerifierStage, over: Over) -> None:
    """Seven streams with a schema that takes gigabytes to compile; each hangs up after a second."""
    async with stage.channel() as channel:
        await asyncio.gather(
            *(told(channel, stage.opening(grammar=SLOW_SCHEMA), patience=1.0, stays=True) for _ in range(7))
        )
        await asyncio.sleep(8.0)
        status = await told(channel, stage.opening(tokens=4, grammar="start: /[a-z]+/"), stays=True)
    expect(status.code is Code.OK, f"an honest grammar was answered {status.code.name}: {status.details}")


async def ambiguous_grammars(stage: VerifierStage, over: Over) -> None:
    """Eight sessions whose masks take most of a second each."""
    async with stage.channel() as channel:
        while not over.is_set():
            opening = stage.opening(tokens=1000, grammar=AMBIGUOUS, ignore_eos=True)
            await asyncio.gather(*(told(channel, opening, patience=6.0, stays=True) for _ in range(8)))


async def large_grammars(stage: VerifierStage, over: Over) -> None:
    """60 texts, four at a time, each with a large grammar of its own: together they would take 1 GiB."""
    few = asyncio.Semaphore(4)

    async def one(number: int) -> Status:
        opening = stage.opening(tokens=20, grammar=LARGE_SCHEMA.format(20_001 + number), ignore_eos=True)
        async with few:
            return await told(channel, opening, stays=True)

    async with stage.channel() as channel:
        found = await asyncio.gather(*map(one, range(60)))
    written = sum(status.code is Code.OK for status in found)
    expect(written > 40, f"{written} of 60 were written")  # else this shows nothing


async def drain_beside_a_compile(stage: VerifierStage, over: Over) -> None:
    """SIGTERM while a grammar is compiled that never comes to an end."""
    async with stage.channel() as channel:
        call = asyncio.create_task(
            told(channel, stage.opening(grammar=SLOW_SCHEMA), patience=30.0, stays=True)
        )
        await asyncio.sleep(1.0)
        await stage.verifier.drain(GRACE)
        await call


# Floods -----------------------------------------------------------------------------------------------------


class Flooder(RawPeer):
    """A raw peer that reads and forgets whatever comes, with windows that never close."""

    async def __aenter__(self) -> Flooder:
        await super().__aenter__()
        self.greet(window=2**31 - 1)
        self._credit()
        self._reader_task = asyncio.create_task(self._forget())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._reader_task.cancel()
        await super().__aexit__(*error)

    @property
    def is_cut(self) -> bool:
        return self._reader_task.done() or self.writer.is_closing()

    async def push(self, *frames: Frame | bytes) -> None:
        """Send, as fast as the other side takes it."""
        with contextlib.suppress(ConnectionError):
            self.send(*frames)
            await self.writer.drain()

    async def _forget(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                self._credit()

    def _credit(self) -> None:
        self.send(Frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))


async def empty_proposals(stage: VerifierStage, over: Over) -> None:
    """Eight sessions of one connection send proposals of nothing as fast as they can."""
    nothing = pb.SessionRequest(propose=pb.Propose()).SerializeToString()

    async def one(channel: grpc.aio.Channel) -> None:
        method: Any = channel.stream_stream(SESSION.decode())
        call = method(metadata=stage.metadata())
        reader = asyncio.create_task(_read_out(call))
        with contextlib.suppress(*OVER):
            await call.write(stage.opening(tokens=1000))
            while not over.is_set() and not call.done():
                await call.write(nothing)
        call.cancel()
        await reader

    async with stage.channel() as channel:
        await asyncio.gather(*(one(channel) for _ in range(8)))


async def _read_out(call: Any) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        async for _ in call:
            pass


def _whole_call(peer: RawPeer, stream: int, path: bytes, message: bytes) -> None:
    peer.call(stream, path)
    peer.send(Frame(DATA, END_STREAM, stream, b"\x00" + struct.pack(">I", len(message)) + message))


async def calls_without_identity(stage: VerifierStage, over: Over) -> None:
    """Complete calls of one connection after the other: health, refused sessions, unknown methods."""
    before = log_bytes(stage.verifier)
    kinds = itertools.cycle(((CHECK, b""), (SESSION, b"\x22\x02\x0a\x00"), (b"/nothing.Here/Nothing", b"")))
    while not over.is_set():
        async with Flooder(stage.port) as peer:
            for stream in itertools.count(1, 2):
                if over.is_set() or peer.is_cut:
                    break
                _whole_call(peer, stream, *next(kinds))
                if stream % 20 == 1:
                    await peer.push()
                    await asyncio.sleep(0.005)  # some 2,000 calls a second
        await asyncio.sleep(0.01)
    grown = log_bytes(stage.verifier) - before
    expect(grown < MIB, f"the log has grown by {grown >> 10} KiB")


async def resets(stage: VerifierStage, over: Over) -> None:
    """Streams that are opened and reset at once; some bring a long prompt."""
    prompt = stage.opening(prompt=tuple(range(20, 1920)))
    while not over.is_set():
        async with Flooder(stage.port) as peer:
            for stream in itertools.count(1, 2):
                if over.is_set() or peer.is_cut:
                    break
                peer.call(stream)
                if stream % 400 == 1:
                    peer.message(stream, prompt)
                peer.send(Frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big")))
                if stream % 100 == 1:
                    await peer.push()
                    await asyncio.sleep(0.005)  # some 10,000 streams a second
        await asyncio.sleep(0.01)


# Connections ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def idle_connections(port: int, number: int, source: str) -> AsyncIterator[list[socket.socket]]:
    """So many connections from one address, each greeted as HTTP/2 and then left alone."""
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(Frame(0x4, 0, 0, b""))
    peers = list[socket.socket]()
    try:
        for count in range(number):
            peer = socket.socket()
            peer.bind((source, 0))
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                peer.connect(("127.0.0.1", port))
            peers.append(peer)
            if count % 50 == 49:
                await asyncio.sleep(0.02)
                for each in peers[-50:]:
                    with contextlib.suppress(OSError):
                        each.send(greeting)
        yield peers
    finally:
        for each in peers:
            each.close()


async def newcomer(stage: VerifierStage, patience: float) -> None:
    """An edge that was not here before. Raises `Broken` if it is not answered in time."""
    deadline = time.monotonic() + patience
    while True:
        try:
            async with VerifierChannel(stage.address, tls=stage.tls) as channel, asyncio.timeout(patience):
                await channel.describe()
                return
        except (ForerunError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise Broken(f"a newcomer was not answered within {patience:g} s: {error}") from None
            await asyncio.sleep(0.2)


async def one_address(stage: VerifierStage, over: Over) -> None:
    """More idle connections from one address than the verifier takes in all."""
    async with idle_connections(stage.port, 4200, "127.0.0.2"):
        await newcomer(stage, 5.0)


async def few_descriptors(stage: VerifierStage, over: Over) -> None:
    """400 connections to a verifier that may open 160 files. Sessions that stand go on."""
    async with idle_connections(stage.port, 400, "127.0.0.2"):
        await over.wait()
    await newcomer(stage, 15.0)


async def half_scrapes(stage: VerifierStage, over: Over) -> None:
    """300 requests for the metrics page, each of which comes a byte a second."""
    host, _, port = stage.http.rpartition(":")
    writers = list[asyncio.StreamWriter]()

    async def trickle() -> None:
        while True:
            for writer in writers:
                if not writer.is_closing():
                    writer.write(b"x")
            await asyncio.sleep(1.0)

    trickling = asyncio.create_task(trickle())
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writers.append(writer)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x")
        deadline, page = time.monotonic() + 12.0, ""
        while not page:
            try:
                page = await asyncio.to_thread(metrics_page, stage)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Broken(f"the scraper was locked out for 12 s: {error}") from None
                await asyncio.sleep(0.2)
    finally:
        trickling.cancel()
        for writer in writers:
            writer.transport.abort()
    expect("forerun_sessions" in page, "the page is not whole")


async def unread_tables(stage: VerifierStage, over: Over) -> None:
    """Peers that ask for the token table, answer pings, and never read it."""
    question = pb.DescribeRequest(include_vocabulary=True).SerializeToString()

    async def is_full(channel: VerifierChannel) -> bool:
        try:
            return (await channel.describe(include_vocabulary=True)).vocabulary is None
        except CapacityError:
            return True

    async def answer_pings(peer: RawPeer) -> None:
        while (frame := await peer.frame()) is not None:
            if frame.kind == PING and not frame.flags & ACK:
                peer.send(Frame(PING, ACK, 0, frame.payload))

    async with RawPeer(stage.port) as peer, VerifierChannel(stage.address) as channel:
        peer.greet(window=4)
        answering = asyncio.create_task(answer_pings(peer))
        streams = itertools.count(1, 2)
        began = time.monotonic()
        while not await is_full(channel) and time.monotonic() < began + 3.0:
            for stream in itertools.islice(streams, 8):
                peer.call(stream, DESCRIBE)
                peer.message(stream, question)
            await asyncio.sleep(0.05)
        while await is_full(channel):
            expect(time.monotonic() < began + 20.0, "peers that do not read held all places for 20 s")
            await asyncio.sleep(0.5)
        answering.cancel()


# Messages ---------------------------------------------------------------------------------------------------


def abuses(stage: VerifierStage) -> dict[str, tuple[bytes, ...]]:
    """Conversations that break a rule of the protocol, by what is wrong."""
    mark = stage.described.fingerprint

    def opening(**fields: Any) -> bytes:
        whole = {"prompt": [1, 2, 3], "fingerprint": mark, **fields}
        return pb.SessionRequest(open=pb.Open(**whole)).SerializeToString()

    def sampled(**fields: Any) -> tuple[bytes]:
        return (opening(sampling=pb.Sampling(**{"max_tokens": 5, **fields})),)

    def after(**fields: Any) -> tuple[bytes, bytes]:
        sampling = pb.Sampling(max_tokens=30, ignore_eos=True)
        return opening(sampling=sampling), pb.SessionRequest(**fields).SerializeToString()

    def propose(**fields: Any) -> tuple[bytes, bytes]:
        return after(propose=pb.Propose(**fields))

    reals = (math.nan, math.inf, -1.0, 1e308)
    found: dict[str, tuple[bytes, ...]] = {
        f"{name} {value}": sampled(**{name: value})
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
        for value in reals
    }
    return found | {
        "bias beyond the vocabulary": sampled(logit_bias=[pb.LogitBias(token=2**31, bias=1.0)]),
        "many biases": sampled(logit_bias=[pb.LogitBias(token=1, bias=1.0)] * 3000),
        "no tokens": sampled(max_tokens=0),
        "all tokens": sampled(max_tokens=2**32 - 1),
        "empty prompt": (opening(prompt=[]),),
        "prompt beyond the vocabulary": (opening(prompt=[3072]),),
        "prompt beyond the positions": (opening(prompt=[1] * 5000),),
        "committed beyond the positions": (opening(committed=[1] * 5000),),
        "another fingerprint": (opening(fingerprint=b"x" * 32),),
        "long session id": (opening(session_id="x" * 300),),
        "control characters": (opening(session_id="a\nb"),),
        "log-probabilities of everything": (opening(logprobs=2**32 - 1),),
        "unknown rule": (opening(acceptance=pb.Acceptance(rule=99)),),  # type: ignore[arg-type]
        "grammar that is none": sampled(grammar="(" * 3000),
        "long grammar": sampled(grammar="x" * 70_000),
        "nothing": (b"",),
        "no protobuf": (b"\xff" * 40,),
        "proposal first": (pb.SessionRequest(propose=pb.Propose(tokens=[1])).SerializeToString(),),
        "twice open": (opening(), opening()),
        "draft beyond the vocabulary": propose(tokens=[3072], logprobs=b"\x00"),
        "dead parent": propose(tokens=[1], logprobs=b"\x00", parent_deltas=[900]),
        "duplicate siblings": propose(tokens=[1, 1], logprobs=b"\x00\x00", parent_deltas=[0, 0]),
        "anchor ahead": propose(tokens=[1], logprobs=b"\x00", anchor=2**31),
        "seen what never was": propose(seen_advance=2**31),
        "counts that do not agree": propose(tokens=[1, 2], logprobs=b"\x00"),
        "unknown member": (opening(), b"\x22\x00"),
        "large unknown member": (opening(), b"\x22\xa0\x8d\x06" + bytes(100_000)),
        "close and more": (*after(close=pb.Close()), b"\x12\x00"),
    }


async def broken_rules(stage: VerifierStage, over: Over) -> None:
    """Each rule of the protocol broken once; a hundred conversations."""
    async with stage.channel() as channel:
        for words, messages in abuses(stage).items():
            status = await told(channel, *messages, metadata=stage.metadata())
            if status.code is not Code.OK:
                try:
                    check_status(status, (Code.CANCELLED, Code.UNIMPLEMENTED))
                except Broken as error:
                    raise Broken(f"{words}: {error}") from None


async def name_of_the_folder(stage: VerifierStage, over: Over) -> None:
    """The target was given as a path on the server."""
    expect("/" not in stage.described.model, f"Describe shows the path {stage.described.model!r}")
    async with stage.channel() as channel:
        wrong = pb.Open(prompt=[1], fingerprint=stage.described.fingerprint, model="another")
        status = await told(channel, pb.SessionRequest(open=wrong).SerializeToString())
    expect("lab/demo_models/" not in status.details, f"a refusal shows the path: {status.details}")


# Identity ---------------------------------------------------------------------------------------------------


async def forged_tokens(stage: VerifierStage, over: Over) -> None:
    """Tokens that are expired, foreign, unsigned, bent or signed with what everybody knows."""
    assert stage.town is not None, "the stage asks for tokens"
    async with stage.channel(TlsSettings(stage.town.folder / "ca.crt")) as channel:
        for kind, at in itertools.product((*BAD, "none", "twice", "other scheme"), (3, 77, 210)):
            credential = Credential(kind, b'{"alg":"none","kid":"../../dev"}', at)
            if kind == "noise":
                credential = Credential(kind, b"e" * 7000, at)
            metadata = authorization(stage.town, credential)
            status = await told(channel, stage.opening(tokens=2), metadata=metadata)
            expect(status.code in REFUSED, f"a call whose token was {kind} was answered {status.code.name}")


async def forged_certificates(stage: VerifierStage, over: Over) -> None:
    """No certificate, a foreign authority's, an expired one, another domain's, a server's; and plain text."""
    import datetime

    assert stage.town is not None, "the stage asks for certificates"
    town, ca = stage.town, stage.town.folder / "ca.crt"
    day = datetime.timedelta(days=1)
    foreign = Authority(day).client([spiffe_id(DOMAIN, HOSTILE, "d1")])
    server = town.authority.server(["127.0.0.1"])
    pairs = {"a foreign authority": foreign, "a server": server}
    shown: dict[str, TlsSettings] = {"nobody": TlsSettings(ca)}
    for number, (kind, pair) in enumerate(pairs.items()):
        cert, key = town.put(f"bad{number}.crt", pair.cert), town.put(f"bad{number}.key", pair.key)
        shown[kind] = TlsSettings(ca, cert, key)
    now = datetime.datetime.now(datetime.UTC)
    shown["the past"] = town.device(spiffe_id(DOMAIN, HOSTILE, "d1"), end=now - datetime.timedelta(minutes=2))
    shown["another domain"] = town.device(spiffe_id("example.net", HOSTILE, "d1"))
    shown["two names"] = town.device(*(spiffe_id(DOMAIN, name, "d1") for name in (HOSTILE, HONEST)))
    for kind, tls in shown.items():
        async with stage.channel(tls) as channel:
            status = await told(channel, stage.opening(tokens=2), patience=4.0)
        good = (*REFUSED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
        expect(status.code in good, f"a certificate of {kind} was answered {status.code.name}")
    async with grpc.aio.insecure_channel(stage.address) as channel:
        status = await told(channel, stage.opening(tokens=2), patience=4.0)
    expect(status.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED), "plain text was answered")


async def cached_prompts(stage: VerifierStage, over: Over) -> None:
    """A prompt that another tenant has sent costs as much as one that nobody has; whatever the name."""
    prompt = tuple(100 + number * 7 % 2900 for number in range(600))

    async def hits(tenant: str) -> float:
        before = value_of(await asyncio.to_thread(metrics_page, stage), "vllm:prefix_cache_hits_total")
        async with stage.channel() as channel:
            opening, metadata = stage.opening(prompt, 2), stage.metadata(tenant)
            status = await told(channel, opening, metadata=metadata, stays=True)
        expect(status.code is Code.OK, f"tenant {tenant} was answered {status.code.name}: {status.details}")
        return value_of(await asyncio.to_thread(metrics_page, stage), "vllm:prefix_cache_hits_total") - before

    await over.wait()  # the honest text, too, looks into its cache
    await hits("A")
    for tenant in ("B", "A/../B", "a", "A%00", "A.B"):
        expect(await hits(tenant) == 0, f"{tenant} read what A had cached")
    expect(await hits("A") > 500, "the tenant itself reads nothing from its cache, so this shows nothing")


async def hostile_names(stage: VerifierStage, over: Over) -> None:
    """61 tenants whose names are long, quoted or look like metrics."""
    names = [f'x"}} 1\\n# {number}' for number in range(58)] + ["y" * 7000, 'a",b="c', "{}"]
    async with stage.channel() as channel:
        for name in names:
            await told(channel, stage.opening(tokens=1), metadata=((TENANT_KEY, name),), stays=True)
    page = await asyncio.to_thread(metrics_page, stage)
    tenants = {
        sample.labels["tenant"]
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "tenant" in sample.labels
    }
    expect(len(tenants) <= 4, f"the page has {len(tenants)} tenants")
    expect(all(len(each) <= 64 for each in tenants), "a label has more than 64 characters")


def metrics_page(stage: VerifierStage) -> str:
    """What a scraper gets. Raises `OSError`."""
    with urlopen(f"http://{stage.http}/metrics", timeout=4) as found:
        page: bytes = found.read()
    return page.decode()


def value_of(page: str, name: str) -> float:
    """Of a metric that has one value."""
    found = re.search(rf"^{re.escape(name)}(\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    expect(found is not None, f"the page has no {name}")
    assert found is not None
    return float(found[2])


# Crowds -----------------------------------------------------------------------------------------------------


async def crowd(
    stage: VerifierStage, number: int, tokens: int
) -> tuple[list[float], list[float], list[float]]:
    """So many sessions at once: the seconds of those that came whole, of those refused, and what those were
    advised to wait."""
    whole, refused, advised = list[float](), list[float](), list[float]()

    async def one(channel: VerifierChannel, place: int) -> None:
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        prompt = (20 + place, *PROMPT[:4])
        config = SessionConfig(prompt, sampling, stage.described.fingerprint, max_attempts=0, patience=None)
        began = time.monotonic()
        try:
            async for _ in Generation(EdgeSession(config, make_policy("off")), channel, None):
                pass
            whole.append(time.monotonic() - began)
        except CapacityError as error:
            refused.append(time.monotonic() - began)
            advised.append(error.retry_after or 0.0)

    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(VerifierChannel(stage.address, OWN_CONNECTION)) for _ in range(8)
        ]
        await asyncio.gather(*(one(channels[place % 8], place) for place in range(number)))
    return whole, refused, advised


async def crowd_at_the_door(stage: VerifierStage, over: Over) -> None:
    """500 sessions at a verifier of 64: those inside are equal, those outside hear it soon."""
    whole, refused, advised = await crowd(stage, 500, 20)
    expect(len(whole) + len(refused) == 500, f"{500 - len(whole) - len(refused)} sessions failed")
    expect(len(whole) >= 60, f"{len(whole)} of 64 places were used")
    expect(jain(whole) > 0.98, f"the pace was unequal: {jain(whole):.3f}")
    expect(max(refused) < 3.0, f"a refusal took {max(refused):.1f} s")
    expect(min(advised) > 0, "a refused session was not told when to come again")


async def equal_advice(stage: VerifierStage, over: Over) -> None:
    """500 sessions at a verifier of 64: those refused must not all come again at one time."""
    _, refused, advised = await crowd(stage, 500, 4)
    expect(len(refused) > 100, f"only {len(refused)} were refused")
    distinct = len({round(each, 3) for each in advised})
    expect(distinct > len(advised) // 10, f"{len(advised)} refused sessions were told {distinct} times")


async def full_house(stage: VerifierStage, over: Over) -> None:
    """500 sessions at a verifier of 512."""
    whole, refused, _ = await crowd(stage, 500, 12)
    expect(len(whole) == 500, f"{len(whole)} of 500 were whole, {len(refused)} refused")
    expect(jain(whole) > 0.98, f"the pace was unequal: {jain(whole):.3f}")


def jain(times: Sequence[float]) -> float:
    """Jain's index of rates: 1 if all are equal."""
    rates = [1 / each for each in times]
    return sum(rates) ** 2 / (len(rates) * sum(each * each for each in rates))
