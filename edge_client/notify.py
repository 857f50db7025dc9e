"""What the daemon tells the service manager that started it: sd_notify(3) without a library.

A service manager that watches (`WatchdogSec=`) restarts a daemon which does not say in time that it lives. A
process whose event loop turns while its draft thread hangs in native code serves nobody, so here only both
together are a sign of life.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from common.errors import UserError

logger = logging.getLogger(__name__)

LONGEST_STATUS = 200
"""Characters; `systemctl status` shows one line."""

ROUNDS = 4
"""In which a watchdog's interval is divided: one to ask, one to rest, and as much again in hand."""

Ping = Callable[[], Awaitable[object]]
"""Asks a part for a sign of life: returns when it has done something, and never while it hangs."""


class Notifier:
    """Tells the service manager at `address`; with an empty one there is none and nothing happens.

    A manager that has gone is no reason to stop, so what cannot be told is dropped, with a warning once.
    """

    def __init__(self, address: str = "") -> None:
        """`address`: NOTIFY_SOCKET, a path or, after an @, a name in Linux's abstract namespace.

        Raises `UserError` if it is neither.
        """
        if address and address[0] not in "/@":
            raise UserError(f"NOTIFY_SOCKET is {address!r}; it must be a path or @NAME")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._has_warned = False

    def ready(self, status: str = "") -> None:
        """It serves. Once, or again after `reloading`."""
        self._tell("READY=1", *_status(status))

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._tell(*_status(text))

    def reloading(self) -> None:
        """It reads its configuration again; `ready` follows."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> None:
        """It ends."""
        self._tell("STOPPING=1", *_status(status))

    def alive(self) -> None:
        """For the watchdog."""
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
                logger.warning("! the service manager cannot be told: %s", error)


def watchdog_interval(environment: Mapping[str, str], pid: int) -> float | None:
    """Seconds in which a sign of life is expected of process `pid` (sd_watchdog_enabled(3)); None: never."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() and int(text) else None


@dataclass
class Watchdog:
    """Calls `feed` as long as the event loop and the drafter advance; `run` it as a task.

    Each is asked anew only when it has answered, so nothing piles up before one that hangs; when it goes on,
    feeding does, too.
    """

    feed: Callable[[], None]  # `Notifier.alive`
    interval: float  # seconds; the manager's patience
    loop_alive: Ping
    drafter_alive: Ping
    _asked: dict[str, asyncio.Task[object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise UserError(f"the watchdog's interval is {self.interval} s; it must be above 0")

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(self._patience)
        finally:
            for task in self._asked.values():
                task.cancel()

    async def look(self) -> bool:
        """Ask both, and feed if both answer in time. Whether it did."""
        for name, ping in (("event loop", self.loop_alive), ("drafter", self.drafter_alive)):
            if name not in self._asked:
                self._asked[name] = asyncio.create_task(_asking(ping))
        await asyncio.wait(self._asked.values(), timeout=self._patience)
        answered = [name for name, task in self._asked.items() if task.done()]
        failed = [name for name in answered if _gave_up(self._asked.pop(name))]
        if silent := [*self._asked, *failed]:
            logger.error("! no sign of life from the %s; the watchdog is not fed", " and the ".join(silent))
            return False
        self.feed()
        return True

    @property
    def _patience(self) -> float:
        return self.interval / ROUNDS


async def loop_ping() -> None:
    """The event loop's own: it turns once."""
    await asyncio.sleep(0)


async def _asking(ping: Ping) -> object:
    """An awaitable as a coroutine, which a task needs."""
    return await ping()


def _gave_up(task: asyncio.Task[object]) -> bool:
    return task.cancelled() or task.exception() is not None


def _status(text: str) -> tuple[str, ...]:
    """No line, or one."""
    words = " ".join(text.split())[:LONGEST_STATUS]
    return (f"STATUS={words}",) if words else ()
