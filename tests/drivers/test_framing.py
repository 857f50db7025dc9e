"""Messages of both ends are padded to a few sizes if either side wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from cloud_verifier.server.calls import Framing
from common.errors import ForerunError
from common.messages import Close, Commit, Finish, FinishReason, Open, Opened, Propose, ServerMessage
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.sampling import SamplingParams
from common.wire.codec import decode_request, encode_response
from common.wire.padding import UP_BYTES
from edge_client.network.channel import VerifierConnection, VerifierStream
from tests.support.virtual_loop import run

OFF, PADDED = Privacy
SHORT, LONG, FINISH = Commit(3, (5,)), Commit(4, (300,) * 100), Finish(FinishReason.STOP, 20)


def asking(privacy: Privacy | None, logprobs: int | None = None) -> Open:
    return Open((1, 2, 3), SamplingParams(), b"", privacy=privacy, logprobs=logprobs)


def leaving(least: Privacy, asked: Open, *told: ServerMessage) -> list[pb.SessionResponse]:
    """All that leaves a stream on which `Opened` and these are sent."""
    framing = Framing(least)
    framing.asked(asked)
    return [framing.frame(message) for message in (Opened(2, 32), *told)]


@pytest.mark.parametrize(
    ("asked", "least", "held", "told"),
    [
        (OFF, OFF, OFF, OFF),
        (OFF, PADDED, PADDED, PADDED),
        (PADDED, OFF, PADDED, PADDED),
        (PADDED, PADDED, PADDED, PADDED),
        (None, OFF, OFF, None),
        (None, PADDED, PADDED, None),
    ],
)
def test_the_stricter_privacy_holds_and_an_old_edge_gets_no_level(
    asked: Privacy | None, least: Privacy, held: Privacy, told: Privacy | None
) -> None:
    frames = leaving(least, asking(asked), SHORT, FINISH)
    assert frames[0].opened.privacy == (told.value if told else 0)
    assert [bool(frame.padding) for frame in frames] == [held is PADDED] * 3


def test_with_log_probabilities_messages_are_longer_as_the_open_says() -> None:
    assert leaving(PADDED, asking(PADDED, logprobs=5))[0].ByteSize() == 512


class Call:
    """A verifier in memory: hears what is sent, and answers the first request."""

    def __init__(self, *answers: pb.SessionResponse) -> None:
        self.sizes = list[int]()
        self.heard = list[object]()
        self._answers = answers

    def Session(self, requests: AsyncIterator[pb.SessionRequest], metadata: object = None) -> Call:
        self._opened, self._over = asyncio.Event(), asyncio.Event()
        self._reading = asyncio.get_running_loop().create_task(self._read(requests))
        return self

    def cancel(self) -> None:
        self._reading.cancel()

    async def __aiter__(self) -> AsyncIterator[pb.SessionResponse]:
        await self._opened.wait()
        for answer in self._answers:
            yield answer
        await self._over.wait()

    async def _read(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        async for request in requests:
            self.sizes.append(request.ByteSize())
            self.heard.append(decode_request(request))
            self._opened.set()
        self._over.set()


class Wire(VerifierConnection):
    """A connection on which there is one stream, in memory."""

    def __init__(self, call: Call) -> None:
        self.stub = call  # type: ignore[assignment]  # gRPC's stub has the method, too
        self.metadata = lambda: ()
        self.num_streams = 0
        self._retired = False


def talk(
    call: Call, asked: Privacy | None, proposes: Sequence[Propose] = ()
) -> tuple[list[ServerMessage], list[ForerunError | None]]:
    """What an edge hears that sends these once the answers have come, and how it ends."""
    heard, lost = list[ServerMessage](), list[ForerunError | None]()

    async def speak() -> None:
        stream = VerifierStream(cast(VerifierConnection, Wire(call)), heard.append, lost.append, lambda: None)
        stream.send(asking(asked))
        await asyncio.sleep(0.1)
        messages: list[Propose | Close] = [*proposes, Close()]
        for message in messages:
            stream.send(message)
        await asyncio.sleep(0.1)
        stream.abandon()

    run(speak())
    return heard, lost


def chain(length: int) -> Propose:
    return Propose((300,) * length, bytes(length), seen_advance=1)


@pytest.mark.parametrize(
    ("asked", "told", "padded"),
    [
        (OFF, OFF, False),
        (OFF, PADDED, True),
        (PADDED, PADDED, True),
        (PADDED, OFF, True),
        (PADDED, None, True),  # of a verifier that does not know the rule
        (None, None, False),
    ],
)
def test_an_edge_pads_if_either_side_wants_it(
    asked: Privacy | None, told: Privacy | None, padded: bool
) -> None:
    call = Call(encode_response(Opened(2, 32, privacy=told)))
    heard, _ = talk(call, asked, [chain(2), chain(200)])
    assert heard == [Opened(2, 32, privacy=told)]
    assert call.heard[1:] == [chain(2), chain(200), Close()]
    assert (call.sizes[0] == 1024) is (asked is PADDED)
    assert (call.sizes[1:] == [UP_BYTES, 5 * UP_BYTES, UP_BYTES]) is padded


def test_a_sign_of_life_says_nothing_at_any_time() -> None:
    idle = pb.SessionResponse(idle=pb.Idle(), padding=[bytes(20)])
    opened = encode_response(Opened(2, 32, privacy=PADDED))
    heard, lost = talk(Call(idle, opened, idle), PADDED)
    assert heard == [Opened(2, 32, privacy=PADDED)]
    assert lost == []
