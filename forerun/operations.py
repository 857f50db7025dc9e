"""How an operator watches `forerun verify`: its log, its metrics and its admin listener."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from common.errors import UserError
from forerun.logs import FORMATS, writing
from forerun.options import check_free, split_address

if TYPE_CHECKING:
    from cloud_verifier.worker import Worker

LEVELS = ("debug", "info", "warning", "error")


def add_operations(parser: argparse.ArgumentParser) -> None:
    """Their options."""
    group = parser.add_argument_group("to see what it does (docs/operations.md)")
    option = group.add_argument
    option(
        "--metrics",
        default="",
        metavar="HOST:PORT",
        help="serve Prometheus metrics at http://HOST:PORT/metrics; off unless given",
    )
    option(
        "--metrics-tenants",
        type=int,
        default=0,
        metavar="N",
        help="the first N tenants get metrics of their own, all others share one; 0 for none (%(default)s)",
    )
    option(
        "--health",
        default="",
        metavar="HOST:PORT",
        help="answer a supervisor's gRPC probes there (startup, readiness, liveness), in plain text; off "
        "unless given",
    )
    option(
        "--admin",
        default="",
        metavar="ADDRESS",
        help="answer `forerun top` at unix:PATH or a HOST:PORT of this machine only; off unless given",
    )
    option(
        "--log-level",
        choices=LEVELS,
        default=argparse.SUPPRESS,
        help="how much is logged to standard error (info)",
    )
    option("--log-format", choices=tuple(FORMATS), default="text", help="(%(default)s)")


def check_operations(options: argparse.Namespace) -> None:
    """Raise `UserError` for what cannot be served, before seconds are spent on loading."""
    if options.metrics:
        check_free("--metrics", options.metrics)
        if find_spec("prometheus_client") is None:
            raise UserError("prometheus_client is not installed; pip install 'forerun[verifier]'")
    if options.health:
        check_free("--health", options.health)
    if options.admin:
        from cloud_verifier.admin import check_private

        check_private(options.admin)
    if options.metrics_tenants < 0:
        raise UserError(f"--metrics-tenants is {options.metrics_tenants}; it must be 0 or more")


def logged(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """As a server logs, while it lasts."""
    return writing(options.log_level, options.log_format)


@contextlib.asynccontextmanager
async def watched(worker: Worker, options: argparse.Namespace) -> AsyncIterator[dict[str, str]]:
    """What the options ask for, listening; yields the addresses by name. Raises `UserError` for one that
    cannot be listened on."""
    from cloud_verifier.admin import AdminServer
    from cloud_verifier.probes import ProbeServer
    from cloud_verifier.telemetry.server import MetricsServer

    found = dict[str, str]()
    async with contextlib.AsyncExitStack() as stack:
        if options.metrics:
            host, port = split_address("--metrics", options.metrics)
            metrics = await stack.enter_async_context(MetricsServer(worker.snapshot, host, port))
            found["metrics"] = f"{host}:{metrics.port}"
        if options.health:
            probes = await stack.enter_async_context(ProbeServer(worker.standing, options.health))
            found["health"] = probes.address
        if options.admin:
            admin = await stack.enter_async_context(AdminServer(worker.snapshot, options.admin))
            found["admin"] = admin.address
        yield found
