"""What a stranger can send to the service, and the status each gets. No other session notices."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status as RichStatus
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.quotas import Quotas
from cloud_verifier.identity.caller_files import live_limits
from cloud_verifier.server.lifecycle import FLUSH_TIME
from cloud_verifier.telemetry.monitor import TENANT_LIMITS
from common.acceptance import LOSSLESS, Draft, make_acceptance
from common.errors import LocalError
from common.messages import ClientMessage, Close, Open, Propose
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingParams
from common.wire.codec import encode_request
from common.wire.describe import VerifierLoad
from common.wire.service import SERVICE_NAME, VerifierStub
from edge_client.network.channel import VerifierChannel
from tests.support.tiny import EOS, TABLE, VOCABULARY, complete, running
from tests.worlds.models import target_alone

pytestmark = pytest.mark.grpc

SAMPLING = SamplingParams(max_tokens=50, ignore_eos=True)
GOOD = Open((1, 2, 3), SAMPLING, VOCABULARY.fingerprint)
DRAWN = replace(GOOD, sampling=replace(SAMPLING, temperature=1.0), acceptance=make_acceptance("rejection"))
Status = grpc.StatusCode


def propose(**fields: object) -> Propose:
    return Propose(**{"tokens": (1,), "logprobs": b"\0", "anchor": 2, **fields})  # type: ignore[arg-type]


CASES: dict[str, tuple[Sequence[ClientMessage | pb.SessionRequest], Status, str]] = {
    "no message": ([pb.SessionRequest()], Status.INVALID_ARGUMENT, "request is empty"),
    "no temperature": (
        [pb.SessionRequest(open=pb.Open(prompt=[1], sampling=pb.Sampling(temperature=-1)))],
        Status.INVALID_ARGUMENT, "temperature",
    ),
    "propose first": ([propose()], Status.FAILED_PRECONDITION, "a stream begins with Open"),
    "second open": ([GOOD, GOOD], Status.FAILED_PRECONDITION, "second Open"),
    "other model": ([Open((1,), SAMPLING, b"", model="gpt")], Status.NOT_FOUND, "'gpt' is not served here"),
    "foreign token": (
        [Open((1, 7), SAMPLING, VOCABULARY.fingerprint)], Status.OUT_OF_RANGE, "token id 7",
    ),
    "unknown parent": (
        [GOOD, propose(parent_deltas=(5,), anchor=None)], Status.INVALID_ARGUMENT, "does not exist",
    ),
    "never drawn": (
        [DRAWN, propose(drafts=(Draft((2, 3), (128, 128)),))], Status.INVALID_ARGUMENT, "holds token 1",
    ),
    "lossy rule": (
        [replace(GOOD, acceptance=make_acceptance("bild"))], Status.FAILED_PRECONDITION, "bild is not",
    ),
    "no grammar": (
        [replace(GOOD, sampling=replace(SAMPLING, grammar="(")), GOOD],
        Status.INVALID_ARGUMENT, "the grammar is refused: '(' is no digit",
    ),
    "not its text": (
        [replace(GOOD, sampling=replace(SAMPLING, grammar="2"), committed=(4, 4))],
        Status.INVALID_ARGUMENT, "break the session's grammar",
    ),
    "too large": (
        [pb.SessionRequest(open=pb.Open(prompt=[5] * (9 * 1024 * 1024)))], Status.RESOURCE_EXHAUSTED, "",
    ),
}  # fmt: skip


async def status_of(
    address: str, messages: Sequence[ClientMessage | pb.SessionRequest]
) -> tuple[Status, str]:
    """How a stream of these messages ends."""

    async def stream() -> AsyncIterator[pb.SessionRequest]:
        for message in messages:
            yield message if isinstance(message, pb.SessionRequest) else encode_request(message)
        await asyncio.sleep(20)

    async with grpc.aio.insecure_channel(address) as channel:
        call = VerifierStub(channel).Session(stream())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    return caught.value.code(), caught.value.details() or ""


async def test_bad_streams_end_with_their_status_and_no_other_notices() -> None:
    async with running(step_time=0.01) as system:
        neighbour = asyncio.create_task(complete(system.address, SAMPLING))
        for name, (messages, status, words) in CASES.items():
            code, details = await status_of(system.address, messages)
            assert (code, words in details) == (status, True), (name, details)
        run = await neighbour
    assert run.session.text == target_alone((1, 2, 3), SAMPLING, EOS)
    assert run.session.stats.resumes == 0


async def test_a_session_with_a_grammar_is_served_and_one_with_a_bad_one_was_never_admitted() -> None:
    good, bad = replace(SAMPLING, grammar="2"), replace(SAMPLING, grammar="start: /a/")
    async with running() as system:
        run = await complete(system.address, good)
        await status_of(system.address, [Open((1,), bad, VOCABULARY.fingerprint)])
        counters = system.worker.scheduler.counters
        assert (counters.num_opened, counters.num_refused) == (1, {"INVALID_ARGUMENT": 1})
    assert run.session.text == target_alone((1, 2, 3), good, EOS)
    assert run.session.text != target_alone((1, 2, 3), SAMPLING, EOS)


async def test_grammars_are_compiled_only_for_admitted_sessions() -> None:
    bad = Open((1,), replace(SAMPLING, grammar="("), VOCABULARY.fingerprint)
    async with (
        running(SchedulerConfig(max_sessions=1)) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        first = VerifierStub(channel).Session()
        await first.write(encode_request(replace(GOOD, fill=False)))
        await first.read()
        code, details = await status_of(system.address, [bad])
        first.cancel()
        assert code is Status.RESOURCE_EXHAUSTED, details
        assert system.worker.scheduler.counters.num_refused == {"RESOURCE_EXHAUSTED": 1}


async def test_a_half_close_is_not_a_goodbye() -> None:
    async with running(step_time=0.01) as system, grpc.aio.insecure_channel(system.address) as channel:
        call = VerifierStub(channel).Session(iter([encode_request(GOOD)]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert caught.value.code() is Status.UNAVAILABLE


async def test_close_is_answered_by_finish() -> None:
    async with running(step_time=0.01) as system, grpc.aio.insecure_channel(system.address) as channel:
        call = VerifierStub(channel).Session()
        await call.write(encode_request(GOOD))
        await call.read()
        await call.write(encode_request(Close()))
        kinds = [kind async for kind in _kinds(call)]
    assert kinds[-1] == "finish"


async def _kinds(call: Any) -> AsyncIterator[str]:
    while (response := await call.read()) is not grpc.aio.EOF:
        yield response.WhichOneof("message")


async def test_describe_health_and_reflection_answer() -> None:
    async with running() as system:
        async with VerifierChannel(system.address) as channel:
            description = await channel.describe(include_vocabulary=True)
            assert description.acceptance_rules == LOSSLESS
        async with grpc.aio.insecure_channel(system.address) as raw:
            health = await health_pb2_grpc.HealthStub(raw).Check(
                health_pb2.HealthCheckRequest(service=SERVICE_NAME)
            )
            listing = reflection_pb2_grpc.ServerReflectionStub(raw).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            )
            names = [s.name async for reply in listing for s in reply.list_services_response.service]
    assert description.vocabulary == TABLE
    assert description.load == VerifierLoad(0, 64)
    assert description.fingerprint == VOCABULARY.fingerprint
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert SERVICE_NAME in names


def broken(now: float) -> None:
    raise LocalError(f"broken at {now}")


async def test_a_broken_heartbeat_ends_the_server_with_its_cause() -> None:
    async with running() as system:
        system.worker.scheduler.next_step = broken  # type: ignore[method-assign]
        system.worker.drain(0.0)  # any input wakes it
        with pytest.raises(LocalError, match="broken at"):
            await asyncio.wait_for(system.server.run_until(asyncio.Event()), 10)


async def test_a_heartbeat_that_breaks_during_a_drain_raises_its_cause() -> None:
    async with running() as system:
        key, _ = system.worker.connect()  # somebody is still here
        system.worker.scheduler.next_step = broken  # type: ignore[method-assign]
        with pytest.raises(LocalError, match="broken at"):
            await asyncio.wait_for(system.server.drain(60.0), 10)
        system.worker.disconnect(key)


# Limits -----------------------------------------------------------------------------------------------


async def refused(address: str, **call: Any) -> grpc.aio.AioRpcError:
    """How a stream with a good `Open` is refused."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream = VerifierStub(channel).Session(**call)
        await stream.write(encode_request(GOOD))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stream:
                pass
    return caught.value


