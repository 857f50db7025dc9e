"""A verifier's gRPC server: where it listens, how it is entered and left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cloud_verifier.connections import Connections
from cloud_verifier.core.target import TargetInfo
from cloud_verifier.guard import Guard, Method, Questions
from cloud_verifier.heart import FLUSH_TIME, NO_FILES, Heart
from cloud_verifier.identity import EVERYBODY, Identity
from cloud_verifier.line import PrivacySettings
from cloud_verifier.listening import listen
from cloud_verifier.service import DESCRIBE, SERVICE_NAME, SESSION, VerifierService
from cloud_verifier.telemetry.trust import DENIED
from cloud_verifier.tls import LiveTls, ServerTls
from cloud_verifier.worker import Worker
from common.pb import verifier_pb2_grpc as pb_grpc
from common.rpc.describe import TokenTable
from common.rpc.live_files import LiveFiles
from common.rpc.options import server_options, session_bytes
from common.rpc.wire_fields import check_request


class Server:
    """A verifier listening on `address` (HOST:PORT; port 0 picks one). An async context manager.

    `identity` says whose calls are; `files` are those that are looked after beside those of `tls`. Raises
    `UserError` when the address cannot be listened on, or a file of `tls` cannot be used.
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
        privacy: PrivacySettings = PrivacySettings(),  # noqa: B008 - frozen
    ) -> None:
        self._worker = worker
        self._tls = None if tls is None else LiveTls(tls)
        self._connections, self._questions = Connections(), Questions()
        self._service = VerifierService(
            worker, info, table, identity, privacy, files.get(DENIED), self._connections, self._questions
        )
        self._heart = Heart(worker, self._service, self._tls, files)
        self.upkeep = self._heart.upkeep
        self._address = address
        self._max_positions = info.max_positions
        self._over_at: float | None = None  # on the loop's clock; None cuts off whoever is there
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self.port = 0

    async def __aenter__(self) -> Server:
        most = self._max_positions
        methods = {
            SESSION: Method(lambda data: check_request(data, most), bounds_itself=True),
            DESCRIBE: Method(first=self._service.check_caller),
        }
        server = self._server = grpc.aio.server(
            options=server_options(message_bytes=session_bytes(most)),
            interceptors=(Guard(methods, self._questions),),
        )
        pb_grpc.add_VerifierServiceServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        credentials = None if self._tls is None else self._tls.credentials()
        self.port = self._connections.port = listen(server, self._address, "HOST:PORT", credentials)
        await server.start()
        await self._heart.__aenter__()
        self._watch = asyncio.create_task(self._connections.run())
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self._server.stop(grace=self._time_left())
        await self._heart.__aexit__()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises what broke the heartbeat, if anything does: no step would run."""
        await self._heart.until(stop.wait())

    async def drain(self, grace: float) -> None:
        """Stop admitting, tell every session to go, and wait until they have. After `grace` seconds those
        that are still here are ended with a status that says so, and strict streams as soon as all is said.
        What was committed gets away first, for `FLUSH_TIME`. Raises as `run_until`."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._over_at = asyncio.get_running_loop().time() + grace + FLUSH_TIME
        await self._heart.drain(grace)

    def _time_left(self) -> float | None:
        """Seconds for what is on its way, once nobody needs to be waited for but that."""
        if self._over_at is None:
            return None
        return min(max(self._over_at - asyncio.get_running_loop().time(), 0.0), FLUSH_TIME)

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)
