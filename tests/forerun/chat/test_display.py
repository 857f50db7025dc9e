"""What is seen of an answer: guesses can be taken back, a pipe gets the text alone."""

from __future__ import annotations

import io
import json
import os

import pytest

from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.texts.events import (
    DifferenceFound,
    ModeChanged,
    NoteAdded,
    PreviewAdded,
    PreviewWithdrawn,
    TextAdded,
    TextEnded,
    TextEvent,
    TextRestarted,
    ThoughtAdded,
)
from forerun.chat.display import AsEvents, InPipe, OnTerminal, stats_line, total_line
from forerun.terminal import Painter, Screen
from tests.forerun.test_screen import FakeTerminal


def run(text: str, origin: TokenOrigin = TokenOrigin.SERVER) -> TextAdded:
    return TextAdded((TextSpan(text, origin, len(text)),))


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, *parts: TextEvent, origin: bool = False) -> FakeTerminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = FakeTerminal()
    display = OnTerminal(Painter(Tty()), Screen(out, lambda: os.terminal_size((7, 40))), origin)
    for part in parts:
        display.take(part)
    return out


def test_reasoning_stands_before_the_answer_and_a_pipe_gets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[TextEvent] = [ThoughtAdded("hm"), ThoughtAdded("m"), run("so")]
    assert on_terminal(monkeypatch, *parts).rows == ["hmm", "", "so"]
    out, events = io.StringIO(), AsEvents()
    for part in parts:
        InPipe(out, origin=False).take(part)
        events.take(part)
    assert out.getvalue() == "so"
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first == {"event": "reasoning", "text": "hm"}


def test_a_guess_stands_behind_the_text_until_it_is_text_or_void(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[TextEvent] = [
        run("ab"),
        PreviewAdded(2, ("c", "d", "e")),
        run("c"),
        PreviewWithdrawn(4),
        PreviewAdded(4, ("x",)),
    ]
    seen = ["ab", "abcde", "abcde", "abcd", "abcdx"]
    for count, expected in enumerate(seen, 1):
        assert on_terminal(monkeypatch, *parts[:count]).rows == [expected]
    assert on_terminal(monkeypatch, *parts, TextEnded("stop", {})).rows == ["abc"]
    changed = on_terminal(monkeypatch, run("ab"), ModeChanged("m", "w"), run("c"))
    assert changed.rows == ["ab", "… m: w", "c"]
    assert on_terminal(monkeypatch, NoteAdded("n"), run("c")).rows == ["… n", "c"]


class Raw(io.StringIO):
    encoding = "utf-8"


def painted(monkeypatch: pytest.MonkeyPatch, text: TextAdded, origin: bool) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Raw()
    display = OnTerminal(Painter(Tty()), Screen(out), origin)
    display.take(text)
    return out.getvalue()


def test_colours_tell_who_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    assert painted(monkeypatch, run("a", TokenOrigin.DRAFTED), True) == "\x1b[32ma\x1b[0m"
    assert painted(monkeypatch, run("a", TokenOrigin.DRAFTED), False) == "a"
    assert painted(monkeypatch, run("a", TokenOrigin.SERVER), True) == "a"
    assert painted(monkeypatch, run("a", TokenOrigin.DEVICE), False) == "\x1b[33ma\x1b[0m", (
        "no target has seen it"
    )


def test_a_pipe_gets_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out = Raw()
    pipe = InPipe(out, origin=False)
    for part in (
        run("ab"),
        PreviewAdded(2, ("c",)),
        PreviewWithdrawn(2),
        ModeChanged("m", "w"),
        DifferenceFound(2, "x", "y"),
        TextRestarted(),
    ):
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
        TextAdded(
            (
                TextSpan("a", TokenOrigin.DRAFTED, 1),
                TextSpan("b", TokenOrigin.SERVER, 1),
                TextSpan("c", TokenOrigin.DEVICE, 1),
                TextSpan("", TokenOrigin.SERVER, 1),
            )
        )
    )
    assert out.getvalue() == "a‹b›«c»"


def test_programs_get_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    AsEvents().take(PreviewAdded(2, ("c",)))
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
    display.take(PreviewAdded(0, (HOSTILE,)))
    assert "\x1b]" not in out.getvalue()
    assert SHOWN in out.getvalue()


def test_nor_does_one_without_colours_and_a_pipe_gets_it_as_it_is() -> None:
    terminal, pipe = Tty(), Raw()
    for out in (terminal, pipe):
        InPipe(out, origin=False).take(run(HOSTILE))
    assert (terminal.getvalue(), pipe.getvalue()) == (SHOWN, HOSTILE)


FIGURES = {
    "mode": "ahead",
    "tokens": 21,
    "accepted": 14,
    "proposed": 28,
    "target_steps": 10,
    "acceptance_length": 2.1,
    "elapsed_ms": 240.0,
    "first_token_ms": 40.0,
    "rtt_p50_ms": 43.2,
    "estimated_speedup": 1.94,
    "resumes": 1,
}


def test_an_answer_in_words() -> None:
    assert stats_line(FIGURES) == (
        "[21 tokens in 240 ms; 10.0 ms per token, the first after 40 ms; 2.10 tokens per target step; "
        "67 % of the text drafted here (14 of 28 guesses); RTT 43.2 ms; "
        "about 1.9 times the pace of streaming; the link was taken up again 1 time]"
    )


def test_what_is_not_known_is_not_said() -> None:
    told = {"tokens": 1, "elapsed_ms": 5.0, "first_token_ms": 5.0, "mode": "server-only", "waited_ms": 1500}
    expected = "[1 token in 5 ms; the first after 5 ms; 1.5 s in the daemon's queue before; server-only]"
    assert stats_line(told) == expected


def test_a_conversation_is_added_up() -> None:
    assert total_line([]) == "nothing was written yet"
    assert total_line([FIGURES, FIGURES]) == (
        "[42 tokens in 2 answers and 0.5 s; 11.4 ms each; 2.10 tokens per target step; "
        "67 % of the text drafted here (28 of 56 guesses)]"
    )
