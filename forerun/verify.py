"""`forerun verify`: load a target model and serve it to edges."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloud_verifier.engine.attention_names import ATTENTIONS
from cloud_verifier.engine.exact_tiles import TILE_ROWS
from common.acceptance import LOSSLESS, AcceptanceRule, rule_named
from common.errors import UserError
from common.sampling import NO_ADVICE
from forerun.limits import add_limits, config_from
from forerun.operations import add_operations, check_operations, logged, watched
from forerun.options import add_core, check_free, ms, pin_to_core
from forerun.privacy_options import add_privacy, privacy_from, privacy_in_words
from forerun.tensor_parallel import add_tensor_parallel, check_tensor_parallel, run_parallel
from forerun.verify_identity import add_identity, check_identity, identity
from forerun.verify_tls import add_tls, check_tls, server_tls

if TYPE_CHECKING:
    from cloud_verifier.core.scheduler import VerifyScheduler
    from cloud_verifier.core.target import TargetEngine, TargetInfo
    from cloud_verifier.worker import Worker
    from common.rpc.describe import TokenTable

logger = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0002
"""Seconds after which Python's threads yield to one that waits (its default is 5 ms): an engine whose device
is done waits so long for an event loop that is busy with messages, and so does each of its launches."""

DESCRIPTION = """\
Loads a causal language model (a local folder in Hugging Face format, or a hub id), checks that Forerun's
packed evaluation of it is right, and serves it to edges over gRPC until it is stopped. On SIGTERM it
tells every session to go elsewhere, waits for at most --grace seconds and ends.

  forerun verify --model demo_models/target --listen 127.0.0.1:50051"""


class Watch(Protocol):
    """Somebody who measures a verifier from inside its process; `forerun bench` does."""

    def watched(self, scheduler: VerifyScheduler) -> VerifyScheduler:
        """What the worker gets in the scheduler's place."""
        ...

    def run(self, worker: Worker) -> Awaitable[None]:
        """Beside the server; when it returns the verifier stops."""
        ...


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
        help="serve a target model to edges (the server side)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All that a verifier can be told."""
    _add_target(parser)
    add_tls(parser)
    add_identity(parser)
    add_privacy(parser)
    add_limits(parser)
    _add_acceleration(parser)
    _add_exact(parser)
    _add_rules(parser)
    add_tensor_parallel(parser)
    add_operations(parser)
    add_core(parser)


