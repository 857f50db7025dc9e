"""A real verifier, seen by its operator: what it tells is what its edges had, and never what they wrote."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc.aio
import numpy as np
import pytest
from prometheus_client import generate_latest

from cloud_verifier.core.engine_protocol import StepItem, StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.identity.identity import HeaderIdentity
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from cloud_verifier.telemetry.collector import registry
from cloud_verifier.telemetry.snapshot import Snapshot, overview
from common.messages import ClientMessage, Open, Propose
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingParams
from common.wire.codec import encode_request
from common.wire.service import VerifierStub
from edge_client.network.generation import Generation
from forerun.commands.verifier_table import as_json, table
from forerun.log_format import FORMATS, writing
from tests.support.tiny import complete, running

pytestmark = pytest.mark.grpc


async def test_the_verifier_counts_what_its_edges_count() -> None:
    async with running() as system:
        runs: list[Generation] = await asyncio.gather(
            *(
                complete(system.address, SamplingParams(max_tokens=number, ignore_eos=True))
                for number in (20, 35, 50)
            )
        )
        await system.worker.wait_until_gone()
        seen = system.worker.snapshot()
    counters, stats = seen.counters, [run.session.stats for run in runs]
    assert counters.num_committed == sum(each.committed for each in stats) == 105
    assert counters.num_committed - counters.num_server_made == sum(each.accepted for each in stats)
    assert counters.num_evaluated == sum(each.evaluated for each in stats)
    num_steps = sum(each.target_steps for each in stats)
    assert sum(seen.monitor.sent.values()) == sum(run.traffic.down for run in runs)
    assert sum(seen.monitor.received.values()) <= sum(run.traffic.up for run in runs), "some cross the end"
    assert seen.instruments.text_tokens.total == 105
    assert sum(seen.instruments.first_token.counts) == 3
    assert sum(seen.instruments.later_tokens.counts) == num_steps - 3
    assert (seen.sessions, len(seen.monitor.streams)) == ((), 0)


PROMPT = (1029384756, 1092837465, 1122334455)
TEXT = (1357924680, 1470258369, 1593572486)
DRAFT = (1604938271, 1726354809)
OUTSIDE = 2**31 - 2
SECRETS = (*PROMPT, *TEXT, *DRAFT, OUTSIDE)
"""Token ids that stand in no page, line or table by chance: they have ten digits."""

INFO = TargetInfo("tiny", OUTSIDE - 1, 512, 1024, (), b"print")


class Teller(TargetEngine):
    """A target that writes the secret text, and fails at a prompt of one token."""

    info = INFO

    def evaluate(self, plan: StepPlan) -> StepResult:
        if any(item.positions[0] == 0 and len(item.tokens) == 1 for item in plan.items):
            raise RuntimeError("the engine is broken")
        choices = tuple(map(self._choices, plan.items))
        return StepResult(choices, tuple(np.ones(len(each), np.float32) for each in choices))

    def _choices(self, item: StepItem) -> np.ndarray:
        return np.array([TEXT[position % 3] for position in item.positions[item.outputs]], np.int32)


def opening(prompt: tuple[int, ...] = PROMPT, committed: tuple[int, ...] = (), **fields: object) -> Open:
    sampling = SamplingParams(max_tokens=12)
    return Open(prompt, sampling, b"print", committed=committed, session_id="job-7", **fields)  # type: ignore[arg-type]


def proposal(*tokens: int) -> Propose:
    return Propose(tokens, bytes(len(tokens)), anchor=2)


STREAMS: tuple[Sequence[ClientMessage], ...] = (
    (opening(), proposal(*DRAFT)),
    (opening(committed=TEXT),),
    (opening((*PROMPT, OUTSIDE)),),
    (opening(), proposal(OUTSIDE)),
    (opening(PROMPT[:1]),),
    (opening(model="canary-model"),),
    (proposal(*DRAFT),),
)
"""Texts that go well, and every way in which a client's own numbers and words come into an error."""


async def talk(stub: VerifierStub, messages: Sequence[ClientMessage]) -> None:
    """A whole stream, however it ends."""
    call = stub.Session(metadata=(("x-tenant", "acme"),))
    with contextlib.suppress(grpc.aio.AioRpcError):
        for message in messages:
            await call.write(encode_request(message))
        async for _ in call:
            pass


@contextlib.asynccontextmanager
async def telling() -> AsyncIterator[tuple[Worker, VerifierStub]]:
    worker = Worker(Teller(), VerifyScheduler(INFO))
    server = Server(worker, INFO, (), "127.0.0.1:0", HeaderIdentity("x-tenant"))
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield worker, VerifierStub(channel)


PAGES: dict[str, Callable[[Snapshot], str]] = {
    "metrics": lambda seen: generate_latest(registry(seen)).decode(),
    "table": lambda seen: "\n".join(table(overview(seen))),
    "json": lambda seen: json.dumps(as_json(overview(seen))),
}


@pytest.mark.parametrize("style", FORMATS)
async def test_no_log_metric_or_view_shows_prompts_or_texts(style: str) -> None:
    """At the most talkative level, of sessions that are open and of those that are over."""
    log = io.StringIO()
    with writing("debug", style, log):
        async with telling() as (worker, stub):
            for messages in STREAMS:
                await talk(stub, messages)
            open_call: Any = stub.Session(metadata=(("x-tenant", "acme"),))
            await open_call.write(encode_request(opening(fill=False)))
            await open_call.read()
            await open_call.write(encode_request(proposal(TEXT[2], TEXT[0], *DRAFT)))
            while (await open_call.read()).commit.tokens[-1] not in TEXT:
                pass
            seen = worker.snapshot()
            description = await stub.Describe(pb.DescribeRequest())
            open_call.cancel()
            await worker.wait_until_gone()
    told = {name: page(seen) for name, page in PAGES.items()}
    told |= {"log": log.getvalue(), "describe": str(description)}
    assert seen.counters.num_committed > 12
    assert [each["tenant"] for each in seen.sessions] == ["acme"]
    for name, text in told.items():
        assert text, name
        assert not [secret for secret in SECRETS if str(secret) in text], name
        assert "canary" not in text, name


async def test_the_log_has_the_end_of_every_session() -> None:
    log = io.StringIO()
    with writing("info", "json", log):
        async with telling() as (worker, stub):
            for messages in STREAMS:
                await talk(stub, messages)
            await worker.wait_until_gone()
    records = [json.loads(line) for line in log.getvalue().splitlines()]
    ours = [each for each in records if each["logger"].startswith("cloud_verifier.telemetry")]
    ends = [
        (each["stream"], each["message"], each["reason"], each.get("fault"))
        for each in ours
        if "reason" in each
    ]
    assert ends == [
        (1, "session ended", "LENGTH", None),
        (2, "session ended", "LENGTH", None),
        (3, "stream refused", "OUT_OF_RANGE", "user"),
        (4, "session ended", "OUT_OF_RANGE", "client"),
        (5, "session ended", "INTERNAL", "server"),
        (6, "stream refused", "NOT_FOUND", "user"),
        (7, "stream refused", "FAILED_PRECONDITION", "client"),
    ]
    assert {each["session_id"] for each in ours if each["stream"] < 7} == {"job-7"}
    (failed,) = [each for each in records if each["message"] == "a step failed"]
    assert (failed["rows"], failed["sessions"]) == (1, 1)
    assert failed["exception"].endswith("RuntimeError: the engine is broken")
