"""Implements `forerun verify --tensor-parallel`: runs the leading and the other processes of a target."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from common.errors import UnavailableError

if TYPE_CHECKING:
    from cloud_verifier.core.engine_protocol import TargetEngine
    from cloud_verifier.core.scheduler import VerifyScheduler
    from cloud_verifier.engine.parallel import Leader, Ranks
    from cloud_verifier.server.worker import Worker
    from cloud_verifier.settings import VerifierConfig
    from common.wire.describe import TokenTable

    Serve = Callable[[TargetEngine, TokenTable, "GroupWatch"], None]
    """Serve an engine with this token table until the service is stopped or the watch ends."""


logger = logging.getLogger(__name__)


class GroupWatch:
    """Ends a service when its leader loses another rank, or a rank got a signal to end. A
    `cloud_verifier.server.serving.Watch`."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.ended_for = ""  # the rank whose signal ended the service, if one did

    def watched(self, scheduler: VerifyScheduler) -> VerifyScheduler:
        """Return the scheduler itself."""
        return scheduler

    async def run(self, worker: Worker) -> None:
        """Run until the group must end."""
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def notice() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended before
                loop.call_soon_threadsafe(over.set)

        self._leader.when_over(notice)
        await over.wait()
        if self._leader.leaving and not worker.scheduler.draining:  # else this rank got the signal itself
            self.ended_for = self._leader.leaving
            logger.info("> rank %s got a signal to end, and the whole group ends", self.ended_for)


def run_parallel(config: VerifierConfig, serve: Serve) -> int:
    """Run this process's part: rank 0 loads and serves, the others load and follow.

    Raise `UnavailableError` if the group falls apart, or if another rank's supervisor ended it. The
    supervisor of rank 0 then starts it again.
    """
    from cloud_verifier.engine.parallel import join, leave

    ranks = join(config.target.device)
    if not ranks.leads:
        pass_signals_on(ranks)
    ended_for = _load_and_run(config, ranks, serve)
    leave()
    if ended_for:
        raise UnavailableError(
            f"rank {ended_for} was told to end, and this group of {ranks.size} has with it"
        )
    return 0


def _load_and_run(config: VerifierConfig, ranks: Ranks, serve: Serve) -> str:
    """Run to the end. Return the rank whose supervisor ended the group, or ""."""
    import torch

    from cloud_verifier.engine.parallel import Leader, LeadingBackend, LeadingEngine, follow
    from cloud_verifier.engine.torch_loading import backend_of, load_engine
    from cloud_verifier.progress import LoggedProgress, no_progress
    from cloud_verifier.server.serving import floored

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
        return ""
    leader = Leader(ranks)
    backend.tell = leader.tell
    led = LeadingEngine(engine, leader)
    watch = GroupWatch(leader)
    serve(floored(led, target), table, watch)
    leader.end()
    if leader.lost is not None:
        raise leader.lost
    return watch.ended_for


def pass_signals_on(ranks: Ranks) -> None:
    """Pass a signal to end on to rank 0 and keep running, as rank 0 needs this rank until its sessions end.

    A thread does it, because Python handles no signal while the main thread is inside a collective.
    """
    heard, signalled = socket.socketpair()
    signalled.setblocking(False)
    signal.set_wakeup_fd(signalled.detach(), warn_on_full_buffer=False)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: None)

    def pass_on() -> None:
        heard.recv(1)
        ranks.ask_to_leave()

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
