"""What a generation's user sees of it: on a terminal, in a file or pipe, or as JSON events."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from edge_client.core.effects import ChangeMode, Emit, Preview, PreviewEnds, Withdraw
from edge_client.core.policies import Standing
from forerun.paint import Painter, harmless, note
from forerun.screen import Screen

if TYPE_CHECKING:
    from edge_client.edge import TextDecoder
    from edge_client.generation import Shown


class Listener(Protocol):
    """Gets a generation piece by piece. Places count the tokens of its text from 0."""

    def text(self, text: str, drafted: bool) -> None:
        """One committed token; it takes the place of the guess's first piece if there is a guess."""
        ...

    def preview(self, start: int, pieces: list[str]) -> None:
        """The draft's own guess, a piece a token, from place `start` on: after what is shown already."""
        ...

    def withdraw(self, start: int) -> None:
        """The guess from place `start` on is void."""
        ...

    def mode(self, standing: Standing) -> None:
        """Who writes is another one now."""
        ...


class Terminal:
    """Text as it comes; a guess is dim, and goes where the target writes something else."""

    def __init__(self, painter: Painter) -> None:
        self._painter = painter
        self._screen = Screen(sys.stdout)
        self._length = 0  # tokens of text
        self._guess: list[str] = []

    def text(self, text: str, drafted: bool) -> None:
        paint, text = self._painter.drafted if drafted else self._painter.server_made, harmless(text)
        self._screen.write(text, paint(text))
        self._length += 1
        del self._guess[:1]
        self._show()

    def preview(self, start: int, pieces: list[str]) -> None:
        self._guess += map(harmless, pieces)
        self._show()

    def withdraw(self, start: int) -> None:
        del self._guess[start - self._length :]
        self._show()

    def mode(self, standing: Standing) -> None:
        """Seen by the colour; a line about it would stand in the text. The end of the text tells why."""

    def _show(self) -> None:
        self._screen.guess("".join(self._guess), self._painter.dim)


class Plain:
    """Committed text alone, for files, pipes and terminals without colours; modes on standard error."""

    def __init__(self, painter: Painter) -> None:
        self._painter = painter

    def text(self, text: str, drafted: bool) -> None:
        paint = self._painter.drafted if drafted else self._painter.server_made
        print(paint(harmless(text) if sys.stdout.isatty() else text), end="", flush=True)

    def preview(self, start: int, pieces: list[str]) -> None:
        """What may be withdrawn has no place in a file."""

    def withdraw(self, start: int) -> None:
        """Nothing was shown."""

    def mode(self, standing: Standing) -> None:
        note(f"{standing.mode.value}: {standing.why}")


class Events:
    """A JSON object a line on standard output."""

    def text(self, text: str, drafted: bool) -> None:
        event("text", text=text, drafted=drafted)

    def preview(self, start: int, pieces: list[str]) -> None:
        event("preview", start=start, pieces=pieces)

    def withdraw(self, start: int) -> None:
        event("withdraw", start=start)

    def mode(self, standing: Standing) -> None:
        event("mode", mode=standing.mode.value, why=standing.why)


class Teller:
    """Turns what a session shows into text, and tells a listener. `tokens` are the text, `guess` what stands
    after it, `arrivals` the tokens' times in milliseconds since this was made."""

    def __init__(self, decoder: TextDecoder, listener: Listener | None) -> None:
        self.tokens: list[int] = []
        self.guess: list[int] = []
        self.arrivals: list[float] = []
        self._decoder, self._listener = decoder, listener
        self._began = time.monotonic()

    def take(self, shown: Shown) -> None:
        match shown:
            case Emit():
                self._emit(shown)
            case Preview():
                self._preview(shown.tokens)
            case Withdraw():
                self._withdraw(len(shown.tokens))
            case ChangeMode():
                if self._listener is not None:
                    self._listener.mode(shown.standing)
            case PreviewEnds():
                pass  # who reads along sees that no more comes
            case _:
                assert_never(shown)

    def finish(self) -> None:
        """The bytes of a character that never became whole."""
        if (rest := self._decoder.finish()) and self._listener is not None:
            self._listener.text(rest, False)

    def _emit(self, emit: Emit) -> None:
        elapsed = (time.monotonic() - self._began) * 1e3
        self.tokens += emit.tokens
        self.arrivals += [elapsed] * len(emit.tokens)
        del self.guess[: len(emit.tokens)]
        if self._listener is not None:
            for index, token in enumerate(emit.tokens):
                self._listener.text(self._decoder.feed([token]), not emit.server_made >> index & 1)

    def _preview(self, tokens: tuple[int, ...]) -> None:
        start = len(self.tokens) + len(self.guess)
        decoder = self._decoder.fork()
        decoder.feed(self.guess)
        self.guess += tokens
        if self._listener is not None:
            self._listener.preview(start, [decoder.feed([token]) for token in tokens])

    def _withdraw(self, count: int) -> None:
        del self.guess[len(self.guess) - count :]
        if self._listener is not None:
            self._listener.withdraw(len(self.tokens) + len(self.guess))


def on_standard_output(painter: Painter) -> Listener:
    """Shows guesses only where they can be taken back."""
    return Terminal(painter) if painter.colour else Plain(painter)


def event(name: str, **fields: Any) -> None:
    """One line for the program at the other end of the pipe."""
    print(json.dumps({"event": name, **fields}), flush=True)
