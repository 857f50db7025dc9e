"""Run work that may take unlimited time or memory in a child process, asked by lines of JSON.

`ChildProcess` is the parent's side. The child's module calls `die_first`, `limit` and `serve`.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import CapacityError, Code, LocalError

START_PATIENCE = 60.0
"""Seconds for a process to start, on a small and busy device too. 2.5 % of a core need 10."""

IDLE = 1800.0
"""Seconds without a message after which a child ends and frees its memory."""

LOOK_EVERY_MS = 20
"""Time between looks at a child's memory, in which the child can fill some 50 MB."""

OUT_OF_TIME = int(getattr(signal, "SIGPROF", 0))
"""Signal that ends a child that has used up its processor time. A system without it has the clock alone."""


class ChildProcess:
    """Holds a process that runs `module`. One thread asks at a time. The process ends with its parent.

    What the work needs is counted in processor time and memory. The clock bounds only how long the caller
    waits. It says nothing about the work, because a busy machine may not have run it at all.
    """

    def __init__(self, module: str, first: Mapping[str, Any], *, max_line: int, purpose: str) -> None:
        """Start the process and send it `first`. An answer has at most `max_line` bytes. The errors name
        `purpose`. Raises `LocalError` if no process starts, and `CapacityError` if it does not answer within
        `START_PATIENCE`."""
        self.why = ""  # the bound that the work broke, if the process was ended for that
        self._max_line, self._purpose = max_line, purpose
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
        assert self._process.stdin is not None, "started with a pipe"
        assert self._process.stdout is not None, "started with a pipe"
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)  # a child that does not read holds up no caller
        if self.ask(first, START_PATIENCE) is None:
            raise LocalError(
                f"the process for {purpose} does not begin; `{sys.executable} -m {module}` says why"
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, message: Mapping[str, Any], patience: float, *, seconds: float = 0.0, memory: int = 0
    ) -> dict[str, Any] | None:
        """Return the child's answer, or None if the process ended; `why` then names the bound that it broke.

        The work may take `seconds` of processor time, where the system can count them, and `memory` bytes
        (0: no bound). Raises `CapacityError` if no answer comes within `patience` seconds on the clock.
        """
        left = memoryview(json.dumps({"seconds": seconds, "message": message}).encode() + b"\n")
        late_at, line = time.monotonic() + patience, bytearray()
        ready = select.poll()
        ready.register(self._output, select.POLLIN)
        ready.register(self._input, select.POLLOUT)
        try:
            while not line.endswith(b"\n"):
                for pipe, _ in ready.poll(LOOK_EVERY_MS):
                    if pipe == self._output:
                        line += self._read(len(line))
                    elif not (left := left[os.write(self._input, left) :]):
                        ready.unregister(self._input)
                if memory and resident(self._process.pid) > memory:
                    self.why = f"needs more than {memory >> 20} MiB of memory"
                    self._process.kill()
                elif time.monotonic() >= late_at:
                    self._process.kill()
                    self._process.wait()
                    raise CapacityError(
                        f"this machine is too busy: the process for {self._purpose} got no answer ready in "
                        f"{patience:g} s; try again later",
                        Code.UNAVAILABLE,
                    )
            answer: dict[str, Any] = json.loads(line)
        except (OSError, ValueError):  # it has ended, or writes no line of JSON
            self._process.kill()
            if self._process.wait() == -OUT_OF_TIME:
                self.why = f"takes more than {seconds:g} s of processor time"
            return None
        return answer

    def _read(self, held: int) -> bytes:
        """Return the next bytes of an answer, of which `held` are there. Raise `ValueError` if it ends."""
        piece = os.read(self._output, self._max_line - held)
        if not piece:
            raise ValueError("the line has no end")
        return piece


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
    """Answer each line of standard input until none comes. `begin` takes the first message and returns the
    function that answers the others. Processor time counts within that function alone."""
    lines, out = sys.stdin.buffer, sys.stdout.buffer
    first = lines.readline(max_line)
    if not first:
        return
    if OUT_OF_TIME:
        signal.signal(OUT_OF_TIME, signal.SIG_DFL)  # a profiler's child would ignore it
    answer = begin(json.loads(first)["message"])
    _say(out, {"ready": True})
    while select.select([lines], [], [], IDLE)[0] and (line := lines.readline(max_line)):
        asked = json.loads(line)
        _count(asked["seconds"])
        result = answer(asked["message"])
        _count(0.0)
        _say(out, result)


def _count(seconds: float) -> None:
    """End this process after so many seconds of a processor; 0 counts no longer."""
    if OUT_OF_TIME:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _say(out: BinaryIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message).encode() + b"\n")
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


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can be had without swapping, at most what control groups (a container's limit)
    leave; 0 where the system does not say. `root`: of the files that tell."""
    with contextlib.suppress(OSError), (root / "proc/meminfo").open(encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return max(1, int(min(int(line.split()[1]) * 1024, *_left_by_groups(root))))
    return 0


GROUP_FILES = {
    "": ("", "memory.max", "memory.current", ""),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
"""By a control group's controller, of version 2 and 1: the folder of all groups, the files of a group's limit
and use, and what stands before the names of its cached pages."""


def _left_by_groups(root: Path) -> Iterator[float]:
    """Yield what the control groups of this process leave; cached files can be dropped."""
    yield math.inf
    with contextlib.suppress(OSError):
        for line in _told(root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in GROUP_FILES.keys() & set(controllers.split(",")):
                folder, limit, use, prefix = GROUP_FILES[controller]
                top = root / "sys/fs/cgroup" / folder
                group = top / path.lstrip("/")
                for place in (group, *group.parents):
                    with contextlib.suppress(OSError, ValueError):  # no limit ("max"), or no such group here
                        most, used = (int(_told(place / name)) for name in (limit, use))
                        stat = dict(
                            each.split() for each in _told(place / "memory.stat").splitlines() if each
                        )
                        cached = sum(
                            int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive")
                        )
                        yield most - used + cached
                    if place == top:
                        break


def _told(path: Path) -> str:
    """Return what the system tells in a file of its own. Raises `OSError`."""
    with path.open(encoding="utf-8") as file:
        return file.read(2**16)


def _statm(pid: int | str, column: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read(200).split()[column]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0
