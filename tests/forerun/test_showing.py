"""Laws of what a user sees: a pipe gets the target's text alone, and a guess can always be taken back."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from edge_client.core.effects import ChangeMode, Emit, Preview, Withdraw
from edge_client.core.policies import Mode, Standing
from forerun.paint import Painter
from forerun.showing import Events, Listener, Plain, Teller, Terminal, on_standard_output

pytestmark = pytest.mark.llama  # the decoder's module imports the draft's runtime

ALONE = ChangeMode(Standing(Mode.DEVICE_ONLY, "no server"))
EURO = "€".encode()


class Pieces:
    """A vocabulary of bytes: tokens 0 to 2 are the euro sign's, others letters."""

    def piece(self, token: int) -> bytes:
        return EURO[token : token + 1] if token < len(EURO) else bytes([token])


@dataclass
class Log:
    """A listener that remembers."""

    lines: list[object] = field(default_factory=list)

    def text(self, text: str, drafted: bool) -> None:
        self.lines.append(text)

    def preview(self, start: int, pieces: list[str]) -> None:
        self.lines.append((start, pieces))

    def withdraw(self, start: int) -> None:
        self.lines.append(start)

    def mode(self, standing: Standing) -> None:
        self.lines.append(standing.mode)


def teller(listener: Listener | None) -> Teller:
    from edge_client.edge import TextDecoder

    return Teller(TextDecoder(Pieces()), listener)  # type: ignore[arg-type]  # all it needs of a runtime


def tell(listener: Listener, shown: Sequence[Emit | Preview | Withdraw | ChangeMode]) -> Teller:
    one = teller(listener)
    for each in shown:
        one.take(each)
    return one


def letters(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


STORY = (
    Emit(1, letters("ab"), 0),
    ALONE,
    Preview(3, letters("cd")),
    Preview(5, letters("ef")),
    Withdraw(4, letters("def")),
    Emit(3, letters("cx"), 0b10),
)


def test_places_count_from_the_texts_first_token() -> None:
    log = Log()
    told = tell(log, STORY)
    assert log.lines == ["a", "b", Mode.DEVICE_ONLY, (2, ["c", "d"]), (4, ["e", "f"]), 3, "c", "x"]
    assert bytes(told.tokens) == b"abcx"
    assert told.guess == []
    assert len(told.arrivals) == 4


def test_a_guess_that_begins_inside_a_character_leaves_the_text_as_it_is() -> None:
    log = Log()
    told = tell(log, [Emit(1, (0,), 0), Preview(2, (1,)), Preview(3, (2, *letters("!"))), Emit(2, (1, 2), 0)])
    assert log.lines == ["", (1, [""]), (2, ["€", "!"]), "", "€"]
    assert bytes(told.guess) == b"!"


def test_a_pipe_gets_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Plain(Painter(sys.stdout)), STORY)
    out, err = capsys.readouterr()
    assert out == "abc‹x›"
    assert "device-only: no server" in err


def test_events_let_a_reader_follow_the_guess(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Events(), STORY)
    text, guess = "", list[str]()
    ends = list[str]()
    for line in capsys.readouterr().out.splitlines():
        event = json.loads(line)
        match event["event"]:
            case "text":
                text += event["text"]
                del guess[:1]
            case "preview":
                assert event["start"] == len(text) + len(guess)
                guess += event["pieces"]
            case "withdraw":
                del guess[event["start"] - len(text) :]
        ends.append(text + "".join(guess))
    assert ends == ["a", "ab", "ab", "abcd", "abcdef", "abc", "abc", "abcx"]


def test_a_terminal_shows_the_guess_dim_and_takes_it_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    listener = on_standard_output(Painter(sys.stdout))
    assert isinstance(listener, Terminal)
    tell(listener, [*STORY[:3], Withdraw(3, letters("cd")), Emit(3, letters("x"), 0)])
    green, dim, end = "\x1b[32m", "\x1b[2m", "\x1b[0m"
    text = f"{green}a{end}{green}b{end}"
    assert capsys.readouterr().out == f"{text}{dim}cd{end}\r\x1b[2C\x1b[J{green}x{end}"


def test_without_a_listener_all_is_remembered() -> None:
    told = teller(None)
    for each in STORY[:4]:
        told.take(each)
    assert (bytes(told.tokens), bytes(told.guess)) == (b"ab", b"cdef")


def test_a_terminal_does_not_obey_the_text_and_a_pipe_gets_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile, shown = "a\x1b[2Jb", "a␛[2Jb"
    plain = Plain(Painter(sys.stdout))
    plain.text(hostile, drafted=True)
    assert capsys.readouterr().out == hostile
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    plain.text(hostile, drafted=True)
    assert capsys.readouterr().out == shown
    terminal = Terminal(Painter(sys.stdout))
    terminal.text(hostile, drafted=False)
    terminal.preview(1, [hostile])
    told = capsys.readouterr().out
    assert told.count(shown) == 2
    assert "\x1b[2J" not in told
