"""What Kubernetes asks: three questions by the gRPC health protocol, on a port of their own.

The kubelet can neither do TLS nor show a certificate in its gRPC probes, and the port for edges may ask for
both. So this one is plain text, and nothing is there but health. Every answer is made when it is asked for,
by the event loop itself: that it answers at all is what `liveness` means, and no engine has a part in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cloud_verifier.core.readiness import Readiness, Standing
from cloud_verifier.guard import Guard
from cloud_verifier.listening import listen
from common.errors import Code, PeerError
from common.rpc.options import server_options

logger = logging.getLogger(__name__)

STARTUP, READINESS, LIVENESS = "startup", "readiness", "liveness"
"""Names to ask for: the target is loaded; new sessions may come; the event loop turns. The empty name, which
most tools ask for, means the last."""


class Probes(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # its package has no types
    """Answers what it is asked. `look` tells how things stand now."""

    def __init__(self, look: Callable[[], Standing]) -> None:
        self._look = look
        self._readiness = Readiness()
        self._told = ""  # why not, as last logged

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:
        if request.service not in (STARTUP, READINESS, LIVENESS, ""):
            words = f"there is no health of {request.service[:64]!r}; ask for startup, readiness or liveness"
            raise PeerError(words, Code.NOT_FOUND)
        ready = request.service != READINESS or self._is_ready()
        answer = health_pb2.HealthCheckResponse
        return answer(status=answer.SERVING if ready else answer.NOT_SERVING)

    def _is_ready(self) -> bool:
        why_not = self._readiness.why_not(self._look())
        if bool(why_not) != bool(self._told):
            logger.info("%s", f"! not ready: {why_not}" if why_not else "> ready again")
        self._told = why_not
        return not why_not


class ProbeServer:
    """Listens on `address` (HOST:PORT; port 0 picks one, which `address` has inside). An async context
    manager. Raises `UserError` if it cannot be listened on."""

    def __init__(self, look: Callable[[], Standing], address: str) -> None:
        self._look = look
        self.address = address
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> ProbeServer:
        server = self._server = grpc.aio.server(options=server_options(), interceptors=(Guard(),))
        health_pb2_grpc.add_HealthServicer_to_server(Probes(self._look), server)
        port = listen(server, self.address, "--health HOST:PORT")
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        await self._server.stop(grace=None)
