"""`forerun verify`: load a target model and serve it to edges."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from typing import Any

from common.errors import UserError
from forerun.operations import add_operations, check_operations, logged, watched
from forerun.options import add_core, ms, pin_to_core

DESCRIPTION = """\
Loads a causal language model (a local folder in Hugging Face format, or a hub id), checks that Forerun's
packed evaluation of it is right, and serves it to edges over gRPC until it is stopped. On SIGTERM it
tells every session to go elsewhere, waits for at most --grace seconds and ends.

  forerun verify --model demo_models/target --listen 127.0.0.1:50051"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
        help="serve a target model to edges (the server side)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option(
        "--model",
        required=True,
        metavar="PATH",
        help="folder with config, tokenizer and safetensors, or hub id",
    )
    option("--listen", default="127.0.0.1:50051", metavar="HOST:PORT", help="port 0 picks one (%(default)s)")
    option("--device", default="cpu", help="cpu, or cuda once its attention kernel is there (%(default)s)")
    option(
        "--dtype", default="auto", help="auto, float32, bfloat16 or float16 (%(default)s: float32 on a CPU)"
    )
    option("--threads", type=int, default=0, metavar="N", help="torch's threads; 0 leaves torch's own choice")
    option(
        "--slots", type=int, default=16384, metavar="N", help="tokens of KV over all sessions (%(default)s)"
    )
    option(
        "--step-floor",
        type=ms,
        default=0.0,
        metavar="MS",
        help="make every step take at least this long, to stand for a larger target",
    )
    option(
        "--grace", type=float, default=10.0, metavar="S", help="seconds to leave after SIGTERM (%(default)s)"
    )
    option("--json", action="store_true", help="say that it listens as a line of JSON")
    _add_limits(parser)
    _add_recall(parser)
    add_operations(parser)
    add_core(parser)
    parser.set_defaults(run=run)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--max-sessions", type=int, default=64, metavar="N", help="sessions open at once (%(default)s)")
    option(
        "--max-nodes",
        type=int,
        default=16,
        metavar="N",
        help="nodes a session may have in one step (%(default)s)",
    )
    option(
        "--max-slowdown",
        type=float,
        default=0.02,
        metavar="SHARE",
        help="of its rate that a session may lose by the drafts of others (%(default)s)",
    )
    option(
        "--prefill-chunk", type=int, default=256, metavar="N", help="prompt tokens in one step (%(default)s)"
    )
    option(
        "--tenant-header",
        default="",
        metavar="KEY",
        help="metadata entry that says whose a call is; only behind a proxy that sets it for every client",
    )
    option(
        "--max-tenant-share",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="of sessions and slots that one tenant may hold (%(default)s)",
    )
    option(
        "--prefix-cache",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the KV of what was read for a tenant's next session that begins alike (%(default)s)",
    )


def _add_recall(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--recall",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="guess what a text repeats of itself and evaluate that, too (%(default)s)",
    )
    option(
        "--shared-ngrams",
        type=int,
        default=0,
        metavar="N",
        help="guess also from a table of N entries of all sessions' texts; only among users who may know of "
        "each other's texts: the pace tells (%(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    _check_options(options)
    pin_to_core(options.core)
    with logged(options):
        engine, table = _load(options)  # before the event loop, so that Ctrl-C works meanwhile
        asyncio.run(_serve(options, engine, table))
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """Before seconds are spent on loading."""
    for name, least in (("threads", 0), ("slots", 1), ("step_floor", 0), ("grace", 0)):
        value = getattr(options, name)
        if not least <= value < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be {least} or more")
    host, colon, port = options.listen.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 2**16):
        raise UserError(f"--listen is {options.listen!r}; it must be HOST:PORT, for example 127.0.0.1:50051")
    check_operations(options)


async def _serve(options: argparse.Namespace, engine: Any, table: tuple[bytes | None, ...]) -> None:
    # Imported here: torch and transformers take seconds, and an edge has neither.
    from cloud_verifier.service import Server
    from cloud_verifier.worker import Worker

    worker = Worker(engine, _scheduler(engine.info, options), max_tenants=options.metrics_tenants)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with (
        Server(worker, engine.info, table, options.listen, options.tenant_header) as server,
        watched(worker, options) as seen,
    ):
        host = options.listen.rpartition(":")[0]
        _announce(options, engine.info.name, f"{host}:{server.port}", seen)
        await server.run_until(stop)
        await server.drain(options.grace)


def _load(options: argparse.Namespace) -> tuple[Any, tuple[bytes | None, ...]]:
    try:
        import torch

        from cloud_verifier.engine.floor import FlooredEngine
        from cloud_verifier.engine.loading import load_engine
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[verifier]'") from error
    if options.threads:
        torch.set_num_threads(options.threads)
    on_cpu = options.dtype == "auto" and options.device == "cpu"
    dtype = "float32" if on_cpu else options.dtype  # a CPU gains nothing from bfloat16 and loses exactness
    engine, table = load_engine(options.model, options.slots, dtype=dtype, device=options.device)
    return (FlooredEngine(engine, options.step_floor) if options.step_floor else engine), table


def _scheduler(info: Any, options: argparse.Namespace) -> Any:
    from cloud_verifier.core.config import SchedulerConfig
    from cloud_verifier.core.scheduler import VerifyScheduler

    config = SchedulerConfig(
        max_sessions=options.max_sessions,
        max_nodes_per_session=options.max_nodes,
        max_slowdown=options.max_slowdown,
        prefill_chunk=options.prefill_chunk,
        max_tenant_share=options.max_tenant_share,
        prefix_cache=options.prefix_cache,
        recall=options.recall,
        shared_ngrams=options.shared_ngrams,
    )
    return VerifyScheduler(info, config)


def _announce(options: argparse.Namespace, name: str, address: str, seen: dict[str, str]) -> None:
    """`seen`: where else it listens, by what."""
    if options.json:
        print(json.dumps({"listening": address, "model": name, **seen}), flush=True)
        return
    print(f"Serving {name} on {address}; stop with Ctrl-C.", flush=True)
    if "metrics" in seen:
        print(f"Metrics at http://{seen['metrics']}/metrics.", flush=True)
    if "admin" in seen:
        print(f"Live sessions: forerun top --admin {seen['admin']}", flush=True)
    if options.step_floor:
        print(
            f"Every step takes at least {options.step_floor * 1e3:g} ms, to stand for a larger target.",
            flush=True,
        )
