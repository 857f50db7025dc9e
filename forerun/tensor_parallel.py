"""`forerun verify --tensor-parallel`: what the processes of one target do, the first and the others."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from common.errors import UnavailableError, UserError

if TYPE_CHECKING:
    from cloud_verifier.core.scheduler import VerifyScheduler
    from cloud_verifier.core.target import TargetEngine
    from cloud_verifier.engine.parallel import Leader, Ranks
    from cloud_verifier.worker import Worker
    from common.rpc.describe import TokenTable

    Serve = Callable[[TargetEngine, TokenTable, "GroupWatch"], None]
    """Serve an engine with this token table until the service is stopped or the watch ends."""


logger = logging.getLogger(__name__)


def add_tensor_parallel(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("one target over several processes (started by torchrun)")
    option = group.add_argument
    option("--tensor-parallel", action="store_true", help="share the target with torchrun's other processes")
    option(
        "--patience",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds without a word from the others after which a process ends (%(default)s)",
    )


def check_tensor_parallel(options: argparse.Namespace) -> None:
    """Raise `UserError` for what does not go together."""
    if not options.tensor_parallel:
        return
    if not 0.0 < options.patience < float("inf"):
        raise UserError(f"--patience is {options.patience}; it must be above 0")
    if options.quantize is not None:
        raise UserError("--quantize and --tensor-parallel do not go together: a divided row has other scales")
    if options.deterministic:
        raise UserError(
            "--deterministic and --tensor-parallel do not go together: sums over ranks round anew"
        )


class GroupWatch:
    """Ends a service whose leader has lost the other ranks, or one of them was told to go. A
    `forerun.verify.Watch`."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.ended_for = ""  # the rank that was told to go, if that is what ended the service

    def watched(self, scheduler: VerifyScheduler) -> VerifyScheduler:
        """The scheduler itself."""
        return scheduler

    async def run(self, worker: Worker) -> None:
        """Until the group is to end."""
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def notice() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended before
                loop.call_soon_threadsafe(over.set)

        self._leader.when_over(notice)
        await over.wait()
        if self._leader.leaving and not worker.scheduler.draining:  # else it was told itself
            self.ended_for = self._leader.leaving
            logger.info("> rank %s was told to end, and the whole group does", self.ended_for)


def run_parallel(options: argparse.Namespace, serve: Serve) -> int:
    """This process's part: rank 0 loads and serves, the others load and follow.

    Raises `UnavailableError` if the group falls apart, or ends in order for another rank's supervisor: then
    that of rank 0 is to start it anew.
    """
    from cloud_verifier.engine.parallel import join, leave

    ranks = join(options.device, options.patience)
    if not ranks.leads:
        pass_signals_on(ranks)
    ended_for = _load_and_run(options, ranks, serve)
    leave()
    if ended_for:
        raise UnavailableError(
            f"rank {ended_for} was told to end, and this group of {ranks.size} has with it"
        )
    return 0


def _load_and_run(options: argparse.Namespace, ranks: Ranks, serve: Serve) -> str:
    """Until it is over. Which other rank's supervisor ended it, if one did."""
    import torch

    from cloud_verifier.engine.acceleration import backend_of
    from cloud_verifier.engine.floor import FlooredEngine
    from cloud_verifier.engine.loading import load_engine
    from cloud_verifier.engine.parallel import Leader, LeadingBackend, LeadingEngine, follow

    backend = LeadingBackend(backend_of(options.attention, torch.device(options.device)))
    engine, table = load_engine(
        options.model,
        options.slots,
        dtype=options.dtype,
        device=options.device,
        num_processes=ranks.size,
        backend=backend,
        max_rows=options.max_rows,
        prefill_chunk=options.prefill_chunk,
        agree=ranks.least,
    )
    if not ranks.leads:
        follow(engine.logits, ranks)
        return ""
    leader = Leader(ranks)
    backend.tell = leader.tell
    led = LeadingEngine(engine, leader)
    watch = GroupWatch(leader)
    serve(FlooredEngine(led, options.step_floor) if options.step_floor else led, table, watch)
    leader.end()
    if leader.lost is not None:
        raise leader.lost
    return watch.ended_for


def pass_signals_on(ranks: Ranks) -> None:
    """Who is told to end goes on, since rank 0 needs it until its sessions have gone, and tells rank 0.

    By a thread: the main one is inside a collective, where Python hears no signal.
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
