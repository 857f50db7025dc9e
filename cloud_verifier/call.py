"""What the service has to know of a call, and may do to it, whoever has carried it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

import grpc


class Call(Protocol):
    """As much of `grpc.aio.ServicerContext` as the service uses, and no more: that is one, and another
    carrier of calls brings its own."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """What the caller sent beside its messages."""
        ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What the connection has proven of the caller; empty without TLS."""
        ...

    def peer(self) -> str:
        """The other end of the connection, as gRPC writes it. Empty if that is not the caller's own."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the caller waits no longer; None for never, or if the carrier does not tell."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, Any], ...] = ()
    ) -> NoReturn:
        """End the call with this status. Raises `grpc.aio.AbortError`, which the method lets through."""
        ...

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call this when the call is over: all has left that was answered, or nobody is there any more."""
        ...
