"""Ports for processes that cannot say which one they were given, and ports that refuse.

The kernel gives a port that was just let go to the next who asks for any, and tests and measurements run
beside others. So what must stay free until a process takes it, or between its end and its next start, lies
below what kernels give away by themselves (Linux: 32768 to 60999, others: 49152 to 65535).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
from collections.abc import Iterator

LOWEST, COUNT = 20_000, 12_000
"""The ports that `free_port` gives."""

_next = itertools.count()


def free_port() -> int:
    """One of loopback that nobody listens on, to be used by one process after the other.

    Never given twice by this process. Others begin at other ports by their ids; after some tens of ports one
    may come to those of another, of which it notices only those that are listened on at that moment.
    """
    for _ in range(COUNT):
        port = LOWEST + (os.getpid() * 97 + next(_next)) % COUNT
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
    raise OSError(errno.EADDRINUSE, f"all ports from {LOWEST} to {LOWEST + COUNT - 1} are taken")


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """An address, HOST:PORT, that refuses connections until the block ends: bound, and not listened on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
