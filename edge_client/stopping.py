"""Ends the daemon of a record: the very process, and not one that has its number by now."""

from __future__ import annotations

import os
import select
import signal
import time

from common.errors import UserError
from edge_client.daemon_file import DaemonRecord, is_alive

LOOK = 0.05
"""Seconds between two looks where the kernel does not tell of a process's end."""


def stop(record: DaemonRecord, timeout: float, kind: signal.Signals = signal.SIGTERM) -> bool:
    """Ask it to end and wait for that, `timeout` seconds at most; whether it has ended.

    Raises `UserError` if it is another user's.
    """
    try:
        if hasattr(os, "pidfd_open"):
            return _stop_by_descriptor(record, timeout, kind)
        if is_alive(record):
            os.kill(record.pid, kind)
        return _gone(record, timeout)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise UserError(f"process {record.pid} is another user's; stop the daemon as that user") from error


def _stop_by_descriptor(record: DaemonRecord, timeout: float, kind: signal.Signals) -> bool:
    """Linux: a descriptor stays this process's, whatever becomes of its number."""
    descriptor = os.pidfd_open(record.pid)
    try:
        if not is_alive(record):  # looked at after the descriptor was had, so it is of the same process
            return True
        signal.pidfd_send_signal(descriptor, kind)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(timeout * 1e3))
    finally:
        os.close(descriptor)


def _gone(record: DaemonRecord, timeout: float) -> bool:
    until = time.monotonic() + timeout
    while is_alive(record):
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK)
    return True