async def test_a_session_that_outlives_the_drain_ends_with_unavailable() -> None:
    """With every token that was committed before: nothing is cut off on the way."""
    async with (
        running(step_time=0.01) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        call: Any = VerifierStub(channel).Session()
        await call.write(encode_request(GOOD))
        await call.read()
        draining = asyncio.create_task(system.server.drain(0.1))
        responses = list[pb.SessionResponse]()
        with contextlib.suppress(grpc.aio.AioRpcError):
            while True:
                responses.append(await call.read())
        await draining
        committed = system.worker.scheduler.counters.num_committed
    assert any(response.HasField("drain") for response in responses)
    assert sum(len(response.commit.tokens) for response in responses) == committed > 0
    assert await call.code() is Status.UNAVAILABLE
    assert "has drained" in await call.details()


async def test_whatever_stays_a_verifier_is_gone_two_seconds_after_its_grace() -> None:
    """So that the figures of docs/verifier.md and deploy/ hold. A stream stays, and a watch of health."""
    clock = asyncio.get_running_loop().time
    async with contextlib.AsyncExitStack() as later:
        async with running() as system:
            channel = await later.enter_async_context(grpc.aio.insecure_channel(system.address))
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            await watch.read()
            key, _ = system.worker.connect()
            began_at = clock()
            await system.server.drain(0.1)
            system.worker.disconnect(key)
        assert 0.1 + FLUSH_TIME <= clock() - began_at < 0.1 + 1.8 * FLUSH_TIME


REQUEST = encode_request(
    Open((1, 2, 3), SamplingParams(max_tokens=8, ignore_eos=True), VOCABULARY.fingerprint)
)


async def retry_after(call: Any) -> float:
    """Seconds, as a refused call's status tells them."""
    trailing = dict(await call.trailing_metadata())
    (detail,) = RichStatus.FromString(trailing["grpc-status-details-bin"]).details
    retry = RetryInfo()
    assert detail.Unpack(retry)
    seconds: float = retry.retry_delay.ToTimedelta().total_seconds()
    return seconds


async def test_a_refusal_says_when_to_come_again_and_a_changed_file_holds_at_once(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[tenant.acme]\npositions_per_second = 0.01\nburst = 10\n")
    limits = live_limits(path)  # a text takes two positions of its prompt, and eight
    acme = (("x-tenant", "acme"),)
    async with (
        running(tenant_key="x-tenant", files={TENANT_LIMITS: limits}) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        stub = VerifierStub(channel)

        async def write(code: grpc.StatusCode) -> Any:
            call = stub.Session(metadata=acme)
            await call.write(REQUEST)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            assert await call.code() is code
            return call

        await write(grpc.StatusCode.OK)
        call = await write(grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert 300.0 < await retry_after(call) <= 400.0
        assert "positions a second of its quota" in await call.details()
        path.write_text("[tenant.globex]\nmax_sessions = 1\n")
        system.server.lifecycle.look()
        await write(grpc.StatusCode.OK)
        seen = system.worker.snapshot()
        assert seen.scheduler.tenants.refused == {"positions_per_second": 1}
        assert seen.trust.reloads == {TENANT_LIMITS: 1}
        assert isinstance(limits.value, Quotas)


async def test_a_stream_too_many_is_refused_before_it_says_anything(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[tenant.acme]\nsessions_per_second = 0.01\nsession_burst = 2\n")
    acme = (("x-tenant", "acme"),)
    async with (
        running(tenant_key="x-tenant", files={TENANT_LIMITS: live_limits(path)}) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        stub = VerifierStub(channel)
        begun = [stub.Session(metadata=acme) for _ in range(2)]
        for call in begun:
            await call.write(REQUEST)
            assert await call.read() is not grpc.aio.EOF
        call = stub.Session(metadata=acme)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "asked for the 0.01 sessions a second of its quota" in await call.details()
        assert 0.0 < await retry_after(call) <= 100.0
        other = stub.Session(metadata=(("x-tenant", "globex"),))
        await other.write(REQUEST)
        assert await other.read() is not grpc.aio.EOF
        assert system.worker.scheduler.tenants.refused == {"sessions_per_second": 1}
        for call in (*begun, other):
            call.cancel()
