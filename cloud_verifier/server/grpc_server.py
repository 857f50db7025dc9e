"""Run a verifier's gRPC server: listen, serve and drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.identity.identity import EVERYBODY, Identity
from cloud_verifier.identity.server_tls import LiveServerTls, ServerTls
from cloud_verifier.server.calls import VerifierService
from cloud_verifier.server.interceptor import Guard
from cloud_verifier.server.lifecycle import FLUSH_TIME, NO_FILES, Lifecycle
from cloud_verifier.server.worker import Worker
from cloud_verifier.telemetry.monitor import DENIED
from common.config.live_files import LiveFiles
from common.errors import UserError
from common.privacy import Privacy
from common.wire.describe import TokenTable
from common.wire.grpc_options import server_options, session_bytes
from common.wire.service import SERVICE_NAME, SESSION, add_service
from common.wire.wire_fields import check_request


def _is_news(record: logging.LogRecord) -> bool:
    """Tell gRPC's errors from the one about a call whose client was gone before its status could be sent."""
    return not record.getMessage().startswith("ExecuteBatchError")


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)


def listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind the server, over TLS with `credentials`, and return its port. Raises `UserError`."""
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        words = "it is in use, or not an address of this machine; choose another HOST:PORT"
        raise UserError(f"cannot listen on {address}: {words}") from error


class Server:
    """Serves a verifier on `address` (HOST:PORT; port 0 picks one). An async context manager.

    `identity` identifies callers; `files` are reread when they change, like the files of `tls`. Raises
    `UserError` if the server cannot listen on the address, or a file of `tls` cannot be used.
    """

    def __init__(
        self,
        worker: Worker,
        info: TargetInfo,
        table: TokenTable,
        address: str,
        identity: Identity = EVERYBODY,
        tls: ServerTls | None = None,
        files: Mapping[str, LiveFiles[Any]] = NO_FILES,
        privacy: Privacy = Privacy.PADDED,
    ) -> None:
        self._worker = worker
        self._tls = None if tls is None else LiveServerTls(tls)
        self._service = VerifierService(worker, info, table, identity, privacy, files.get(DENIED))
        self.lifecycle = Lifecycle(worker, self._service, self._tls, files)
        self._address = address
        self._max_positions = info.max_positions
        self._over_at: float | None = None  # on the loop's clock; None: end open calls at once
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self.port = 0

    async def __aenter__(self) -> Server:
        most = self._max_positions
        server = self._server = grpc.aio.server(
            options=server_options(message_bytes=session_bytes(most)),
            interceptors=(Guard({SESSION: lambda data: check_request(data, most)}),),
        )
        add_service(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        credentials = None if self._tls is None else self._tls.credentials()
        self.port = listen(server, self._address, credentials)
        await server.start()
        await self.lifecycle.__aenter__()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        await self._server.stop(grace=self._time_left())
        await self.lifecycle.__aexit__()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises the error that broke the heartbeat, if one does."""
        await self.lifecycle.until(stop.wait())

    async def drain(self, grace: float) -> None:
        """Drain as `Lifecycle.drain` does, and report health as not serving."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._over_at = asyncio.get_running_loop().time() + grace + FLUSH_TIME
        await self.lifecycle.drain(grace)

    def _time_left(self) -> float | None:
        """Return the seconds left for messages in transit."""
        if self._over_at is None:
            return None
        return min(max(self._over_at - asyncio.get_running_loop().time(), 0.0), FLUSH_TIME)

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)
