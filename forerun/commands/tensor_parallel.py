"""Implements `forerun verify --tensor-parallel`: runs the leading and the other processes of a target."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloud_verifier.core.engine_protocol import TargetEngine
    from cloud_verifier.core.scheduler import VerifyScheduler
    from cloud_verifier.engine.parallel import Leader, Ranks
    from cloud_verifier.server.worker import Worker
    from cloud_verifier.settings import VerifierConfig
    from common.wire.describe import TokenTable

    Serve = Callable[[TargetEngine, TokenTable, "GroupWatch"], None]
    """Serve an engine with this token table until the service is stopped or the watch ends."""


class GroupWatch:
    """Ends a service when its leader loses another rank. A `cloud_verifier.server.serving.SchedulerWatch`."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def watched(self, scheduler: VerifyScheduler) -> VerifyScheduler:
        return scheduler

    async def run(self, worker: Worker) -> None:
        """Run until the group is lost."""
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def notice() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended before
                loop.call_soon_threadsafe(over.set)

        self._leader.when_lost(notice)
        await over.wait()


def run_parallel(config: VerifierConfig, serve: Serve) -> int:
    """Run this process's part: rank 0 loads and serves, the others load and follow.

    Raise `UnavailableError` if the group falls apart.
    """
    from cloud_verifier.engine.parallel import join, leave

    ranks = join(config.target.device)
    if not ranks.leads:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, signal.SIG_IGN)  # rank 0 needs this rank until its sessions have left
    _load_and_run(config, ranks, serve)
    leave()
    return 0


def _load_and_run(config: VerifierConfig, ranks: Ranks, serve: Serve) -> None:
    import torch

    from cloud_verifier.engine.parallel import Leader, LeadingBackend, LeadingEngine, follow
    from cloud_verifier.engine.torch_loading import backend_of, load_engine
    from cloud_verifier.progress import LoggedProgress, no_progress

    target, limits = config.target, config.limits
    backend = LeadingBackend(backend_of(target.attention, torch.device(target.device)))
    engine, table = load_engine(
        target.path,
        target.slots,
        dtype=target.dtype,
        device=target.device,
        num_processes=ranks.size,
        backend=backend,
        max_rows=limits.max_rows,
        prefill_chunk=config.scheduler.chunk,
        agree=ranks.least,
        progress=LoggedProgress() if ranks.leads else no_progress,
    )
    if not ranks.leads:
        follow(engine.logits, ranks)
        return
    leader = Leader(ranks)
    backend.tell = leader.tell
    serve(LeadingEngine(engine, leader), table, GroupWatch(leader))
    leader.end()
    if leader.lost is not None:
        raise leader.lost
