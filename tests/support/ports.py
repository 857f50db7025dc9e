"""Ports for processes that cannot say which one they were given, and ports that refuse."""

import contextlib
import socket
from collections.abc import Iterator

from lab.benchmarks.processes import free_port

__all__ = ["free_port", "refusing"]


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """An address, HOST:PORT, that refuses connections until the block ends: bound, and not listened on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
