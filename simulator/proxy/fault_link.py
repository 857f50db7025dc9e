"""Implements the link itself: it listens, makes connections, and holds the toxics that they share."""

import asyncio
import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from simulator.proxy import toxics as toxics_
from simulator.proxy.connection import Address, ByteTally, LinkSettings, ProxiedConnection, SocketSide
from simulator.proxy.toxics import LinkDirection, LinkStateError, SettingsError, Toxic, UnknownToxicError


@dataclass(frozen=True)
class LinkCounters:
    """Counts what a link carried up to one moment."""

    upstream: ByteTally  # client to server
    downstream: ByteTally  # server to client
    num_connections: int  # accepted so far
    num_open: int  # of them, not closed yet

    def __str__(self) -> str:
        return (
            f"{self.num_connections} connections ({self.num_open} open), "
            f"up {self.upstream.num_bytes} bytes in {self.upstream.num_chunks} chunks, "
            f"down {self.downstream.num_bytes} bytes in {self.downstream.num_chunks} chunks"
        )


class Link:
    """Runs a TCP proxy with faults, as an async context manager.

    Toxics may be changed before it starts and while it runs, from the event loop's thread; a change holds at
    once for all connections. Raises `LinkStateError` for a call that needs a running link.
    """

    def __init__(self, settings: LinkSettings, toxics: Iterable[Toxic] = ()) -> None:
        self._settings = settings
        self._toxics: dict[str, Toxic] = {}
        self._enabled = True
        self._tallies = {stream: ByteTally() for stream in LinkDirection}
        self._connections: dict[int, ProxiedConnection] = {}
        self._num_connections = 0
        self._socket: socket.socket | None = None  # bound while the link runs; listens while it is enabled
        self._server: asyncio.Server | None = None  # while it is enabled
        for toxic in toxics:
            self.add_toxic(toxic)

    @classmethod
    def to(cls, upstream: str, *toxics: Toxic, listen: str = "127.0.0.1:0", seed: int = 0) -> Self:
        """Return a link to `HOST:PORT` with these toxics. Raises `SettingsError` for a malformed address."""
        return cls(LinkSettings(Address.parse(upstream), Address.parse(listen), seed), toxics)

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Bind the address and, if enabled, listen. Raises `SettingsError` when the address is taken."""
        if self._socket is not None:
            raise LinkStateError("this link runs already; make another link")
        self._socket = _bind(self._settings.listen)
        if self._enabled:
            await self.enable()

    async def close(self) -> None:
        """Stop listening and close all connections; data on the way is lost. May be called twice."""
        self._stop_listening()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        left = list(self._connections.values())
        self.cut(reset=False)
        await asyncio.sleep(0)  # sockets with nothing left to send are closed by now
        for connection in left:
            connection.end(reset=True)
        await asyncio.gather(*(connection.closed for connection in left))

    @property
    def address(self) -> Address:
        """Return the address that clients connect to."""
        if self._socket is None:
            raise LinkStateError("this link has no address until it runs; use `async with link:`")
        host, port = self._socket.getsockname()[:2]
        return Address(host, port)

    @property
    def counters(self) -> LinkCounters:
        """Return a copy of the counters so far, which does not change."""
        up, down = (dataclasses.replace(self._tallies[stream]) for stream in LinkDirection)
        return LinkCounters(up, down, self._num_connections, len(self._connections))

    # Faults of the link as a whole

    @property
    def enabled(self) -> bool:
        """Return whether the link accepts connections."""
        return self._enabled

    async def enable(self) -> None:
        """Accept connections (again)."""
        self._enabled = True
        if self._server is None and self._socket is not None:
            self._server = await asyncio.get_running_loop().create_server(self._accept, sock=self._socket)

    async def disable(self) -> None:
        """Refuse new connections; open ones stay (toxiproxy closes them too: call `cut` for that)."""
        self._enabled = False
        if self._server is not None:
            address = self.address
            self._stop_listening()
            self._socket = _bind(address)  # a bound socket that does not listen refuses, and keeps our port

    def cut(self, *, reset: bool = True) -> int:
        """End all open connections at once, by RST or else by an ordinary close; return how many."""
        connections = list(self._connections.values())
        for connection in connections:
            connection.end(reset=reset)
        return len(connections)

    # Toxics

    @property
    def toxics(self) -> tuple[Toxic, ...]:
        """Return the toxics in force, in the order in which they were added."""
        return tuple(self._toxics.values())

    def add_toxic(self, toxic: Toxic) -> None:
        """Add a toxic. Raises `SettingsError` when its name is taken."""
        if toxic.name in self._toxics:
            raise SettingsError(
                f"there is a toxic {toxic.name!r} already; name this one differently, or use set_toxic"
            )
        self.set_toxic(toxic)

    def set_toxic(self, *toxics: Toxic) -> None:
        """Add toxics, each in the place of the toxic of its name if there is one."""
        self._toxics |= {toxic.name: toxic for toxic in toxics}
        self._apply()

    def remove_toxic(self, name: str) -> None:
        """Remove a toxic. Raises `UnknownToxicError`."""
        if name not in self._toxics:
            names = ", ".join(self._toxics) or "none"
            raise UnknownToxicError(f"there is no toxic {name!r} on this link; there are: {names}")
        del self._toxics[name]
        self._apply()

    def rtt(self, rtt: float, *, jitter: float = 0.0) -> None:
        """Add `rtt` +- `jitter` ms to the round trip, half on each direction; replaces an earlier call's."""
        self.set_toxic(*toxics_.rtt(rtt, jitter=jitter))

    # Inside

    def _apply(self) -> None:
        for connection in list(self._connections.values()):
            connection.on_toxics(self.toxics)

    def _accept(self) -> SocketSide:
        connection = ProxiedConnection(
            self._num_connections, self._settings, lambda: self.toxics, self._tallies
        )
        self._num_connections += 1
        self._connections[connection.number] = connection
        connection.closed.add_done_callback(lambda _: self._connections.pop(connection.number))
        return connection.client

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _bind(address: Address) -> socket.socket:
    """Return a bound TCP socket that does not listen. Raises `SettingsError` when the address cannot be
    had."""
    try:
        places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, target = places[0]
        with contextlib.ExitStack() as on_error:
            bound = on_error.enter_context(socket.socket(family, kind, protocol))
            bound.setblocking(False)
            if os.name == "posix":  # on Windows the option lets two listeners share a port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(target)
            on_error.pop_all()
    except OSError as error:
        raise SettingsError(f"the link cannot listen on {address} ({error}); choose another one") from error
    return bound
