"""Run work that may take unlimited time or memory in a child process, asked by lines of JSON.

`ChildProcess` is the parent's side. The child's module calls `die_first`, `limit` and `serve`.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from common.errors import LocalError

START_PATIENCE = 30.0
"""Seconds for a process to start, on a small and busy device too."""

IDLE = 1800.0
"""Seconds without a message after which a child ends and frees its memory."""

LOOK_EVERY = 0.02
"""Seconds between looks at a child's memory, in which the child can fill some 50 MB."""


class ChildProcess:
    """Holds a process that runs `module`. One thread asks at a time. The process ends with its parent."""

    def __init__(self, module: str, first: Mapping[str, Any], *, max_line: int, purpose: str) -> None:
        """Start the process and send it `first`. An answer has at most `max_line` bytes. Raises `LocalError`,
        which names `purpose`, if no process starts or answers."""
        self.why = ""  # the bound that it broke, if it was killed for that
        self._max_line = max_line
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # its complaints could quote a message
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise LocalError(f"no process can be started for {purpose}: {error.strerror or error}") from error
        weakref.finalize(self, _end, self._process)
        if self.ask(first, START_PATIENCE) is None:
            raise LocalError(
                f"the process for {purpose} does not begin; `{sys.executable} -m {module}` says why"
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, message: Mapping[str, Any], patience: float, memory: int = 0) -> dict[str, Any] | None:
        """Return the child's answer, or None if it ended. The child is killed after `patience` seconds, or
        when it has more than `memory` bytes (0: no bound) in memory."""
        process = self._process
        assert process.stdin is not None, "started with a pipe"
        assert process.stdout is not None, "started with a pipe"
        with self._watched(patience, memory):
            try:
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
                found: dict[str, Any] = json.loads(process.stdout.readline(self._max_line))
            except (OSError, ValueError):
                process.kill()
                process.wait()
                return None
        return found

    @contextlib.contextmanager
    def _watched(self, patience: float, memory: int) -> Iterator[None]:
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over, patience, memory), daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, over: threading.Event, patience: float, memory: int) -> None:
        until = time.monotonic() + patience
        while not over.wait(LOOK_EVERY):
            if time.monotonic() >= until:
                self.why = f"did not come to an end in {patience:g} s"
            elif memory and resident(self._process.pid) > memory:
                self.why = f"needs more than {memory >> 20} MiB of memory"
            if self.why:
                self._process.kill()
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # bytes that the process did not read
                pipe.close()
    process.wait()


# --- the child's side ---------------------------------------------------------------------------------------


def serve(
    begin: Callable[[dict[str, Any]], Callable[[dict[str, Any]], dict[str, Any]]], max_line: int
) -> None:
    """Answer each line of standard input until none comes. `begin` takes the first line and returns the
    function that answers the others."""
    lines, out = sys.stdin.buffer, sys.stdout.buffer
    first = lines.readline(max_line)
    if not first:
        return
    answer = begin(json.loads(first))
    _say(out, {"ready": True})
    while select.select([lines], [], [], IDLE)[0] and (line := lines.readline(max_line)):
        _say(out, answer(json.loads(line)))


def _say(out: BinaryIO, found: dict[str, Any]) -> None:
    out.write(json.dumps(found).encode() + b"\n")
    out.flush()


def die_first() -> None:
    """Make this process the first to be killed if memory is short, where the system allows that."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def limit(**most: int) -> None:
    """Lower limits of this process, by their names in `resource`, where the system has and allows them."""
    with contextlib.suppress(ImportError):
        import resource

        for name, value in most.items():
            with contextlib.suppress(AttributeError, ValueError, OSError):
                resource.setrlimit(getattr(resource, name), (value, value))


def resident(pid: int | str = "self") -> int:
    """Return the bytes that a process has in memory; 0 where the system does not say."""
    return _statm(pid, 1)


def addresses() -> int:
    """Return the bytes of this process' address space; 0 where the system does not say."""
    return _statm("self", 0)


def available_memory() -> int:
    """Return the bytes that can be had without swapping; 0 where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _statm(pid: int | str, column: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read(200).split()[column]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0
