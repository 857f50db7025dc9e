"""Peers that hold on to what they get: each costs little, is cut in time, and no honest session notices."""

import asyncio
import gc
import itertools
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
import pytest

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.server import outbox
from cloud_verifier.server.calls import MOST_TABLES, Framing
from common.errors import CapacityError
from common.messages import Open
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingParams
from common.wire import grpc_options
from common.wire.codec import encode_request
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from tests.support.raw_http2 import DATA, HEADERS, PING, PREFACE, SETTINGS, WINDOW_UPDATE, Frame, RawPeer
from tests.support.tiny import EOS, TABLE, VOCABULARY, System, generation, running
from tests.support.waiting import until
from tests.worlds.models import target_alone

pytestmark = pytest.mark.grpc

DESCRIBE = b"/forerun.v1.VerifierService/Describe"
SAMPLING = SamplingParams(max_tokens=30, ignore_eos=True)


def opening(max_tokens: int) -> bytes:
    """An `Open` on the wire."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return encode_request(Open((1, 2, 3), sampling, VOCABULARY.fingerprint)).SerializeToString()


async def others_go_on(system: System) -> bool:
    """Whether the text of somebody else is the target's."""
    async with VerifierChannel(system.address) as channel:
        run = generation(channel, None, SAMPLING, make_policy("off"))
        async for _ in run:
            pass
        return run.session.text == target_alone((1, 2, 3), SAMPLING, EOS)


async def until_headers(peer: RawPeer) -> Frame:
    """The headers that end the first call of a peer."""
    async with asyncio.timeout(30):
        while (frame := await peer.frame()) is not None:
            if frame.kind == HEADERS and frame.stream == 1:
                return frame
    raise AssertionError("the connection was closed before the call was ended")


def ask_for_tables(peer: RawPeer, streams: Iterable[int]) -> None:
    question = pb.DescribeRequest(include_vocabulary=True).SerializeToString()
    for stream in streams:
        peer.call(stream, DESCRIBE)
        peer.message(stream, question)


async def test_an_edge_that_never_reads_is_held_and_then_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FULL", 100 * outbox.TOKEN_BYTES)  # the tiny target's texts are short
    async with running(SchedulerConfig(stall_timeout=0.2)) as system, RawPeer(system.server.port) as peer:
        peer.greet(window=40)  # bytes that may be on their way: two messages
        peer.call(1)
        peer.message(1, opening(max_tokens=500))
        scheduler = system.worker.scheduler
        await until(lambda: any(each.stalled_at for each in scheduler.sessions.values()), 30)
        (session,) = scheduler.sessions.values()
        assert 100 <= len(session.tree.committed) < 300
        assert await others_go_on(system)
        await until(lambda: not scheduler.sessions, 30)
        assert scheduler.counters.num_finished["DEADLINE_EXCEEDED"] == 1
        assert len(session.tree.committed) < 300
        scheduler.check_integrity()


async def test_an_edge_that_reads_slowly_gets_its_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FULL", 50 * outbox.TOKEN_BYTES)
    async with running() as system, RawPeer(system.server.port) as peer:
        stalls = list[bool]()
        told = system.worker.scheduler.on_stalled

        def on_stalled(key: int, stalled: bool, now: float) -> None:
            stalls.append(stalled)
            told(key, stalled, now)

        monkeypatch.setattr(system.worker.scheduler, "on_stalled", on_stalled)
        peer.greet(window=40)
        peer.call(1)
        peer.message(1, opening(max_tokens=400))
        async with asyncio.timeout(30):
            await until(lambda: stalls)  # before it reads
            while not system.worker.scheduler.counters.num_finished.get("LENGTH"):
                frame = await peer.frame()
                assert frame is not None
                if frame.kind == DATA and frame.payload:
                    await asyncio.sleep(0.002)
                    more = len(frame.payload).to_bytes(4, "big")
                    peer.send(Frame(WINDOW_UPDATE, 0, 0, more), Frame(WINDOW_UPDATE, 0, 1, more))
        assert stalls[:2] == [True, False]


