"""Route a stream in Ray Serve's proxies to the replica that holds the KV of its chat.

`application.py` and `deploy/ray/serve.yaml` name this class; only Ray imports this module.
"""

from __future__ import annotations

from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from common.wire.grpc_options import KEY_ENTRY


class SessionRouter(ConsistentHashRouter):  # type: ignore[misc]  # Ray counts as untyped
    """Routes by Ray's hash ring and the key that edges send. Ray 2.60 reads that header from HTTP requests
    only; in gRPC metadata it reads `session_id`, without the x, which takes precedence."""

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> Any:
        if pending_request is not None:
            metadata = pending_request.metadata
            metadata.session_id = metadata.session_id or key_of(metadata.grpc_context)
        return await super().choose_replicas(candidate_replicas, pending_request)


def key_of(context: Any) -> str:
    """Return the key that the edge sent with the call; empty without a key or a context."""
    entries = context.invocation_metadata() if context is not None else ()
    return next((value for key, value in entries if key == KEY_ENTRY), "")
