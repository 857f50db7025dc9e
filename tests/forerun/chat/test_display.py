"""What is seen of an answer: a terminal gets colours and reasoning, a pipe the text alone."""

import io

import pytest

from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.texts.events import (
    DifferenceFound,
    ModeChanged,
    PreviewAdded,
    TextAdded,
    TextEvent,
    ThoughtAdded,
)
from forerun.chat.display import Display
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


def test_a_pipe_gets_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    events = (run("ab"), PreviewAdded(2, ("c",)), ModeChanged("m", "w"), DifferenceFound(2, "x", "y"))
    assert shown(io.StringIO(), *events) == "ab\n"
    assert capsys.readouterr().err.splitlines() == [
        "… m: w",
        "… the device alone wrote 'x'; the target would have gone on with 'y'",
    ]


@pytest.mark.parametrize(
    ("origin", "expected"), [(True, "\x1b[32ma\x1b[0mb\x1b[33mc\x1b[0m\n"), (False, "ab\x1b[33mc\x1b[0m\n")]
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
