"""A real verifier service on loopback with the tiny target, and real edges with tiny drafters."""

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cloud_verifier.core.engine_protocol import Chat, StepPlan, StepResult, TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.identity.identity import EVERYBODY, HeaderIdentity, Identity
from cloud_verifier.identity.server_tls import ServerTls
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.lifecycle import NO_FILES
from cloud_verifier.server.worker import Worker
from common.acceptance import Acceptance
from common.config.live_files import LiveFiles
from common.privacy import Privacy
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.core.effects import Fallback, SessionConfig
from edge_client.core.policies import GrowthPolicy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import StreamSource, VerifierChannel
from edge_client.network.generation import Generation
from schemes.policies.tree import TreePolicy
from tests.support.drafter_thread import DrafterThread
from tests.support.waiting import until
from tests.worlds.models import VOCAB, TinyDrafter, TinyTarget

TABLE: tuple[bytes | None, ...] = tuple(b"token %d" % token for token in range(VOCAB))
VOCABULARY = Vocabulary(TABLE)
EOS = (0,)


class SlowTarget(TinyTarget):
    """The tiny target, with steps long enough for something to happen meanwhile."""

    step_time = 0.0

    def evaluate(self, plan: StepPlan) -> StepResult:
        time.sleep(self.step_time)
        return super().evaluate(plan)


@dataclass
class System:
    """A running verifier."""

    server: Server
    worker: Worker

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@contextlib.asynccontextmanager
async def running(
    config: SchedulerConfig | None = None,
    step_time: float = 0.0,
    tenant_key: str = "",
    chat: Chat | None = None,
    identity: Identity = EVERYBODY,
    tls: ServerTls | None = None,
    files: Mapping[str, LiveFiles[Any]] = NO_FILES,
    privacy: Privacy = Privacy.PADDED,
    num_slots: int = 4096,
    name: str = "tiny",
    salt: int = 1,
) -> AsyncIterator[System]:
    """A verifier on a free port; after the block every slot must be free again."""
    info = TargetInfo(name, VOCAB, 512, num_slots, EOS, VOCABULARY.fingerprint, chat=chat, grammars=True)
    engine = SlowTarget(info, salt)
    engine.step_time = step_time
    worker = Worker(engine, VerifyScheduler(info, config))
    identity = HeaderIdentity(tenant_key) if tenant_key else identity
    async with Server(worker, info, TABLE, "127.0.0.1:0", identity, tls, files, privacy) as server:
        yield System(server, worker)
        await worker.wait_until_gone()
        await until(lambda: worker.scheduler.idle)  # the last step may still run
    worker.scheduler.check_integrity()
    memory = worker.scheduler.memory
    assert memory.pool.num_free + memory.cache.num_slots == info.num_slots
    assert (memory.num_reserved, memory.cache.num_locked) == (0, 0)


def generation(
    channel: StreamSource,
    drafts: DrafterThread | None,
    sampling: SamplingParams,
    policy: GrowthPolicy | None = None,
    prompt: tuple[int, ...] = (1, 2, 3),
    **config: float | str | Acceptance | Fallback | Privacy | tuple[int, ...] | None,
) -> Generation:
    """Without guesses, which take the one processor from the verifier, unless `patience` is given."""
    session = SessionConfig(
        prompt, sampling, VOCABULARY.fingerprint, first_backoff=0.01, max_attempts=8, patience=None
    )
    session = replace(session, **config)  # type: ignore[arg-type]  # fields vary by case
    return Generation(EdgeSession(session, policy or TreePolicy()), channel, drafts)


async def complete(address: str, sampling: SamplingParams, policy: GrowthPolicy | None = None) -> Generation:
    """One whole generation against `address`."""
    with DrafterThread(TinyDrafter()) as drafts:
        async with VerifierChannel(address) as channel:
            run = generation(channel, drafts, sampling, policy)
            async for _ in run:
                pass
    return run
