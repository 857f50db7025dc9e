"""What a stranger can send to the service, and the status each gets. No other session notices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status as RichStatus
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.target import Chat
from cloud_verifier.heart import FLUSH_TIME
from cloud_verifier.line import END_FRAMES
from cloud_verifier.service import SERVICE_NAME
from common.acceptance import LOSSLESS, make_acceptance
from common.draft import Draft
from common.errors import LocalError
from common.messages import ClientMessage, Close, Open, Propose
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc as pb_grpc
from common.privacy import Privacy
from common.rpc.codec import encode_request
from common.rpc.describe import Load
from common.rpc.frames import Joiner
from common.rpc.status import to_detail
from common.sampling import SamplingParams
from edge_client.channel import VerifierChannel
from edge_client.core.policies import TreePolicy
from edge_client.draft_worker import DraftWorker
from tests.drivers.tiny import EOS, TABLE, VOCABULARY, complete, generation, running
from tests.worlds.models import TinyDrafter, target_alone
from tests.worlds.seeds import told_alone
from tests.worlds.world import EdgeSpec

pytestmark = pytest.mark.grpc

SAMPLING = SamplingParams(max_tokens=50, ignore_eos=True)
GOOD = Open((1, 2, 3), SAMPLING, VOCABULARY.fingerprint)
DRAWN = replace(GOOD, sampling=replace(SAMPLING, temperature=1.0), acceptance=make_acceptance("rejection"))
Status = grpc.StatusCode


def propose(**fields: object) -> Propose:
    return Propose(**{"tokens": (1,), "logprobs": b"\0", "anchor": 2, **fields})  # type: ignore[arg-type]


CASES: dict[str, tuple[Sequence[ClientMessage], Status, str]] = {
    "propose first": ([propose()], Status.FAILED_PRECONDITION, "a stream begins with Open"),
    "second open": ([GOOD, GOOD], Status.FAILED_PRECONDITION, "second Open"),
    "other model": ([Open((1,), SAMPLING, b"", model="gpt")], Status.NOT_FOUND, "'gpt' is not served here"),
    "other tokenizer": ([Open((1,), SAMPLING, b"\1" * 32)], Status.FAILED_PRECONDITION, "01010101"),
    "foreign token": (
        [Open((1, 7), SAMPLING, VOCABULARY.fingerprint)], Status.OUT_OF_RANGE, "token id 7",
    ),
    "far more tokens than there are positions": (
        [Open((1,) * 100, SAMPLING, VOCABULARY.fingerprint, committed=(1,) * 100_000)],
        Status.OUT_OF_RANGE,
        "100100 tokens of prompt and text exceed the target's 512 positions",
    ),
    "prompt too long": (
        [Open((1,) * 500, SAMPLING, VOCABULARY.fingerprint)], Status.OUT_OF_RANGE, "512 positions",
    ),
    "unknown parent": (
        [GOOD, propose(parent_deltas=(5,), anchor=None)], Status.INVALID_ARGUMENT, "does not exist",
    ),
    "anchor ahead": ([GOOD, propose(anchor=300)], Status.OUT_OF_RANGE, "anchor 300"),
    "anchor in the prompt": ([GOOD, propose(anchor=0)], Status.OUT_OF_RANGE, "anchor 0"),
    "token outside": ([GOOD, propose(tokens=(7,))], Status.OUT_OF_RANGE, "token id 7"),
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
    "sees the future": ([GOOD, propose(seen_advance=400)], Status.OUT_OF_RANGE, "seen_advance 400"),
}  # fmt: skip


async def status_of(address: str, requests: Sequence[pb.SessionRequest]) -> tuple[Status, str]:
    """How a stream of these requests ends."""

    async def stream() -> AsyncIterator[pb.SessionRequest]:
        for request in requests:
            yield request
        await asyncio.sleep(20)

    async with grpc.aio.insecure_channel(address) as channel:
        call = pb_grpc.VerifierServiceStub(channel).Session(stream())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("name", CASES)
async def test_a_bad_stream_ends_with_its_status_and_no_other_notices(name: str) -> None:
    messages, status, words = CASES[name]
    async with running(step_time=0.01) as system:
        neighbour = asyncio.create_task(complete(system.address, SAMPLING))
        code, details = await status_of(system.address, [encode_request(m) for m in messages])
        run = await neighbour
    assert (code, words in details) == (status, True), details
    assert run.session.text == target_alone((1, 2, 3), SAMPLING, EOS)
    assert run.session.stats.resumes == 0


async def test_a_session_with_a_grammar_is_served_and_one_with_a_bad_one_was_never_admitted() -> None:
    good, bad = replace(SAMPLING, grammar="2"), replace(SAMPLING, grammar="start: /a/")
    async with running() as system:
        run = await complete(system.address, good)
        request = encode_request(Open((1,), bad, VOCABULARY.fingerprint))
        await status_of(system.address, [request])
        counters = system.worker.scheduler.counters
        assert (counters.num_opened, counters.num_refused) == (1, {"INVALID_ARGUMENT": 1})
    assert run.session.text == target_alone((1, 2, 3), good, EOS)
    assert run.session.text != target_alone((1, 2, 3), SAMPLING, EOS)


async def test_for_who_has_no_room_no_grammar_is_looked_at() -> None:
    bad = encode_request(Open((1,), replace(SAMPLING, grammar="("), VOCABULARY.fingerprint))
    async with (
        running(SchedulerConfig(max_sessions=1)) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        first = pb_grpc.VerifierServiceStub(channel).Session()
        await first.write(encode_request(replace(GOOD, fill=False)))
        await first.read()
        code, details = await status_of(system.address, [bad])
        first.cancel()
        assert code is Status.RESOURCE_EXHAUSTED, details
        assert system.worker.scheduler.counters.num_refused == {"RESOURCE_EXHAUSTED": 1}


BAD_FIELDS: dict[str, tuple[pb.SessionRequest, str]] = {
    "empty": (pb.SessionRequest(), "request is empty"),
    "temperature": (
        pb.SessionRequest(open=pb.Open(prompt=[1], sampling=pb.Sampling(temperature=-1))),
        "temperature",
    ),
    "top_p": (pb.SessionRequest(open=pb.Open(prompt=[1], sampling=pb.Sampling(top_p=1.5))), "top_p"),
    "no prompt": (pb.SessionRequest(open=pb.Open()), "prompt"),
}


BAD_FRAMES: dict[str, tuple[Sequence[pb.SessionRequest], str]] = {
    "a filler without a cadence": ([pb.SessionRequest(filler=pb.Filler())], "privacy is not strict"),
    "half a message and another": (
        [pb.SessionRequest(part=pb.Part(data=b"\x09")), encode_request(Close())],
        "between the parts",
    ),
    "parts without an end": (
        [pb.SessionRequest(part=pb.Part(data=b"\xff" * 5))],
        "a length of more than 5 bytes",
    ),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_frames_that_cannot_be_end_their_stream(name: str) -> None:
    frames, words = BAD_FRAMES[name]
    async with running() as system:
        code, details = await status_of(system.address, [encode_request(GOOD), *frames])
    assert (code, words in details) == (Status.INVALID_ARGUMENT, True), details


@pytest.mark.parametrize("name", BAD_FIELDS)
async def test_nonsense_is_refused_by_the_name_of_its_field(name: str) -> None:
    request, field = BAD_FIELDS[name]
    async with running() as system:
        code, details = await status_of(system.address, [request])
    assert code is Status.INVALID_ARGUMENT
    assert field in details


async def test_a_half_close_is_not_a_goodbye() -> None:
    async with running(step_time=0.01) as system, grpc.aio.insecure_channel(system.address) as channel:
        call = pb_grpc.VerifierServiceStub(channel).Session(iter([encode_request(GOOD)]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert caught.value.code() is Status.UNAVAILABLE


async def test_close_is_answered_by_finish() -> None:
    async with running(step_time=0.01) as system, grpc.aio.insecure_channel(system.address) as channel:
        call = pb_grpc.VerifierServiceStub(channel).Session()
        await call.write(encode_request(GOOD))
        await call.read()
        await call.write(encode_request(Close()))
        kinds = [kind async for kind in _kinds(call)]
    assert kinds[-1] == "finish"


async def _kinds(call: Any) -> AsyncIterator[str]:
    while (response := await call.read()) is not grpc.aio.EOF:
        yield response.WhichOneof("message")


async def test_an_oversized_message_ends_only_its_own_stream() -> None:
    request = pb.SessionRequest(open=pb.Open(prompt=[5] * (9 * 1024 * 1024)))
    async with running() as system:
        code, _ = await status_of(system.address, [request])
        assert code is Status.RESOURCE_EXHAUSTED
        run = await complete(system.address, SAMPLING)
    assert len(run.session.text) == 50


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
    assert description.load == Load(0, 64)
    assert description.fingerprint == VOCABULARY.fingerprint
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert SERVICE_NAME in names


@pytest.mark.parametrize("asked", [True, False])
async def test_a_chat_template_is_told_to_those_who_ask(asked: bool) -> None:
    chat = Chat("{{ messages }}", "<s>", "</s>")
    async with running(chat=chat) as system, VerifierChannel(system.address) as channel:
        found = await channel.describe(include_chat_template=asked)
    expected = ("{{ messages }}", "<s>", "</s>") if asked else ("", "", "")
    assert (found.chat_template, found.bos_token, found.eos_token) == expected
    assert found.grammars
    assert found.vocabulary is None


async def test_a_target_without_a_chat_template_tells_none() -> None:
    async with running() as system, VerifierChannel(system.address) as channel:
        assert (await channel.describe(include_chat_template=True)).chat_template == ""


@pytest.mark.parametrize("most", [None, 0, 3])
async def test_a_session_is_told_of_its_tokens_what_it_asked_for(most: int | None) -> None:
    async with running(step_time=0.001) as system:
        with DraftWorker(TinyDrafter()) as drafts:
            async with VerifierChannel(system.address) as channel:
                run = generation(channel, drafts, SAMPLING, logprobs=most)
                told = [one async for text in run for one in text.logprobs]
    spec = EdgeSpec((1, 2, 3), SAMPLING, TreePolicy, logprobs=most)
    assert told == told_alone(spec, run.session.text, 3)


def broken(now: float) -> None:
    raise LocalError(f"broken at {now}")


async def test_a_broken_heartbeat_ends_the_server_with_its_cause() -> None:
    async with running() as system:
        system.worker.scheduler.next_step = broken  # type: ignore[method-assign]
        system.worker.drain(0.0)  # any input wakes it
        with pytest.raises(LocalError, match="broken at"):
            await asyncio.wait_for(system.server.run_until(asyncio.Event()), 10)


async def test_a_heartbeat_that_breaks_during_a_drain_is_told_too() -> None:
    async with running() as system:
        key, _ = system.worker.connect()  # somebody is still here
        system.worker.scheduler.next_step = broken  # type: ignore[method-assign]
        with pytest.raises(LocalError, match="broken at"):
            await asyncio.wait_for(system.server.drain(60.0), 10)
        system.worker.disconnect(key)


async def test_health_says_not_serving_while_draining() -> None:
    async with running() as system:
        await system.server.drain(0.1)
        async with grpc.aio.insecure_channel(system.address) as raw:
            health = await health_pb2_grpc.HealthStub(raw).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING


# Limits -----------------------------------------------------------------------------------------------


async def refused(address: str, **call: Any) -> grpc.aio.AioRpcError:
    """How a stream with a good `Open` is refused."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream = pb_grpc.VerifierServiceStub(channel).Session(**call)
        await stream.write(encode_request(GOOD))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stream:
                pass
    return caught.value


