"""What is seen of an answer: a terminal gets colours and reasoning, a pipe the text alone."""

from __future__ import annotations

import io

import pytest

from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.texts.events import (
    DifferenceFound,
    ModeChanged,
    NoteAdded,
    PreviewAdded,
    TextAdded,
    TextEvent,
    ThoughtAdded,
)
from forerun.chat.display import Display, stats_line
from forerun.terminal import Painter


def run(text: str, origin: TokenOrigin = TokenOrigin.SERVER) -> TextAdded:
    return TextAdded((TextSpan(text, origin, len(text)),))


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, *events: TextEvent, origin: bool = False) -> str:
    display = Display(Painter(out), out, origin=origin)
    for event in events:
        display.take(event)
    display.close()
    return out.getvalue()


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_reasoning_stands_before_the_answer_and_a_pipe_gets_none() -> None:
    events = (ThoughtAdded("hm"), ThoughtAdded("m"), run("so"))
    assert shown(Tty(), *events) == "\x1b[2mhm\x1b[0m\x1b[2mm\x1b[0m\n\nso\n"
    assert shown(io.StringIO(), *events) == "so\n"


def test_notes_have_lines_of_their_own() -> None:
    events = (run("ab"), ModeChanged("m", "w"), run("c"))
    assert shown(Tty(), *events) == "ab\n\x1b[2m… m: w\n\x1b[0mc\n"
    assert shown(Tty(), NoteAdded("n"), run("c")) == "\x1b[2m… n\n\x1b[0mc\n"


def test_a_pipe_gets_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    events = (run("ab"), PreviewAdded(2, ("c",)), ModeChanged("m", "w"), DifferenceFound(2, "x", "y"))
    assert shown(io.StringIO(), *events) == "ab\n"
    assert capsys.readouterr().err.splitlines() == [
        "… m: w",
        "… the device alone wrote 'x'; the target would have gone on with 'y'",
    ]


@pytest.mark.parametrize(
    ("origin", "expected"),
    [(True, "\x1b[32ma\x1b[0mb\x1b[33mc\x1b[0m\n"), (False, "ab\x1b[33mc\x1b[0m\n")],
)
def test_colours_tell_who_wrote(origin: bool, expected: str) -> None:
    """Text that no target has seen is marked in any case."""
    events = (run("a", TokenOrigin.DRAFTED), run("b"), run("c", TokenOrigin.DEVICE), run(""))
    assert shown(Tty(), *events, origin=origin) == expected
    assert shown(io.StringIO(), *events, origin=origin) == ("a‹b›«c»\n" if origin else "abc\n")


def test_a_terminal_does_not_obey_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = run("a\x1b]0;title\x07")
    assert shown(Tty(), hostile) == "a␛]0;title␇\n"
    assert shown(io.StringIO(), hostile) == "a\x1b]0;title\x07\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Tty(), hostile) == "a␛]0;title␇\n"


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
