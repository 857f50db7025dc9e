"""`forerun verify --tensor-parallel`: what the processes of one target do, the first and the others."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from common.errors import UserError

if TYPE_CHECKING:
    from cloud_verifier.engine.parallel import Leader, Ranks

Serve = Callable[[Any, tuple[bytes | None, ...], "Leader"], None]
"""Serve an engine with this token table, led by this leader, until the service is stopped."""


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


def run_parallel(options: argparse.Namespace, serve: Serve) -> int:
    """This process's part: rank 0 loads and serves, the others load and follow.

    Raises `UnavailableError` if the group falls apart.
    """
    if not 0.0 < options.patience < float("inf"):
        raise UserError(f"--patience is {options.patience}; it must be above 0")
    if options.quantize is not None:
        raise UserError("--quantize and --tensor-parallel do not go together: a divided row has other scales")
    from cloud_verifier.engine.parallel import join, leave

    ranks = join(options.device, options.patience)
    if not ranks.leads:
        _outlive_signals()
    _load_and_run(options, ranks, serve)
    leave()
    return 0


def _load_and_run(options: argparse.Namespace, ranks: Ranks, serve: Serve) -> None:
    from cloud_verifier.engine.loading import default_dtype, load_engine
    from cloud_verifier.engine.parallel import Leader, LeadingBackend, LeadingEngine, follow, take_memory
    from cloud_verifier.engine.torch_ref import TorchRefBackend

    backend = LeadingBackend(TorchRefBackend())
    engine, table = load_engine(
        options.model,
        options.slots,
        dtype=default_dtype(options.dtype, options.device),
        device=options.device,
        backend=backend,
        num_processes=ranks.size,
    )
    take_memory(engine)
    if not ranks.leads:
        follow(engine.logits, ranks)
        return
    leader = Leader(ranks)
    backend.tell = leader.tell
    serve(LeadingEngine(engine, leader), table, leader)
    leader.end()
    if leader.lost is not None:
        raise leader.lost


def _outlive_signals() -> None:
    """A supervisor signals every process, and rank 0 needs the others until its sessions have gone."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
