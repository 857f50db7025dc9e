"""Laws of what is told of a stream's privacy: what the wire shows, not what was asked for or said."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from common.messages import Open, Opened
from common.privacy import Privacy
from common.sampling import SamplingParams
from common.wire.codec import encode_response
from common.wire.service import add_service
from edge_client.core.policies import make_policy
from edge_client.network.channel import Held, VerifierChannel
from edge_client.settings import load_config
from tests.cloud_verifier.configured import configured
from tests.support.tiny import generation, running

OFF, PADDED = Privacy


@pytest.mark.grpc
@pytest.mark.parametrize("asked", Privacy)
@pytest.mark.parametrize("demanded", Privacy)
async def test_a_stream_tells_the_stricter_of_both_sides(asked: Privacy, demanded: Privacy) -> None:
    sampling = SamplingParams(max_tokens=12, ignore_eos=True)
    stricter = PADDED if PADDED in (asked, demanded) else OFF
    async with running(privacy=demanded) as system, VerifierChannel(system.address) as channel:
        run = generation(channel, None, sampling, make_policy("off"), privacy=asked)
        async for _ in run:
            assert run.held is not None
            assert (run.held.up, run.held.down) == (stricter, stricter)
        assert channel.held is not None
        assert channel.held.down is stricter, "also when it is over"


@pytest.mark.grpc
@pytest.mark.parametrize("privacy", [PADDED, None])
async def test_what_comes_decides_what_holds(privacy: Privacy | None) -> None:
    """A verifier that promises and does not pad is found out; one that does not know privacy holds none."""

    class Liar:
        Describe = None  # not asked for

        async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for _ in requests:
                yield encode_response(Opened(1, 32, privacy=privacy))

    server = grpc.aio.server()
    add_service(Liar(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with VerifierChannel(f"127.0.0.1:{port}") as channel:
            heard = asyncio.Event()
            stream = channel.open(lambda message: heard.set(), lambda error: None)
            stream.send(Open((1, 2, 3), SamplingParams(), b"", privacy=PADDED))
            await heard.wait()
            assert channel.held == Held(PADDED, OFF)
            assert channel.held.as_json() == {"up": "padded", "down": "off"}
            stream.abandon()
    finally:
        await server.stop(None)


def test_messages_are_padded_unless_somebody_says_otherwise() -> None:
    assert configured().server.privacy == "padded"
    assert load_config({}, {}, []).config.verifier.privacy == "padded"
