"""A real worker with the tiny target and no network: what monitor, snapshot and metrics are of."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from cloud_verifier.core.effects import End
from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.outbox import Outbox, Outgoing
from cloud_verifier.server.worker import Worker
from common.messages import Open
from common.sampling import SamplingParams
from tests.worlds.models import FINGERPRINT, VOCAB, TinyTarget

INFO = TargetInfo("tiny", VOCAB, 512, 1024, (0,), FINGERPRINT)


def ask(
    prompt: tuple[int, ...] = (1, 2, 3),
    max_tokens: int = 10,
    *,
    committed: tuple[int, ...] = (),
    fill: bool = True,
    session_id: str = "",
) -> Open:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Open(prompt, params, FINGERPRINT, committed=committed, fill=fill, session_id=session_id)


def make(**limits: float) -> Worker:
    """A worker that takes messages and runs no step."""
    config = SchedulerConfig(**limits)  # type: ignore[arg-type]  # as the fields are
    return Worker(TinyTarget(INFO), VerifyScheduler(INFO, config))


def begin(worker: Worker, request: Open, tenant: str = "") -> tuple[int, Outbox]:
    """A stream, and its `Open`."""
    key, queue = worker.connect(tenant)
    worker.receive(key, request)
    return key, queue


def step(worker: Worker, engine: TinyTarget) -> None:
    """One step by hand, that takes no time."""
    plan = worker.scheduler.next_step(0.0)
    assert plan is not None, "nothing is to do"
    worker.scheduler.on_step_done(engine.evaluate(plan), 0.0)


@contextlib.asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """The worker with its heartbeat."""
    heartbeat = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        heartbeat.cancel()
        await asyncio.gather(heartbeat, return_exceptions=True)


async def whole(worker: Worker, request: Open, tenant: str = "") -> list[Outgoing]:
    """All that is sent to one stream, which is then gone."""
    key, queue = begin(worker, request, tenant)
    sent = [await queue.get()]
    while not isinstance(sent[-1], End):
        sent.append(await queue.get())
    worker.disconnect(key)
    return sent
