"""Build a verifier from its configuration: the engine, the worker, the identity of callers, the listeners.

`forerun verify`, measurements and tests call `serve`. Ray Serve carries calls itself and uses the parts
(`forerun_ray.application`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from cloud_verifier.core.batching import most_rows
from cloud_verifier.core.engine_protocol import TargetEngine, TargetInfo
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.identity.caller_files import live_denied, live_limits
from cloud_verifier.identity.identity import (
    EVERYBODY,
    CertificateIdentity,
    HeaderIdentity,
    Identity,
    SecretIdentity,
    live_secrets,
)
from cloud_verifier.identity.server_tls import ServerTls
from cloud_verifier.progress import LoggedProgress, Progress, no_progress
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from cloud_verifier.settings import (
    IdentitySection,
    OperationsSection,
    ServerSection,
    TargetSection,
    VerifierConfig,
)
from cloud_verifier.telemetry.monitor import DENIED, SECRETS, TENANT_LIMITS, TOKEN_KEYS
from common.acceptance import AcceptanceRule
from common.config.live_files import LiveFiles
from common.errors import UserError
from common.offers import offer
from common.privacy import Privacy
from common.sampling import NO_ADVICE
from common.wire.describe import TokenTable
from common.wire.grpc_options import host_and_port, is_loopback

logger = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0002
"""Seconds after which a Python thread yields to a waiting one (default 5 ms). The engine's thread waits that
long for a busy event loop, at each kernel launch and when its device is done."""

Announce = Callable[[TargetInfo, str, Mapping[str, str]], None]
"""Takes the target, the address for edges, and the operator's address by name."""


class SchedulerWatch(Protocol):
    """Measures a verifier from inside its process, as `python -m lab bench` does."""

    def watched(self, scheduler: VerifyScheduler) -> VerifyScheduler:
        """Return the scheduler that the worker uses in place of `scheduler`."""
        ...

    def run(self, worker: Worker) -> Awaitable[None]:
        """Run beside the server. The verifier stops when this returns."""
        ...


async def serve(
    config: VerifierConfig,
    engine: TargetEngine,
    table: TokenTable,
    announce: Announce,
    watch: SchedulerWatch | None = None,
) -> None:
    """Serve until a signal arrives or `watch` returns. Raises `UserError` for an address or a limit."""
    worker = worker_of(config, engine, watch)
    await serve_worker(config.server, config.identity, config.operations, worker, table, announce, watch)


async def serve_worker(
    section: ServerSection,
    identity: IdentitySection,
    operations: OperationsSection,
    worker: Worker,
    table: TokenTable,
    announce: Announce,
    watch: SchedulerWatch | None = None,
) -> None:
    info = worker.scheduler.info
    caller, files = identity_of(identity)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    privacy = Privacy[section.privacy.upper()]
    server = Server(worker, info, table, section.listen, caller, tls_of(section), files, privacy)
    async with server, watched(operations, worker) as besides:
        host = section.listen.rpartition(":")[0]
        warn_of_plain_text(section)
        announce(info, f"{host}:{server.port}", besides)
        watching = None if watch is None else asyncio.ensure_future(watch.run(worker))
        if watching is not None:
            watching.add_done_callback(lambda _: stop.set())
        await server.run_until(stop)
        await server.drain(section.grace)
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def use_torch(target: TargetSection, progress: Progress = no_progress) -> None:
    """Import torch and set it up. Raises `UserError` if a package that the engine needs is not installed."""
    progress("importing torch")
    if target.deterministic:  # read when CUDA starts; without it cuBLAS may sum in another order each time
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        import torch

        import cloud_verifier.engine.torch_loading  # noqa: F401 - only to check that its packages are installed
    except ImportError as error:
        what = f"{error.name} is not installed" if error.name else f"an import failed ({error})"
        raise UserError(f"{what}; pip install 'forerun[verifier]'") from error
    if target.threads:
        torch.set_num_threads(target.threads)


def load(
    config: VerifierConfig, progress: Progress | None = None, records: Path | None = None
) -> tuple[TargetEngine, TokenTable]:
    """Load the engine and its token table. The log tells the `progress` unless another one is given.
    `records`: the folder that remembers GGUF files which have passed their checks. Raises `UserError`."""
    target, limits = config.target, config.limits
    progress = progress or LoggedProgress()
    if target.is_gguf:
        return _load_gguf(config, progress, records)
    use_torch(target, progress)
    from cloud_verifier.engine.torch_loading import load_engine

    scheduler = config.scheduler  # reads the judge's file
    engine, table = load_engine(
        target.path,
        target.slots,
        dtype=target.dtype,
        device=target.device,
        deterministic=bool(target.deterministic),
        attention=target.attention,
        max_rows=limits.max_rows,
        prefill_chunk=scheduler.chunk,
        drafter=target.engine_drafter,
        progress=progress,
    )
    judge = scheduler.judge
    if judge is not None and judge.num_hidden not in (0, engine.model.hidden_size):
        raise UserError(
            f"--judge {config.server.judge} reads hidden states of {judge.num_hidden} numbers, and those of "
            f"the target have {engine.model.hidden_size}; train a judge on this target"
        )
    served: TargetEngine = engine
    if target.hint_at:
        served = _engine_around("hints")(engine, target.hint_at)
    elif AcceptanceRule.REFLECTIVE in config.server.rules:
        served = _engine_around(AcceptanceRule.REFLECTIVE.title)(engine)
    return served, table