async def test_any_grpc_client_is_told_when_to_come_again() -> None:
    config = SchedulerConfig(max_sessions=1)
    async with (
        running(config, step_time=0.01) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        first = pb_grpc.VerifierServiceStub(channel).Session()
        await first.write(encode_request(GOOD))
        await first.read()
        error = await refused(system.address)
        first.cancel()
    assert error.code() is Status.RESOURCE_EXHAUSTED
    metadata = dict(error.trailing_metadata())
    rich, info = RichStatus.FromString(metadata["grpc-status-details-bin"]), RetryInfo()
    assert (rich.code, rich.message) == (Status.RESOURCE_EXHAUSTED.value[0], error.details())
    assert rich.details[0].Unpack(info)
    assert info.retry_delay.ToMicroseconds() == to_detail(error).retry_after_us
    assert info.retry_delay.ToMicroseconds() > 0


async def test_tenants_are_told_apart_by_the_header_that_the_operator_named() -> None:
    config = SchedulerConfig(max_sessions=2, max_tenant_share=0.5)
    async with (
        running(config, step_time=0.01, tenant_key="x-tenant") as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        first = pb_grpc.VerifierServiceStub(channel).Session(metadata=(("x-tenant", "a"),))
        await first.write(encode_request(GOOD))
        await first.read()
        error = await refused(system.address, metadata=(("x-tenant", "a"),))
        run = await complete(system.address, SAMPLING)  # of nobody in particular
        first.cancel()
    assert "this tenant has 1 sessions here" in (error.details() or "")
    assert len(run.session.text) == 50


async def test_a_call_whose_deadline_passes_ends_and_frees_its_slots() -> None:
    async with running(step_time=0.02) as system:
        error = await refused(system.address, timeout=0.2)
    assert error.code() is Status.DEADLINE_EXCEEDED


async def test_a_stream_without_an_open_does_not_stand_for_ever() -> None:
    async with (
        running(SchedulerConfig(open_timeout=0.05)) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        call = pb_grpc.VerifierServiceStub(channel).Session()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is Status.DEADLINE_EXCEEDED
    assert "no Open came within 0.05 s" in (caught.value.details() or "")


async def test_a_session_that_stays_is_told_when_the_time_to_leave_is_over() -> None:
    """With every token that was committed before: nothing is cut off on the way."""
    async with (
        running(step_time=0.01) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        call = pb_grpc.VerifierServiceStub(channel).Session()
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


async def test_a_strict_stream_that_has_said_all_does_not_outstay_the_time_to_leave() -> None:
    """Its fillers would go on for eight seconds, and the process would be killed among them."""
    strict = replace(GOOD, privacy=Privacy.STRICT, sampling=SamplingParams(max_tokens=1, ignore_eos=True))
    async with (
        running(privacy=Privacy.STRICT, cadence=0.25) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        call = pb_grpc.VerifierServiceStub(channel).Session()
        await call.write(encode_request(strict))
        joiner, told, num_frames = Joiner(pb.SessionResponse, 1 << 20), list[str | None](), 0
        joiner.takes_fillers = True
        while "finish" not in told:
            told += [each.WhichOneof("message") for each in joiner.take(await call.read())]
            num_frames += 1
        await system.server.drain(0.0)
        while await call.read() is not grpc.aio.EOF:
            num_frames += 1
    assert await call.code() is Status.OK
    assert num_frames < END_FRAMES


async def test_whatever_stays_a_verifier_is_gone_two_seconds_after_its_grace() -> None:
    """So that the figures of docs/operations.md and deploy/ hold. A stream stays, and a watch of health."""
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
