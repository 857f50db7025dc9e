"""The service as Ray calls it, without Ray: statuses that travel on frames, and no stream is silent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.identity.identity import EVERYBODY, CertificateIdentity, Identity
from cloud_verifier.server.calls import VerifierService
from cloud_verifier.server.lifecycle import Lifecycle
from cloud_verifier.server.worker import Worker
from common.errors import LocalError
from common.messages import Close, Open
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingParams
from common.wire.codec import decode_response, encode_request, is_idle
from common.wire.status import DETAIL_KEY
from forerun_ray.proxied_calls import RayFace, never_silent, nothing
from tests.support.tiny import EOS, TABLE, VOCABULARY
from tests.support.waiting import until
from tests.worlds.models import VOCAB, TinyTarget, target_alone

SAMPLING = SamplingParams(max_tokens=20, ignore_eos=True)
GOOD = Open((1, 2, 3), SAMPLING, VOCABULARY.fingerprint)


class Context:
    """As Ray's: what is set on it goes out beside what is yielded after."""

    def __init__(self, *entries: tuple[str, str]) -> None:
        self.entries = [*entries]
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: list[tuple[str, Any]] = []

    def invocation_metadata(self) -> list[tuple[str, Any]]:
        return self.entries

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, Any]]) -> None:
        self.trailing = trailing_metadata


class ProxyGoneError(Exception):
    """As Ray's own."""


def face(
    identity: Identity = EVERYBODY, config: SchedulerConfig | None = None
) -> tuple[RayFace, Worker, Lifecycle]:
    info = TargetInfo("tiny", VOCAB, 512, 4096, EOS, VOCABULARY.fingerprint)
    worker = Worker(TinyTarget(info), VerifyScheduler(info, config))
    service = VerifierService(worker, info, TABLE, identity)
    return RayFace(service, (ProxyGoneError,)), worker, Lifecycle(worker, service)


async def requests(
    messages: Sequence[Open | Close], ends: asyncio.Event | None = None, error: Exception | None = None
) -> AsyncIterator[pb.SessionRequest]:
    """These; then, when it `ends`, the end of the client's side or the error."""
    for message in messages:
        yield encode_request(message)
    if error is not None:
        raise error
    await (ends or asyncio.Event()).wait()


async def texts(frames: AsyncGenerator[pb.SessionResponse, None]) -> list[int]:
    """The tokens of the commits in these frames, as an edge reads them."""
    messages = [decode_response(frame) async for frame in frames if not is_idle(frame)]
    return [token for message in messages for token in getattr(message, "tokens", ())]


async def test_a_text_is_the_targets() -> None:
    served, _worker, heart = face()
    context = Context()
    async with heart:
        told = await texts(served.Session(requests([GOOD]), context))
    assert tuple(told) == target_alone((1, 2, 3), SAMPLING, EOS)
    assert context.code is None


@pytest.mark.parametrize("method", ["Session", "Describe"])
async def test_an_unknown_caller_gets_a_status_beside_an_empty_answer(method: str) -> None:
    served, _worker, heart = face(CertificateIdentity())
    context = Context()
    async with heart:
        if method == "Session":
            assert await texts(served.Session(requests([GOOD]), context)) == []
        else:
            answer = await served.Describe(pb.DescribeRequest(), context)
            assert answer == pb.DescribeResponse()
    assert context.code is grpc.StatusCode.UNAUTHENTICATED
    assert context.details.startswith("the client certificate names no tenant")
    assert [key for key, _ in context.trailing] == [DETAIL_KEY]


@pytest.mark.parametrize("error", [None, ProxyGoneError()])
async def test_a_half_close_and_a_proxy_that_is_gone_end_a_stream_alike(error: Exception | None) -> None:
    served, worker, heart = face()
    context, ends = Context(), asyncio.Event()
    ends.set()
    waits = Open((1, 2, 3), SAMPLING, VOCABULARY.fingerprint, fill=False)
    async with heart:
        await texts(served.Session(requests([waits], ends, error), context))
        await worker.wait_until_gone()
    assert context.code is grpc.StatusCode.UNAVAILABLE


async def test_a_task_that_is_cancelled_in_a_silence_leaves_nothing_behind() -> None:
    served, worker, heart = face()
    async with heart:
        waits = Open((1, 2, 3), SAMPLING, VOCABULARY.fingerprint, fill=False)
        reading = asyncio.create_task(texts(served.Session(requests([waits]), Context())))
        await until(lambda: worker.scheduler.sessions)
        reading.cancel()
        await asyncio.wait({reading})
        await worker.wait_until_gone()
    assert not worker.scheduler.sessions


async def test_in_a_silence_frames_leave_that_say_nothing() -> None:
    speaks = asyncio.Event()

    async def frames() -> AsyncGenerator[pb.SessionResponse, None]:
        await speaks.wait()
        yield pb.SessionResponse(drain=pb.Drain())

    sent = never_silent(frames(), silence=0.0)
    assert [await anext(sent) for _ in range(3)] == [nothing()] * 3
    speaks.set()
    rest = [frame async for frame in sent]
    assert rest[-1] == pb.SessionResponse(drain=pb.Drain())
    assert rest[:-1] == [nothing()] * (len(rest) - 1)


async def test_a_heartbeat_that_breaks_is_no_health() -> None:
    served, worker, heart = face()

    def fail(now: float) -> None:
        raise LocalError("a slot was lost")

    async with heart:
        heart.check()
        worker.scheduler.next_step = fail  # type: ignore[method-assign]
        reading = asyncio.create_task(texts(served.Session(requests([GOOD, Close()]), Context())))
        with pytest.raises(LocalError, match="a slot was lost"):
            await heart.until(asyncio.Event().wait())
        with pytest.raises(LocalError, match="a slot was lost"):
            heart.check()
        reading.cancel()
        await asyncio.wait({reading})
