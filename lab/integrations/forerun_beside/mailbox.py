"""Bring drafts from the process that serves edges into the engine's process, by a Unix datagram socket."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence

from common.errors import UserError
from forerun_beside.drafts import KEY_CHARS, DraftTree

logger = logging.getLogger(__name__)

VARIABLE = "FORERUN_MAILBOX"
"""Environment variable with the socket's path. Engines give their plug-ins no options."""

MAX_SESSIONS = 4096
"""Sessions whose newest drafts are kept. The oldest are forgotten, which costs speed alone."""

MAX_BYTES = 2**17  # of a message; a session with 128 live nodes sends 3 KB


def path_of(environment: Mapping[str, str]) -> str:
    """Return the path that the environment names. Raises `UserError` without one."""
    path = environment.get(VARIABLE, "")
    if not path:
        raise UserError(f"{VARIABLE} is not set; it must name the socket that drafts come through")
    return path


class Mailbox:
    """Keeps the newest drafts of each session. No method waits.

    With a `path` it receives them there, from this user alone: the socket's mode is 0600. A thread empties
    the socket, because the kernel queues few datagrams (10 by default) and an engine's step is long. Without
    a path another process receives and shares them. Raises `UserError` if the path cannot be bound.
    """

    def __init__(self, path: str | None) -> None:
        self._newest: OrderedDict[str, bytes] = OrderedDict()
        self._arrived = deque[bytes](maxlen=MAX_SESSIONS)
        self._socket = None if path is None else _bound(path)
        if self._socket is not None:
            threading.Thread(target=self._receive, args=(self._socket,), name="mailbox", daemon=True).start()

    def _receive(self, bound: socket.socket) -> None:
        while message := bound.recv(MAX_BYTES):  # `close` sends an empty one
            self._arrived.append(message)
        bound.close()

    def take(self) -> list[bytes]:
        """Return the messages that have arrived."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def keep(self, messages: Iterable[bytes]) -> None:
        """Keep these messages, which are read when asked for. One without nodes forgets its session."""
        for message in messages:
            key, drafts = message[:KEY_CHARS].decode(errors="replace"), message[KEY_CHARS:]
            self._newest.pop(key, None)
            if drafts:
                self._newest[key] = drafts
        while len(self._newest) > MAX_SESSIONS:
            self._newest.popitem(last=False)

    def drafts(self, key: str, start: int, written: Sequence[int]) -> DraftTree | None:
        """Return the nodes below the text of a session; None without any. `written` are the text's newest
        tokens, from position `start` on; `TAIL` of them are enough."""
        message = self._newest.get(key)
        if message is None:
            return None
        try:
            newest = DraftTree.decode(message)
        except ValueError as error:
            logger.warning("! what came for session %s is none of Forerun's: %s", key, error)
            del self._newest[key]
            return None
        seen = newest.position + 1 - start  # of `written`, by the drafts
        drafts = newest.after(written[seen:]) if 0 <= seen <= len(written) else DraftTree(0)
        return drafts if drafts.tokens else None

    def close(self) -> None:
        if self._socket is not None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(b"", self._socket.getsockname())


def _bound(path: str) -> socket.socket:
    box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    mask = os.umask(0o177)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):  # of a process that has ended
            os.unlink(path)
        box.bind(path)
    except OSError as error:
        box.close()
        raise UserError(f"{path} cannot be a socket for drafts: {error}; set {VARIABLE}") from error
    finally:
        os.umask(mask)
    return box


class Sender:
    """Sends drafts to the mailbox at `path`. What cannot be sent at once is dropped and counted."""

    def __init__(self, path: str) -> None:
        self.num_dropped = 0
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, key: str, drafts: DraftTree) -> None:
        try:
            self._socket.sendto(key.encode() + drafts.encode(), self._path)
        except OSError as error:  # no engine, or one that takes no mail just now
            self.num_dropped += 1
            logger.debug("! drafts were dropped: %s", error)

    def close(self) -> None:
        self._socket.close()