def _engine_around(name: str) -> Callable[..., TargetEngine]:
    """Return what makes an engine around a `TorchEngine`: an entry point of the group `forerun.engines`, as
    `schemes` has them. Raises `UserError` if no installed package offers it."""
    missing = UserError(f"no installed package offers the engine '{name}'; pip install 'forerun[verifier]'")
    make: Callable[..., TargetEngine] = offer("forerun.engines", name, missing)
    return make


def _load_gguf(
    config: VerifierConfig, progress: Progress, records: Path | None
) -> tuple[TargetEngine, TokenTable]:
    from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine

    target, limits = config.target, config.limits
    options = LlamaOptions(
        threads=target.threads,
        gpu_layers=target.gpu_layers,
        tensor_split=tuple(float(share) for share in target.tensor_split.split(",") if share),
        deterministic=target.deterministic,
    )
    engine, table, _ = load_engine(
        target.path,
        target.slots,
        limits.max_rows,
        most_rows(config.scheduler),
        options,
        target.served_name,
        progress=progress,
        records=records,
    )
    return engine, table


def info_of(config: VerifierConfig, engine: TargetEngine) -> TargetInfo:
    info = replace(engine.info, name=config.target.served_name)
    is_advised = config.server.sampling_defaults == "model"
    return info if is_advised else replace(info, sampling_defaults=NO_ADVICE)


def worker_of(config: VerifierConfig, engine: TargetEngine, watch: SchedulerWatch | None = None) -> Worker:
    log = training_log_of(config.identity)
    scheduler_of = VerifyScheduler if log is None else log.scheduler
    scheduler: VerifyScheduler = scheduler_of(info_of(config, engine), config.scheduler)
    sys.setswitchinterval(SWITCH_INTERVAL)
    _keep_what_is_loaded()
    seen = scheduler if watch is None else watch.watched(scheduler)
    return Worker(engine, seen)


def training_log_of(section: IdentitySection) -> Any:
    """Return the log of texts for training, whose schedulers fill it (`schemes.training_log`); None without a
    folder. Raises `UserError`."""
    if section.training_log is None:
        return None
    missing = UserError("no installed package offers a training log; pip install 'forerun[verifier]'")
    open_log = offer("forerun.training_logs", "texts", missing)
    return open_log(section.training_log, section.training_log_mb, section.training_log_key)


def _keep_what_is_loaded() -> None:
    """Exclude all current objects from garbage collection. Libraries and model are some 400,000 objects, and
    scanning them would stall every session for tenths of a second."""
    gc.collect()
    gc.freeze()


def warn_of_plain_text(server: ServerSection) -> None:
    if server.tls_cert is None and not is_loopback(server.listen.rpartition(":")[0]):
        logger.warning(
            "%s serves prompts and texts in plain text to every machine that reaches it; give --tls-cert and "
            "--tls-key, or listen on 127.0.0.1",
            server.listen,
        )


def tls_of(server: ServerSection) -> ServerTls | None:
    """Return the files of TLS; None for plain text."""
    if server.tls_cert is None or server.tls_key is None:
        return None
    return ServerTls(server.tls_cert, server.tls_key, server.tls_client_ca)


def identity_of(section: IdentitySection) -> tuple[Identity, Mapping[str, LiveFiles[Any]]]:
    """Return the way to identify callers, and the files that it reads. Raises `UserError`."""
    files = dict[str, LiveFiles[Any]]()
    if section.tenant_limits is not None:
        files[TENANT_LIMITS] = live_limits(section.tenant_limits)
    if section.denied is not None:
        files[DENIED] = live_denied(section.denied)
    if section.tenant_certificate is not None:
        return CertificateIdentity(section.tenant_certificate), files
    if section.secret_file is not None:
        files[SECRETS] = live_secrets(section.secret_file)
        return SecretIdentity(files[SECRETS]), files
    if section.token_keys is None:
        return (HeaderIdentity(section.tenant_header) if section.tenant_header else EVERYBODY), files
    from cloud_verifier.identity.token_identity import TokenIdentity, TokenRules, live_keys  # needs pyjwt

    rules = TokenRules(section.token_audience, section.token_issuer)
    tokens = TokenIdentity(live_keys(section.token_keys), rules)
    return tokens, {**files, TOKEN_KEYS: tokens.keys}


@contextlib.asynccontextmanager
async def watched(section: OperationsSection, worker: Worker) -> AsyncIterator[Mapping[str, str]]:
    """Serve the operator's port, if there is one, and yield its address by name. Raises `UserError`."""
    if (address := host_and_port(section.http)) is None:
        yield {}
        return
    from cloud_verifier.telemetry.http_server import HttpServer  # prometheus_client may be missing

    async with HttpServer(worker.snapshot, worker.scheduler.why_not_ready, *address) as http:
        yield {"http": f"{address[0]}:{http.port}"}