async def test_a_flood_of_pings_is_cut_and_others_go_on() -> None:
    async with running() as system, RawPeer(system.server.port) as peer:
        peer.greet()
        peer.send(*(Frame(PING, 0, 0, number.to_bytes(8, "big")) for number in range(100)))
        async with asyncio.timeout(30):
            await peer.until_closed()  # what it says of the reason may be lost with the connection
        assert await others_go_on(system)


@pytest.mark.parametrize(
    "said", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half a greeting", "no settings"]
)
async def test_a_connection_without_a_handshake_is_closed(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grpc_options.HANDSHAKE_TIMEOUT_MS == 10_000
    monkeypatch.setattr(grpc_options, "HANDSHAKE_TIMEOUT_MS", 300)
    async with running() as system, RawPeer(system.server.port) as peer:
        peer.send(said)
        async with asyncio.timeout(30):
            await peer.until_closed()


async def test_a_call_that_trickles_its_open_is_ended_in_time() -> None:
    async with running(SchedulerConfig(open_timeout=0.3)) as system, RawPeer(system.server.port) as peer:
        peer.greet()
        peer.call(1)
        peer.send(Frame(0x0, 0, 1, b"\x00\x00\x00\x10\x00" + b"\x0a"))  # 4,096 bytes are announced, one comes
        frame = await until_headers(peer)
        assert frame.kind != SETTINGS
        assert system.worker.scheduler.counters.num_refused["DEADLINE_EXCEEDED"] == 1


@pytest.mark.parametrize("compressed", [True, False])
async def test_a_message_costs_no_more_than_its_bytes(compressed: bool) -> None:
    """8 KB were 130 MB: 4 million empty entries of padding, under gzip."""
    bomb = b"\x7a\x00" * 100_000
    compression = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
    async with (
        running() as system,
        grpc.aio.insecure_channel(system.address, compression=compression) as channel,
    ):
        method: Any = channel.stream_stream("/forerun.v1.VerifierService/Session")
        call = method(iter([bomb]))
        if compressed:  # gRPC may close the call before its client has sent all of it
            refused = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL}
        else:
            refused = {grpc.StatusCode.INVALID_ARGUMENT}
        assert await call.code() in refused
        ask: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        question = ask(b"\x0a\x80\x80\x04" + bytes(65_536))
        assert await question.code() in refused
        assert await others_go_on(system)


async def test_a_refused_stream_leaves_nothing_behind_it() -> None:
    """Without a look of the garbage collector: what a stream has sent is freed when it ends."""
    async with running() as system, grpc.aio.insecure_channel(system.address) as channel:
        method: Any = channel.stream_stream("/forerun.v1.VerifierService/Session")
        gc.collect()
        gc.disable()
        try:
            for messages in ([b"\xff"], [b"\x12\x00"], [opening(500), b"\xff"], [opening(10_000)]):
                with pytest.raises(grpc.aio.AioRpcError):
                    async for _ in method(iter(messages)):
                        pass
            await system.worker.wait_until_gone()
            await until(lambda: not any(type(each) is Framing for each in gc.get_objects()), 30)
        finally:
            gc.enable()


async def test_a_peer_that_reads_no_token_table_holds_only_a_few() -> None:
    """Each has some 2 MB with a real model, and an answer that has no window waits for ever."""
    async with running() as system, VerifierChannel(system.address) as channel:
        for _ in range(2 * MOST_TABLES):
            assert (await channel.describe(include_vocabulary=True)).vocabulary == TABLE
        async with RawPeer(system.server.port) as peer:
            peer.greet(window=4)
            streams = itertools.count(1, 2)
            async with asyncio.timeout(30):
                while not await _is_full(channel):  # who looks takes a place, too, and may turn a call away
                    ask_for_tables(peer, itertools.islice(streams, MOST_TABLES))
                    await asyncio.sleep(0.05)
            with pytest.raises(CapacityError, match="being told the token table; ask again"):
                await channel.describe(include_vocabulary=True)
            assert (await channel.describe()).model == "tiny"
        async with asyncio.timeout(30):
            while await _is_full(channel):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def _is_full(channel: Any) -> bool:
    try:
        return (await channel.describe(include_vocabulary=True)).vocabulary is None
    except CapacityError:
        return True
