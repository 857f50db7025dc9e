"""A Forerun process under attack: bounded in memory, watched, and drained at the end."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from pathlib import Path

from benchmarks.programs import Program
from common.errors import UnavailableError
from tests.fuzz.laws import Broken

LIMIT = 2 << 30
"""Bytes that a process under attack may have, its children included."""

INTERVAL = 0.05
"""Seconds between two looks at a process's memory."""

LATE = 4.0
"""Seconds after its grace in which a process must be gone: two are promised, two are for a busy machine."""

GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
)
"""Where control groups of version 2 and 1 are, and the file of their memory limit."""

PAGE = resource.getpagesize()


class Subject:
    """A process, from its start to its end. `files`: descriptors that it may have; 0: as this process."""

    def __init__(self, program: Program, log: Path, files: int = 0) -> None:
        self.program, self.log = program, log
        self.peak = 0  # resident bytes of it and its children
        self.killed = False  # by the watcher, over the limit
        self._files = files
        self._group: Path | None = None
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def bound(self) -> str:
        """What bounds its memory."""
        return "control group" if self._group is not None else "watcher"

    async def start(self) -> None:
        """Start it, bounded before it has loaded anything."""
        await self.program.start()
        pid = self.program.pid
        self._group = self._group or limited_group(f"forerun-attacks-{os.getpid()}-{pid}")
        if self._group is not None:
            (self._group / "cgroup.procs").write_text(str(pid))
        if self._files:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (self._files, self._files))
        self._over.clear()
        self._watcher = threading.Thread(target=self._watch, args=(pid, self._over), daemon=True)
        self._watcher.start()

    def check(self) -> None:
        """Raise `Broken` unless the process lives and has kept to its limit."""
        if self.killed:
            raise Broken(f"the {self.program.name} had more than {LIMIT >> 20} MiB and was killed")
        try:
            self.program.check()
        except UnavailableError as error:
            raise Broken(f"{error}; {self._last_words()}") from None

    async def drain(self, grace: float) -> None:
        """Tell it to go. Raises `Broken` unless it is gone in time and says that all went well."""
        self.check()
        self.program.send(signal.SIGTERM)
        began = time.monotonic()
        try:
            await self.program.gone(grace + LATE)
        except UnavailableError:
            raise Broken(
                f"not gone {time.monotonic() - began:.0f} s after SIGTERM, grace {grace:g} s"
            ) from None
        if self.program.code:
            raise Broken(f"it ended with code {self.program.code} when told to go; {self._last_words()}")

    async def kill(self) -> None:
        """End it at once, and stop watching."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        await self.program.close()

    async def close(self) -> None:
        await self.kill()
        if self._group is not None:
            with contextlib.suppress(OSError):  # what it left may still be ending
                self._group.rmdir()
            self._group = None

    def _watch(self, pid: int, over: threading.Event) -> None:
        while not over.wait(INTERVAL):
            now = resident(pid)
            self.peak = max(self.peak, now)
            if now > LIMIT:
                self.killed = True
                for each in family(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)

    def _last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "its log is empty"


def limited_group(name: str) -> Path | None:
    """A new control group with the limit, where this user may make one. The watcher is there in any case."""
    for parent, limit in GROUPS:
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
        except OSError:
            group.rmdir()
            continue
        return group
    return None


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found, todo = list[int](), [pid]
    while todo:
        found.append(todo.pop())
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{found[-1]}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
    return found


def resident(pid: int) -> int:
    """Bytes of a process and all below it."""
    total = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * PAGE
    return total
