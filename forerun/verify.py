"""`forerun verify`: load a target model and serve it to edges."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from forerun.limits import add_limits, config_from
from forerun.options import add_core, ms, pin_to_core
from forerun.tensor_parallel import add_tensor_parallel, run_parallel

if TYPE_CHECKING:
    from cloud_verifier.engine.parallel import Leader

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
    option(
        "--quantize",
        metavar="KIND",
        help="int8: linear layers in 8 bits a weight (needs the extra `quantized`); none by default",
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
    option(
        "--tenant-header",
        default="",
        metavar="KEY",
        help="metadata entry that says whose a call is; only behind a proxy that sets it for every client",
    )
    add_limits(parser)
    add_tensor_parallel(parser)
    add_core(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check_options(options)
    config_from(options)
    pin_to_core(options.core)
    _use_torch(options)
    if options.tensor_parallel:
        return run_parallel(options, lambda *parts: asyncio.run(_serve(options, *parts)))
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
    _check_free(host.strip("[]"), int(port))


def _check_free(host: str, port: int) -> None:
    """Whether it can be listened on. It may be taken meanwhile; the server will then say so again."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --listen HOST:PORT"
        ) from error


async def _serve(
    options: argparse.Namespace,
    engine: Any,
    table: tuple[bytes | None, ...],
    leader: Leader | None = None,
) -> None:
    """Until a signal comes, or `leader` has lost the other processes of its target."""
    # Imported here: torch and transformers take seconds, and an edge has neither.
    from cloud_verifier.core.scheduler import VerifyScheduler
    from cloud_verifier.engine.floor import FlooredEngine
    from cloud_verifier.service import Server
    from cloud_verifier.worker import Worker

    if options.step_floor:
        engine = FlooredEngine(engine, options.step_floor)
    worker = Worker(engine, VerifyScheduler(engine.info, config_from(options)))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    if leader is not None:
        leader.when_lost(lambda: loop.call_soon_threadsafe(stop.set))
    async with Server(worker, engine.info, table, options.listen, options.tenant_header) as server:
        host = options.listen.rpartition(":")[0]
        _announce(options, engine.info.name, f"{host}:{server.port}")
        await server.run_until(stop)
        await server.drain(options.grace)


def _use_torch(options: argparse.Namespace) -> None:
    try:
        import torch

        import cloud_verifier.engine.loading  # noqa: F401 - only to see whether all it needs is there
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[verifier]'") from error
    if options.threads:
        torch.set_num_threads(options.threads)


def _load(options: argparse.Namespace) -> tuple[Any, tuple[bytes | None, ...]]:
    from cloud_verifier.engine.loading import default_dtype, load_engine

    dtype = default_dtype(options.dtype, options.device)
    engine, table = load_engine(
        options.model, options.slots, dtype=dtype, device=options.device, quantization=options.quantize
    )
    if engine.model.shrinkage is not None and not options.json:
        print(f"Quantized: {engine.model.shrinkage}.", flush=True)
    return engine, table


def _announce(options: argparse.Namespace, name: str, address: str) -> None:
    if options.json:
        print(json.dumps({"listening": address, "model": name, "pid": os.getpid()}), flush=True)
        return
    print(f"Serving {name} on {address}; stop with Ctrl-C.", flush=True)
    if options.step_floor:
        print(
            f"Every step takes at least {options.step_floor * 1e3:g} ms, to stand for a larger target.",
            flush=True,
        )
