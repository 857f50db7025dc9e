"""Chat messages as a prompt, by the target's own template: rendered beside this process, within bounds.

The template comes from a verifier and runs on this device, so it is trusted with nothing. A sandbox keeps it
from objects; but one expression can fill a memory or hold an interpreter for minutes, and no list of what a
template must not do is ever whole. So it is run by a process that has little memory, and that is ended if it
takes too long (`template_child`).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from common.errors import LocalError, PeerError, UserError

MAX_OUTPUT = 8 * 2**20
"""Characters: twice what a context of a million tokens holds."""

MAX_LINE = 12 * MAX_OUTPUT + 1024
"""Bytes of an answer: a character beyond the first 65,536 takes twelve in JSON."""

PATIENCE = 2.0
"""Seconds for one rendering; the templates in use take milliseconds."""

MEMORY = 512 * 2**20
"""Bytes that one rendering may have in memory. The process bounds itself, too, but not where that is not
allowed, as in our own systemd unit."""

LOOK_EVERY = 0.02
"""Seconds between looks at it meanwhile: in which some 50 MB can be filled."""

START_PATIENCE = 20.0
"""Seconds for the process to begin: a small device that is busy needs some."""

PAGE = mmap.PAGESIZE

CHILD = "edge_client.daemon.template_child"

Message = Mapping[str, Any]


class ChatTemplate:
    """A template and the words that it knows. Any thread may render; one text is rendered at a time."""

    def __init__(self, source: str, words: Mapping[str, str]) -> None:
        self.source = source
        self._words = dict(words)
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def render(self, messages: Sequence[Message], settings: Mapping[str, Any] | None = None) -> str:
        """The prompt, ready for the model's answer. `settings` are the template's own switches.

        Takes up to `PATIENCE` seconds, and with a process that has to begin first some tenths more, so call
        it beside the event loop. Raises `UserError` where it refuses the messages, `PeerError` where it
        cannot be read, breaks, writes too much or does not come to an end, `LocalError` if no process begins.
        """
        values = {
            "add_generation_prompt": True,
            **(settings or {}),
            **self._words,
            "messages": list(messages),
        }
        with self._lock:
            return _text_of(self._ready().render(values))

    def _ready(self) -> _Child:
        """The process of before, if it has not ended meanwhile."""
        if self._child is None or not self._child.is_alive:
            self._child = _Child(self.source)
        return self._child


class _Child:
    """One process. It ends by itself when it has had nothing to do for long, or when this one has gone."""

    def __init__(self, source: str) -> None:
        self._why = ""  # it was ended by us
        try:  # what it would write to standard error could quote a message
            self._process = subprocess.Popen(
                [sys.executable, "-m", CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            words = f"no process can be started for chat templates: {error.strerror or error}"
            raise LocalError(words) from error
        weakref.finalize(self, _end, self._process)
        if self._say({"source": source, "most": MAX_OUTPUT}, START_PATIENCE) is None:
            raise LocalError(
                f"the process for chat templates does not begin; `{sys.executable} -m {CHILD}` says why"
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def render(self, values: dict[str, Any]) -> dict[str, str]:
        """What it says of a text. Raises `PeerError` if it ended over it, or had to be ended."""
        found = self._say({"values": values}, PATIENCE)
        if found is None:
            raise PeerError(
                f"the target's chat template {self._why or 'has ended the process that renders it'}"
            )
        return found

    def _say(self, message: dict[str, Any], patience: float) -> dict[str, str] | None:
        """Its answer; None if there is none in time, and it is over then."""
        process = self._process
        assert process.stdin is not None, "started with a pipe"
        assert process.stdout is not None, "started with a pipe"
        with self._watched(patience):
            try:
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
                found: dict[str, str] = json.loads(_line(process.stdout))
            except (OSError, ValueError):
                process.kill()
                process.wait()
                return None
        return found

    @contextlib.contextmanager
    def _watched(self, patience: float) -> Iterator[None]:
        """Within it the process is ended for what it must not do, and then nobody is at the other end of
        what is written or read."""
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over, time.monotonic() + patience), daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, over: threading.Event, until: float) -> None:
        while not over.wait(LOOK_EVERY):
            if time.monotonic() >= until:
                self._why = f"did not come to an end in {PATIENCE:g} s"
            elif _resident(self._process.pid) > MEMORY:
                self._why = f"needs more than {MEMORY >> 20} MiB of memory"
            if self._why:
                self._process.kill()
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nobody will ask it any more."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what it did not read any more
                pipe.close()
    process.wait()


def _resident(pid: int) -> int:
    """Bytes that a process has in memory; 0 where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read(200).split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _line(out: IO[bytes]) -> bytes:
    """Raises `ValueError` for one that is too long, or not whole."""
    line = out.readline(MAX_LINE)
    if not line.endswith(b"\n"):
        raise ValueError("no whole line")
    return line


def _text_of(told: dict[str, str]) -> str:
    match told:
        case {"text": str(text)}:
            return text
        case {"refused": str(words)}:
            raise UserError(f"the target's chat template refuses these messages: {words[:1000]}")
        case {"unreadable": str(words)}:
            raise PeerError(f"the target's chat template cannot be read: {words[:1000]}")
        case _:
            words = str(told.get("broke", ""))[:1000]
            raise PeerError(f"the target's chat template cannot render these messages: {words}")
