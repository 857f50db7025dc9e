"""`forerun chat` in a pipe and on a real terminal."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests import wording
from tests.edge_client.api.world import alone
from tests.forerun.beside import command, daemon, state_folder

pytestmark = [pytest.mark.api, pytest.mark.grpc]

LONG = next(seed for seed in range(1000) if len(alone("a", seed=seed, temperature=1.0)) > 15)
"""A seed with which the tiny target has much to say."""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return state_folder(tmp_path, monkeypatch)


async def test_a_pipe_is_a_conversation_too(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("ab\\\nc\n\n/undo\nfade\n/nothing\n/quit\nnever read\n"))
    async with daemon(state):
        assert await command("chat", "--temperature", "0", "--max-tokens", "20") == 0
    found = capsys.readouterr()
    assert found.out.splitlines() == [alone("abc"), alone("fade")]
    assert "taken back: ab" in found.err
    assert "there is no /nothing" in found.err
    assert "\x1b" not in found.out + found.err
    assert "> " not in found.out


async def test_the_last_failure_of_a_pipe_is_its_exit_code(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await command("chat") == 1
    wording.keep(capsys.readouterr().err)
    monkeypatch.setattr("sys.stdin", io.StringIO("!!\n"))
    async with daemon(state):
        assert await command("chat") == 1
    wording.keep(capsys.readouterr().err)


BECOME = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # who runs the tests in the background ignores it
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A process that takes the terminal that it has for its own, and becomes another program. Not by `pty.fork`:
gRPC's threads run in this process, and what a fork of it does before it becomes another may wait for ever."""


class Terminal:
    """A chat that runs on a pseudo-terminal of its own, which is its controlling one."""

    def __init__(self, *options: str) -> None:
        environment = {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": "1"}
        environment.pop("NO_COLOR", None)
        words = [sys.executable, "-c", BECOME, sys.executable, "-m", "forerun", "chat", *options]
        self._master, end = pty.openpty()
        self._process = subprocess.Popen(
            words, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True
        )
        os.close(end)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Until it has been shown, after what was waited for before."""
        while text not in self.seen:
            self.seen += os.read(self._master, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def kill(self) -> None:
        """If it still runs."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Its exit code."""
        try:
            while os.read(self._master, 4096):
                pass
        except OSError:
            pass  # Linux: the other end is closed
        os.close(self._master)
        return self._process.wait()


async def test_on_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_ends(state: Path) -> None:
    def talk(terminal: Terminal) -> int:
        terminal.wait_for("> ")
        terminal.type("a\n")
        terminal.wait_for("\n")  # the end of the question's echo
        # The terminal must have shown a part of the answer: of an answer stopped earlier no turn is kept.
        terminal.wait_for(alone("a", seed=LONG, temperature=1.0)[:2])
        terminal.type("\x03")
        terminal.wait_for("[stopped]")
        terminal.wait_for("> ")
        terminal.type("/undo\n")
        terminal.wait_for("taken back: a")
        terminal.wait_for("> ")
        terminal.type("\x04")
        return terminal.end()

    async with daemon(state, step_time=0.5) as served:
        terminal = Terminal("--seed", str(LONG), "--max-tokens", "20", "--no-speculation")
        try:
            ended = asyncio.to_thread(talk, terminal)
            assert await asyncio.wait_for(ended, 60) == 0
        finally:
            terminal.kill()  # else a thread would wait for it for ever
        assert served.world.texts.live == {}
