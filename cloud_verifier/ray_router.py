"""Which replica a stream goes to, in Ray Serve's proxies: the one that holds the KV of the chat it continues.

Named in a deployment's `request_router_config`; imported by Ray only.
"""

from __future__ import annotations

from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from common.rpc.options import KEY_ENTRY


class SessionRouter(ConsistentHashRouter):  # type: ignore[misc]  # Ray counts as untyped
    """Ray's ring, by the key that edges send. Ray 2.60 itself takes that header from HTTP requests only; in
    gRPC's metadata it looks for `session_id`, without the x. Where that is there it still counts."""

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> Any:
        """See `ray.serve.request_router.RequestRouter`."""
        if pending_request is not None:
            metadata = pending_request.metadata
            metadata.session_id = metadata.session_id or key_of(metadata.grpc_context)
        return await super().choose_replicas(candidate_replicas, pending_request)


def key_of(context: Any) -> str:
    """What the edge sent with the call of this context; empty without one, and for a call without a key."""
    entries = context.invocation_metadata() if context is not None else ()
    return next((value for key, value in entries if key == KEY_ENTRY), "")
