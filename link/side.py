"""One socket of a proxied connection, as an asyncio protocol that reports to its connection."""

import asyncio
import contextlib
import os
import socket
import struct
from typing import Protocol

from link.toxics import Stream

# A socket that lingers for 0 seconds is closed with a RST (POSIX); Windows packs two shorts.
_LINGER_0 = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)


class Owner(Protocol):
    """What a side reports to."""

    def on_open(self, side: "Side") -> None:
        """The socket is open, and not read from yet."""

    def on_data(self, side: "Side", data: bytes) -> None:
        """Its peer sent these bytes."""

    def on_eof(self, side: "Side") -> None:
        """Its peer will send no more."""

    def on_room(self, side: "Side") -> None:
        """Its send buffer filled or emptied. Must not write: it may be called from within a write."""

    def on_lost(self, side: "Side", error: Exception | None) -> None:
        """The socket is gone: closed by us (`error` is None), or lost."""


class Side(asyncio.Protocol):
    """One socket. Writes to a socket that is gone do nothing: `Owner.on_lost` tells of that once."""

    def __init__(self, owner: Owner, stream: Stream) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self.stream = stream  # the direction of what this socket's peer sends
        self.is_full = False  # its peer reads slower than we write

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open. It is not read from before the owner says so."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.pause_reading()
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._owner.on_open(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._owner.on_data(self, data)

    def eof_received(self) -> bool:
        """The peer is done sending; `True` keeps the socket open for the other direction."""
        self._owner.on_eof(self)
        return True

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self.is_full = True
        self._owner.on_room(self)

    def resume_writing(self) -> None:
        """The send buffer has room again."""
        self.is_full = False
        self._owner.on_room(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        self._owner.on_lost(self, error)

    # What the owner calls

    def write(self, data: bytes) -> bool:
        """Writes to the peer; says whether there was a socket to write to."""
        if transport := self._open_transport():
            transport.write(data)
            return True
        return False

    def write_eof(self) -> None:
        """Tells the peer that no more will come."""
        if transport := self._open_transport():
            with contextlib.suppress(OSError):  # the peer has gone already, and asyncio has not noticed yet
                transport.write_eof()

    def set_reading(self, wanted: bool) -> None:
        """Reads on, or leaves what comes in the kernel, so that the sender feels it."""
        if transport := self._open_transport():
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def close(self) -> None:
        """Closes once what was written is sent."""
        if transport := self._open_transport():
            transport.close()

    def reset(self) -> None:
        """Closes at once with a RST; what was written and not sent is lost."""
        if transport := self._open_transport():
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
        if self._transport:
            self._transport.abort()

    def _open_transport(self) -> asyncio.Transport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport
