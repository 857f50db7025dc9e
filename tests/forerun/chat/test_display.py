"""What is seen of an answer: guesses can be taken back, a pipe gets the text alone."""

from __future__ import annotations

import io
import json
import os

import pytest

from forerun.chat.display import AsEvents, InPipe, OnTerminal
from forerun.chat.parts import Anew, Difference, Ended, Guess, Mode, Note, Part, Retract, Run, Text
from forerun.paint import Painter
from forerun.screen import Screen
from tests.forerun.test_screen import FakeTerminal


def run(text: str, origin: str = "server") -> Text:
    return Text((Run(text, origin, len(text)),))


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, *parts: Part, origin: bool = False) -> FakeTerminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = FakeTerminal()
    display = OnTerminal(Painter(Tty()), Screen(out, lambda: os.terminal_size((7, 40))), origin)
    for part in parts:
        display.take(part)
    return out


def test_a_guess_stands_behind_the_text_until_it_is_text_or_void(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Part] = [run("ab"), Guess(2, ("c", "d", "e")), run("c"), Retract(4), Guess(4, ("x",))]
    seen = ["ab", "abcde", "abcde", "abcd", "abcdx"]
    for count, expected in enumerate(seen, 1):
        assert on_terminal(monkeypatch, *parts[:count]).rows == [expected]
    assert on_terminal(monkeypatch, *parts, Ended("stop", {})).rows == ["abc"]


def test_a_mode_is_told_at_once_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    out = on_terminal(monkeypatch, run("ab"), Mode("m", "w"), run("c"))
    assert out.rows == ["ab", "… m: w", "c"]
    assert on_terminal(monkeypatch, Note("n"), run("c")).rows == ["… n", "c"]


class Raw(io.StringIO):
    encoding = "utf-8"


def painted(monkeypatch: pytest.MonkeyPatch, text: Text, origin: bool) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Raw()
    display = OnTerminal(Painter(Tty()), Screen(out), origin)
    display.take(text)
    return out.getvalue()


def test_colours_tell_who_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    assert painted(monkeypatch, run("a", "drafted"), True) == "\x1b[32ma\x1b[0m"
    assert painted(monkeypatch, run("a", "drafted"), False) == "a"
    assert painted(monkeypatch, run("a", "server"), True) == "a"
    assert painted(monkeypatch, run("a", "device"), False) == "\x1b[33ma\x1b[0m", "no target has seen it"


def test_a_pipe_gets_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out = Raw()
    pipe = InPipe(out, origin=False)
    for part in (run("ab"), Guess(2, ("c",)), Retract(2), Mode("m", "w"), Difference("x", "y"), Anew()):
        pipe.take(part)
    pipe.close()
    assert out.getvalue() == "ab\n"
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "… m: w"
    assert told[1] == "… the device alone wrote 'x'; the target would have gone on with 'y'"
    assert len(told) == 3


def test_a_pipe_marks_writers_where_that_was_asked_for() -> None:
    out = Raw()
    pipe = InPipe(out, origin=True)
    pipe.take(
        Text((Run("a", "drafted", 1), Run("b", "server", 1), Run("c", "device", 1), Run("", "server", 1)))
    )
    assert out.getvalue() == "a‹b›«c»"


def test_programs_get_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    AsEvents().take(Guess(2, ("c",)))
    AsEvents().take(run("a"))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"event": "guess", "start": 2, "texts": ["c"]}
    assert second == {"event": "text", "runs": [{"text": "a", "origin": "server", "tokens": 1}]}


HOSTILE = "a\x1b]0;title\x07"
SHOWN = "a␛]0;title␇"


def test_a_terminal_does_not_obey_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert painted(monkeypatch, run(HOSTILE), False) == SHOWN
    monkeypatch.setenv("TERM", "xterm")
    out = Raw()
    display = OnTerminal(Painter(Tty()), Screen(out), False)
    display.take(Guess(0, (HOSTILE,)))
    assert "\x1b]" not in out.getvalue()
    assert SHOWN in out.getvalue()


def test_nor_does_one_without_colours_and_a_pipe_gets_it_as_it_is() -> None:
    terminal, pipe = Tty(), Raw()
    for out in (terminal, pipe):
        InPipe(out, origin=False).take(run(HOSTILE))
    assert (terminal.getvalue(), pipe.getvalue()) == (SHOWN, HOSTILE)
