"""Laws of what is told of a stream's privacy: what the wire shows, not what was asked for or said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.messages import Open, Opened
from common.privacy import Privacy, stricter
from common.rpc.frames import DOWN_BYTES, STRICT_DOWN
from common.sampling import SamplingParams
from edge_client.held import Held, Holding

OFF, PADDED, STRICT = Privacy


def holding(told: Privacy | None, *sizes: int) -> Held | None:
    it = Holding()
    it.opened(Open((1,), SamplingParams(), b"", privacy=PADDED), told, PADDED, 0.0)
    for size in sizes:
        it.came(size)
    return it.held


def test_nothing_is_told_before_the_verifier_has_opened() -> None:
    it = Holding()
    it.came(9)
    assert it.held is None


def test_frames_that_keep_what_was_said_hold_it() -> None:
    assert holding(PADDED, *[DOWN_BYTES] * 3) == Held(PADDED, PADDED)
    assert holding(STRICT, *[STRICT_DOWN * DOWN_BYTES] * 3) == Held(PADDED, STRICT)


def test_one_frame_of_its_own_size_ends_that_for_good() -> None:
    assert holding(PADDED, DOWN_BYTES, 33, DOWN_BYTES) == Held(PADDED, OFF)
    assert holding(STRICT, DOWN_BYTES) == Held(PADDED, OFF)


def test_a_verifier_that_does_not_know_privacy_holds_none() -> None:
    assert holding(None, DOWN_BYTES, DOWN_BYTES) == Held(PADDED, OFF)


def test_status_pages_have_it_in_words() -> None:
    assert Held(STRICT, STRICT, 0.03).as_json() == {"up": "strict", "down": "strict", "cadence_ms": 30.0}
    assert Held(PADDED, OFF).as_json() == {"up": "padded", "down": "off", "cadence_ms": None}


# Over the real wire -----------------------------------------------------------------------------------------


@pytest.mark.grpc
@pytest.mark.parametrize("asked", Privacy)
@pytest.mark.parametrize("demanded", Privacy)
async def test_a_stream_tells_the_stricter_of_both_sides(asked: Privacy, demanded: Privacy) -> None:
    from edge_client.channel import VerifierChannel
    from edge_client.core.policies import make_policy
    from tests.drivers.tiny import generation, running

    sampling = SamplingParams(max_tokens=12, ignore_eos=True)
    async with running(privacy=demanded) as system, VerifierChannel(system.address) as channel:
        run = generation(channel, None, sampling, make_policy("off"), privacy=asked)
        async for _ in run:
            assert run.held is not None
            assert (run.held.up, run.held.down) == (stricter(asked, demanded),) * 2
        assert channel.held is not None
        assert channel.held.down is stricter(asked, demanded), "also when it is over"
        assert (channel.held.interval > 0) == (stricter(asked, demanded) is STRICT)


@pytest.mark.grpc
async def test_a_verifier_that_promises_and_does_not_pad_is_found_out() -> None:
    import grpc.aio

    from common.pb import verifier_pb2_grpc as pb_grpc
    from common.rpc.codec import encode_response
    from edge_client.channel import VerifierChannel

    class Liar(pb_grpc.VerifierServiceServicer):
        async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for _ in requests:
                yield encode_response(Opened(1, 32, privacy=PADDED))

    server = grpc.aio.server()
    pb_grpc.add_VerifierServiceServicer_to_server(Liar(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with VerifierChannel(f"127.0.0.1:{port}") as channel:
            heard = asyncio.Event()
            stream = channel.open(lambda message: heard.set(), lambda error: None)
            stream.send(Open((1, 2, 3), SamplingParams(), b"", privacy=PADDED))
            await heard.wait()
            assert channel.held == Held(PADDED, OFF)
            stream.abandon()
    finally:
        await server.stop(None)
