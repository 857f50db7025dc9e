"""`forerun verify` as a process: what a supervisor sees of it before it serves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TARGET = Path(__file__).parents[2] / "demo_models" / "target"


def open_once_it_is_read(pipe: Path, reader: subprocess.Popen[bytes]) -> int:
    """The other end of a pipe, when somebody reads it; nothing announces that."""
    while reader.poll() is None:
        with contextlib.suppress(OSError):  # nobody does yet
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    raise AssertionError(f"it ended with {reader.returncode} and never read {pipe.name}")


@pytest.mark.torch
@pytest.mark.grpc
def test_one_that_is_told_to_go_while_it_loads_goes(tmp_path: Path) -> None:
    """With a status of its own: the first process of a container hears no signal that it does not ask for.
    One of its weights is a pipe that nobody fills, so it loads until it is told. The pipe ends after the
    signal: what comes just before a read is heard after it."""
    model = tmp_path / "target"
    shutil.copytree(TARGET, model)
    pipe = model / "a.safetensors"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "forerun", "verify", "--model", str(model), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command) as process:
        try:
            end = open_once_it_is_read(pipe, process)
            process.send_signal(signal.SIGTERM)
            os.close(end)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
