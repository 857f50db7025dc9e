"""Notifies the service manager that started the daemon: sd_notify(3) without a library.

A manager with a watchdog (`WatchdogSec=`) restarts a daemon without signs of life. A daemon whose draft
thread hangs in native code is useless, so event loop and drafter together make a sign.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from common.errors import UserError

logger = logging.getLogger(__name__)

LONGEST_STATUS = 200
"""Characters of a status; `systemctl status` shows one line."""

ROUNDS = 4
"""Rounds in a watchdog's interval: one to ask, one to rest, and as many in reserve."""

Ping = Callable[[], Awaitable[object]]
"""Asks a component for a sign of life: returns when it has worked, and never while it hangs."""


class Notifier:
    """Notifies the service manager at `address`; empty: none. A failed notification is dropped, with one
    warning."""

    def __init__(self, address: str = "") -> None:
        """`address`: NOTIFY_SOCKET, a path or (@NAME) Linux's abstract namespace. Raise `UserError` for any
        other."""
        if address and address[0] not in "/@":
            raise UserError(f"NOTIFY_SOCKET is {address!r}; it must be a path or @NAME")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._has_warned = False

    def ready(self, status: str = "") -> None:
        """Report that the daemon serves."""
        self._tell("READY=1", *_status(status))

    def stopping(self, status: str = "") -> None:
        """Report that the daemon stops."""
        self._tell("STOPPING=1", *_status(status))

    def alive(self) -> None:
        """Feed the watchdog."""
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address or not lines:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.setblocking(False)
                manager.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("! the service manager cannot be notified: %s", error)


def watchdog_interval(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the seconds between signs of life of process `pid` (sd_watchdog_enabled(3)); None: no limit."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() and int(text) else None


@dataclass
class ServiceWatchdog:
    """Calls `feed` while both the drafter and this task's event loop advance.

    The drafter gets a new ping only after it has answered the last, so pings cannot pile up while it hangs.
    """

    feed: Callable[[], None]  # `Notifier.alive`
    interval: float  # seconds; the manager's patience
    drafter_alive: Ping
    _asked: asyncio.Future[object] | None = None

    async def run(self) -> None:
        """Feed the watchdog until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(self.interval / ROUNDS)
        finally:
            if self._asked is not None:
                self._asked.cancel()

    async def look(self) -> bool:
        """Ping the drafter, and feed if it answers in time. Return whether it did."""
        asked = self._asked = self._asked or asyncio.ensure_future(self.drafter_alive())
        await asyncio.wait([asked], timeout=self.interval / ROUNDS)
        if asked.done():
            self._asked = None
            if not asked.cancelled() and asked.exception() is None:
                self.feed()
                return True
        logger.error("! no sign of life from the drafter; the watchdog is not fed")
        return False


def _status(text: str) -> tuple[str, ...]:
    words = " ".join(text.split())[:LONGEST_STATUS]
    return (f"STATUS={words}",) if words else ()
