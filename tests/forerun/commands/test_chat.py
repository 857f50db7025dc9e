"""`forerun chat`: messages as typed, its commands, and conversations in a pipe and on a real terminal."""

import asyncio
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UserError
from common.sampling import MAX_SEED
from forerun.chat.asking import AskOptions
from forerun.commands.chat import MORE, PROMPT, TerminalChat, next_message, reader
from tests import wording
from tests.edge_client.api.world import alone
from tests.forerun.beside import command, daemon

pytestmark = [pytest.mark.api, pytest.mark.grpc]

LONG = next(seed for seed in range(1000) if len(alone("a", seed=seed, temperature=1.0)) > 15)
"""A seed with which the tiny target has much to say."""


def read(*lines: str | type[BaseException]) -> tuple[list[str], list[str]]:
    """All messages, and the prompts that were shown."""
    left = iter((*lines, EOFError))
    prompts = list[str]()

    def line(prompt: str) -> str:
        prompts.append(prompt)
        typed = next(left, EOFError)
        if isinstance(typed, str):
            return typed
        raise typed

    return list(iter(lambda: next_message(line), None)), prompts


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("a", "", "b"), ["a", "", "b"]),
        (('"""', "a", "", "b", '"""', "c"), ["a\n\nb", "c"]),
        (('"""a', 'b""" ignored', "c"), ["a\nb", "c"]),
        (('"""a"""', "c"), ["a", "c"]),
    ],
)
def test_lines_become_messages(lines: tuple[str, ...], expected: list[str]) -> None:
    assert read(*lines)[0] == expected


def test_ctrl_c_drops_what_was_begun() -> None:
    assert read('"""a', KeyboardInterrupt, "b") == (["b"], [PROMPT, MORE, PROMPT, PROMPT])


def test_a_pipe_has_no_prompts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a\r\nb"))
    assert list(iter(lambda: next_message(reader(False)), None)) == ["a", "b"]
    assert capsys.readouterr().out == ""


def test_what_was_not_given_is_the_daemons_own_and_each_seed_another() -> None:
    bodies = [AskOptions().body({"prompt": "a"}) for _ in range(8)]
    assert set(bodies[0]) == {"prompt", "model", "seed", "stream", "user", "forerun"}
    assert bodies[0]["forerun"] == {"origins": True, "speculate": True}
    assert len({body["seed"] for body in bodies}) == 8
    assert all(0 <= body["seed"] < MAX_SEED for body in bodies)


def said(capsys: pytest.CaptureFixture[str], chat: TerminalChat, message: str) -> str:
    chat.take(message)
    return capsys.readouterr().err


def test_commands_change_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    chat = TerminalChat(AskOptions())
    chat.messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    said(capsys, chat, "/clear")
    assert chat.messages == []
    said(capsys, chat, "/system be brief")
    assert chat.options.conversation() == {"messages": [{"role": "system", "content": "be brief"}]}
    said(capsys, chat, "/system")
    assert chat.options.conversation() == {"messages": []}
    assert "/save FILE" in said(capsys, chat, "/help")
    for message in ("/usr/bin is a folder", "/retry"):
        with wording.raises(UserError):
            chat.take(message)
    said(capsys, chat, "/quit")
    assert chat.is_over


def test_a_conversation_is_saved_but_over_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = TerminalChat(AskOptions(system_text="s"))
    said(capsys, chat, f"/save {tmp_path}/a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved["messages"] == [{"role": "system", "content": "s"}]
    for name in (f" {tmp_path}/a.json", f" {tmp_path}/no/folder", ""):
        with wording.raises(UserError):
            chat.take(f"/save{name}")


GREEDY = ("--temperature", "0", "--max-tokens", "20")


async def test_a_pipe_is_a_conversation_too(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "abc",
        "",
        "de",
        "/retry",
        "/model tiny",
        "/model three",
        "/clear",
        "fade",
        "/nothing",
        "/quit",
        "a",
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    async with daemon(state):
        assert await command("chat", *GREEDY, "--system", "f") == 0
    printed = capsys.readouterr()
    first = alone("fabc")
    second = alone(f"fabc{first}de")
    assert printed.out.splitlines() == [first, second, second, alone("ffade")]
    assert "the model is tiny from now on" in printed.err
    assert "the daemon has no model 'three'" in printed.err
    assert "there is no /nothing" in printed.err
    assert "\x1b" not in printed.out + printed.err
    assert "> " not in printed.out


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
    saved = state / "saved.json"

    def talk(terminal: Terminal) -> int:
        terminal.wait_for("> ")
        terminal.type("a\n")
        terminal.wait_for("\n")  # the end of the question's echo
        # The terminal must have shown a part of the answer: of an answer stopped earlier no turn is kept.
        terminal.wait_for(alone("a", seed=LONG, temperature=1.0)[:2])
        terminal.type("\x03")
        terminal.wait_for("[stopped]")
        terminal.wait_for("> ")
        terminal.type(f"/save {saved}\n")
        terminal.wait_for("saved as")
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
    question, answer = json.loads(saved.read_text())["messages"]
    assert question == {"role": "user", "content": "a"}
    assert alone("a", seed=LONG, temperature=1.0).startswith(answer["content"])
