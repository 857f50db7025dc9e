"""A real mosquitto for one test: on a free port, with rules and certificates where the test is about them."""

import contextlib
import getpass
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_client.fleet.document import Kill
from tests.conftest import WHERE_PROGRAMS_ARE
from tests.support.ports import free_port

TENANT, DEVICE = "acme", "pi-1"
PATIENCE = 30.0
"""Seconds until a test gives up; nothing depends on how long something takes below it."""


@dataclass
class Broker:
    """A running mosquitto."""

    folder: Path
    port: int
    process: subprocess.Popen[str] | None = None
    log: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Return when it listens."""
        program = shutil.which("mosquitto", path=WHERE_PROGRAMS_ARE)
        assert program is not None
        self.process = subprocess.Popen(
            [program, "-v", "-c", str(self.folder / "mosquitto.conf")], stderr=subprocess.PIPE, text=True
        )
        running = threading.Event()
        threading.Thread(target=self._read, args=(self.process, running), daemon=True).start()
        assert running.wait(PATIENCE), self.log
        assert self.process.poll() is None, self.log

    def _read(self, process: subprocess.Popen[str], running: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self.log.append(line)
                if line.rstrip().endswith(" running"):
                    running.set()
        running.set()  # or it has ended

    def kill(self) -> None:
        """End it without a goodbye."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def broker(
    folder: Path, rules: str = "", certificates: Path | None = None, more: tuple[str, ...] = ()
) -> Iterator[Broker]:
    """Run a broker. `rules` is an ACL file; `certificates` a folder with ca.pem and the server's pair."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    lines = [f"listener {port} 127.0.0.1", "persistence false", f"user {getpass.getuser()}", *more]
    if certificates is None:
        lines.append("allow_anonymous true")
    else:
        pems = {"cafile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
        lines += [f"{name} {certificates / pem}" for name, pem in pems.items()]
    if rules:
        (folder / "rules").write_text(rules)
        os.chmod(folder / "rules", 0o600)
        lines.append(f"acl_file {folder / 'rules'}")
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    found = Broker(folder, port)
    found.start()
    try:
        yield found
    finally:
        found.kill()


class Daemon:
    """A daemon's side of its fleet, which keeps what it is ordered."""

    def __init__(self) -> None:
        self.kills = list[Kill]()
        self.settings: Mapping[str, Any] = {}
        self.figures: Any = {"tokens": 7}
        self.state = {"version": "0.1", "draft": "demo", "verifier": "gpu-1", "mode": "ahead"}
        self.error = ""  # the fault that `apply` finds

    def about(self) -> Mapping[str, str]:
        return self.state

    def telemetry(self) -> Any:
        return self.figures

    def apply(self, settings: Mapping[str, Any]) -> str:
        self.settings = self.settings if self.error else settings
        return self.error

    def obey(self, kill: Kill) -> None:
        self.kills.append(kill)