def _add_target(parser: argparse.ArgumentParser) -> None:
    """What is served, where, and how it is loaded."""
    option = parser.add_argument
    option(
        "--model",
        required=True,
        metavar="PATH",
        help="folder with config, tokenizer and safetensors, or hub id",
    )
    option(
        "--name",
        default="",
        metavar="NAME",
        help="the model's name for edges (default: the folder's, or the id)",
    )
    option("--listen", default="127.0.0.1:50051", metavar="HOST:PORT", help="port 0 picks one (%(default)s)")
    option("--device", default="cpu", help="cpu, cuda or cuda:N (%(default)s)")
    option(
        "--dtype",
        default="auto",
        help="auto, float32, bfloat16 or float16 (%(default)s: as stored; on a CPU float32, unless it "
        "computes in bfloat16 and a bfloat16 model has 100 million parameters)",
    )
    option(
        "--quantize",
        metavar="KIND",
        help="int8: linear layers in 8 bits a weight (needs the extra `quantized`); none by default",
    )
    option("--threads", type=int, default=0, metavar="N", help="torch's threads; 0 leaves torch's own choice")
    option(
        "--slots",
        type=slots,
        metavar="N",
        help="tokens of KV over all sessions, or auto: all that fit on a CUDA device, at most 16384 on a CPU "
        "(auto)",
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
    option(
        "--sampling-defaults",
        default="model",
        choices=("model", "openai"),
        help="source of sampling values for requests that name none: the model's generation_config, or "
        "OpenAI's, temperature 1 and nothing else (%(default)s)",
    )
    option("--json", action="store_true", help="say that it listens as a line of JSON")


def _add_acceleration(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--attention",
        default="auto",
        choices=ATTENTIONS,
        help="how attention is computed; auto is triton on a CUDA device, else torch_ref (docs/gpu.md)",
    )
    option(
        "--cuda-graphs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="replay whole steps, on a CUDA device with triton (%(default)s)",
    )
    option(
        "--warm-graphs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="make the graphs of all step sizes before serving, instead of each when it first comes "
        "(%(default)s)",
    )


def _add_exact(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--deterministic",
        action="store_true",
        help="compute every text bit for bit alike, whoever else is served; slower (docs/determinism.md)",
    )
    option(
        "--tile-rows",
        type=int,
        default=TILE_ROWS,
        metavar="N",
        help="rows of every forward under --deterministic; another number, other bits (%(default)s)",
    )


def _add_rules(parser: argparse.ArgumentParser) -> None:
    lossy = ", ".join(rule.title for rule in AcceptanceRule if not rule.lossless)
    option = parser.add_argument
    option(
        "--allow-rule",
        action="append",
        default=[],
        metavar="RULE",
        help="a lossy acceptance rule that sessions may ask for, under which a text is not the target's: "
        f"{lossy}. May be given several times (none; docs/acceptance.md)",
    )
    option(
        "--coupled-only",
        action="store_true",
        help="allow no acceptance rule but the default one, which costs the server least",
    )


def slots(text: str) -> int | None:
    """The value of `--slots`; None for auto."""
    try:
        return None if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither auto nor a whole number") from None


def allowed_rules(options: argparse.Namespace) -> tuple[AcceptanceRule, ...]:
    """What sessions may ask for. Raises `UserError` for an unknown name."""
    named = [rule_named(name) for name in options.allow_rule]
    allowed = (*(LOSSLESS[:1] if options.coupled_only else LOSSLESS), *named)
    return tuple(dict.fromkeys(allowed))


def run(options: argparse.Namespace) -> int:
    check_options(options)
    pin_to_core(options.core)
    signal.signal(signal.SIGTERM, _leave)  # until it serves, and drains
    with logged(options):
        if options.tensor_parallel:
            use_torch(options)
            return run_parallel(options, lambda *parts: asyncio.run(serve(options, *parts)))
        engine, table = load(options)  # before the event loop, so that Ctrl-C works meanwhile
        asyncio.run(serve(options, engine, table))
    return 0


def _leave(*_: object) -> None:
    """SIGTERM while the target is loaded. The first process of a container ignores it otherwise, and would
    stay until it is killed."""
    raise SystemExit(128 + signal.SIGTERM)


def check_options(options: argparse.Namespace) -> None:
    """Before seconds are spent on loading."""
    config_from(options)
    if options.slots is not None and options.slots < 1:
        raise UserError(f"--slots is {options.slots}; it must be auto, or 1 or more")
    for name, least in (("threads", 0), ("tile_rows", 1), ("step_floor", 0), ("grace", 0)):
        value = getattr(options, name)
        if not least <= value < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be {least} or more")
    allowed_rules(options)
    privacy_from(options)
    if options.deterministic and options.device == "cpu" and not options.threads:
        raise UserError(
            "--deterministic on a CPU needs --threads N: the bits depend on the number of threads, so a "
            "verifier on a machine with more cores would write other texts"
        )
    if options.deterministic and options.attention == "triton":
        raise UserError("--deterministic brings its own attention; leave --attention out")
    check_tensor_parallel(options)
    check_tls(options)
    check_identity(options)
    check_free("--listen", options.listen)
    check_operations(options)


async def serve(
    options: argparse.Namespace, engine: TargetEngine, table: TokenTable, watch: Watch | None = None
) -> None:
    """Until it is told to stop, or `watch` has seen enough. Raises `UserError` for an address or a limit."""
    # Imported here: torch and transformers take seconds, and an edge has neither.
    from cloud_verifier.server import Server

    worker = worker_of(options, engine, watch)
    info = worker.scheduler.info
    caller, files = identity(options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with (
        Server(
            worker,
            info,
            table,
            options.listen,
            caller,
            server_tls(options),
            files,
            privacy_from(options),
        ) as server,
        watched(worker, options) as besides,
    ):
        host = options.listen.rpartition(":")[0]
        warn_of_plain_text(options)
        _announce(options, info.name, f"{host}:{server.port}", besides)
        watching = None if watch is None else asyncio.ensure_future(watch.run(worker))
        if watching is not None:
            watching.add_done_callback(lambda _: stop.set())
        await server.run_until(stop)
        await server.drain(options.grace)
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def info_of(options: argparse.Namespace, engine: TargetEngine) -> TargetInfo:
    """What edges are told of the target."""
    info = replace(engine.info, name=served_name(options))
    return info if options.sampling_defaults == "model" else replace(info, sampling_defaults=NO_ADVICE)


def worker_of(options: argparse.Namespace, engine: TargetEngine, watch: Watch | None = None) -> Worker:
    """The verifier itself, as the options ask for it; who carries its calls is another matter. Raises
    `UserError`."""
    from cloud_verifier.core.scheduler import VerifyScheduler
    from cloud_verifier.worker import Worker

    config = replace(config_from(options), rules=allowed_rules(options))
    scheduler = VerifyScheduler(info_of(options, engine), config)
    sys.setswitchinterval(SWITCH_INTERVAL)
    _keep_what_is_loaded()
    seen = scheduler if watch is None else watch.watched(scheduler)
    return Worker(engine, seen, max_tenants=options.metrics_tenants)


def served_name(options: argparse.Namespace) -> str:
    """What edges are told the model is called: `--name`, a folder's own name, or the hub id. A path of this
    machine is nobody's business."""
    folder = Path(options.model).expanduser()
    return str(options.name or (folder.resolve().name if folder.is_dir() else options.model))


def warn_of_plain_text(options: argparse.Namespace) -> None:
    """Warn if prompts and texts cross a network without encryption."""
    from cloud_verifier.admin import is_loopback

    host = options.listen.rpartition(":")[0]
    if options.tls_cert is None and not options.listen.startswith("unix:") and not is_loopback(host):
        logger.warning(
            "%s serves prompts and texts in plain text to every machine that reaches it; give --tls-cert and "
            "--tls-key, or listen on 127.0.0.1",
            options.listen,
        )


def _keep_what_is_loaded() -> None:
    """Take all that is there out of the garbage collector's sight: libraries and model are some 400,000
    objects, and to look through them for nothing holds every session up for tenths of a second."""
    gc.collect()
    gc.freeze()


def use_torch(options: argparse.Namespace) -> None:
    """Raises `UserError` if what the engine needs is not installed."""
    if options.deterministic:  # read when CUDA starts; without it cuBLAS may sum in another order each time
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        import torch

        import cloud_verifier.engine.loading  # noqa: F401 - only to see whether all it needs is there
    except ImportError as error:
        what = f"{error.name} is not installed" if error.name else f"an import failed ({error})"
        raise UserError(f"{what}; pip install 'forerun[verifier]'") from error
    if options.threads:
        torch.set_num_threads(options.threads)


def load(options: argparse.Namespace) -> tuple[TargetEngine, TokenTable]:
    """The engine that the options ask for, and its token table. Raises `UserError`."""
    use_torch(options)
    from cloud_verifier.engine.floor import FlooredEngine
    from cloud_verifier.engine.loading import load_engine

    engine, table = load_engine(
        options.model,
        options.slots,
        dtype=options.dtype,
        device=options.device,
        quantization=options.quantize,
        exact_rows=options.tile_rows if options.deterministic else 0,
        attention=options.attention,
        cuda_graphs=options.cuda_graphs,
        warm_rows=options.max_rows if options.warm_graphs else 0,
        max_rows=options.max_rows,
        prefill_chunk=options.prefill_chunk,
    )
    if engine.model.shrinkage is not None and not options.json:
        print(f"Quantized: {engine.model.shrinkage}.", flush=True)
    return (FlooredEngine(engine, options.step_floor) if options.step_floor else engine), table


def _announce(options: argparse.Namespace, name: str, address: str, besides: dict[str, str]) -> None:
    """`besides`: where else it listens, by what."""
    if options.json:
        told = {
            "listening": address,
            "model": name,
            "deterministic": options.deterministic,
            "privacy": options.privacy,
            "pid": os.getpid(),
            **besides,
        }
        print(json.dumps(told), flush=True)
        return
    print(f"Serving {name} on {address}; stop with Ctrl-C.", flush=True)
    print(privacy_in_words(options), flush=True)
    if "metrics" in besides:
        print(f"Metrics at http://{besides['metrics']}/metrics.", flush=True)
    if "admin" in besides:
        print(f"Live sessions: forerun top --admin {besides['admin']}", flush=True)
    if options.deterministic:
        print("Texts are the same bit for bit, whoever else is served (docs/determinism.md).", flush=True)
    lossy = [rule.title for rule in allowed_rules(options) if not rule.lossless]
    if lossy:
        print(f"Sessions may ask for lossy acceptance rules: {', '.join(lossy)}.", flush=True)
    if options.step_floor:
        print(
            f"Every step takes at least {options.step_floor * 1e3:g} ms, to stand for a larger target.",
            flush=True,
        )
