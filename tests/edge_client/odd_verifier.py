"""A verifier that says any bytes, for what no honest one sends."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any


class OddVerifier:
    """Answers `Describe` with `described`, and each session with one message of `said`."""

    def __init__(self, described: bytes, said: bytes) -> None:
        self.num_sessions = 0
        self.described, self._said = described, said

    async def describe(self, request: bytes, context: object) -> bytes:
        return self.described

    async def session(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        self.num_sessions += 1
        yield self._said
        async for _ in requests:
            pass


@contextlib.asynccontextmanager
async def odd_verifier(described: bytes = b"", said: bytes = b"") -> AsyncIterator[tuple[OddVerifier, str]]:
    """Serve until the block ends; the verifier and its address."""
    import grpc.aio

    service = OddVerifier(described, said)
    methods: dict[str, Any] = {
        "Describe": grpc.unary_unary_rpc_method_handler(service.describe),
        "Session": grpc.stream_stream_rpc_method_handler(service.session),
    }
    server = grpc.aio.server()
    name = "forerun.v1.VerifierService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
