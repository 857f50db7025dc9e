"""Holds a conversation: reads the user's messages, keeps the turns and fetches answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from edge_client.process.client import LocalClient
from edge_client.texts.events import TextEnded
from forerun.chat.asking import CHAT_PATH, Asking, Json
from forerun.chat.display import Display, total_line
from forerun.chat.following import Following

Find = Callable[[], LocalClient]


@dataclass(slots=True)
class Turn:
    """Holds a question and its answer, which may be incomplete."""

    question: str
    answer: str


@dataclass(slots=True)
class Conversation:
    """Holds the turns so far."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)

    def messages(self, question: str | None = None) -> list[Json]:
        """Return the turns and a further question in the API's form."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        return messages if question is None else [*messages, {"role": "user", "content": question}]


class Talk:
    """Asks a daemon on behalf of a conversation, and keeps the answers.

    Args: asking, the options; find, which returns the running daemon; display, which makes a new display.
    """

    def __init__(
        self, conversation: Conversation, asking: Asking, find: Find, display: Callable[[], Display]
    ) -> None:
        self.conversation = conversation
        self.asking = asking
        self.find = find
        self.figures: list[Any] = []  # of whole answers
        self.last_question = ""
        self.was_stopped = False  # whether Ctrl-C stopped the last answer
        self._display = display
        self._written: set[Path] = set()

    def ask(self, question: str) -> TextEnded | None:
        """Fetch and show an answer; None if it was stopped. Raises the `ForerunError` that ended it.

        The conversation keeps a partial answer.
        """
        self.last_question, self.was_stopped = question, False
        body = self.asking.body({"messages": self.conversation.messages(question)})
        following, display = Following(self.find, CHAT_PATH, body), self._display()
        ended: TextEnded | None = None
        try:
            for event in following.events():
                display.take(event)
                ended = event if isinstance(event, TextEnded) else ended
        except KeyboardInterrupt:
            self.was_stopped = True
            following.stop()
        except BrokenPipeError:  # the reader has gone; without this the daemon would write on
            following.stop()
            raise
        finally:
            display.close()
            if following.text or ended is not None:
                self.conversation.turns.append(Turn(question, following.text))
        if ended is not None:
            self.figures.append(ended.figures)
        return ended

    def models(self) -> list[str]:
        """Return the daemon's models, the default first."""
        told = self.find().get("/v1/models")
        return [str(each["id"]) for each in told["data"]]

    def save(self, path: Path) -> None:
        """Write the conversation as JSON if the name says so, else as text.

        Raises `UserError` rather than replace a file that this conversation has not written.
        """
        if path.exists() and path not in self._written:
            raise UserError(f"{path} is there already and is not replaced; name another file")
        messages = self.conversation.messages()
        if path.suffix == ".json":
            text = json.dumps({"model": self.asking.model, "messages": messages}, indent=1) + "\n"
        else:
            text = "".join(f"{each['role']}:\n{each['content']}\n\n" for each in messages)
        try:
            path.write_text(text, encoding="utf-8")
        except (OSError, UnicodeEncodeError) as error:
            raise UserError(f"{path} cannot be written: {error}") from error
        self._written.add(path)


# Messages ---------------------------------------------------------------------------------------------------

QUOTES = '"""'
PROMPT, MORE = "> ", "… "

Read = Callable[[str], str]
"""Shows a prompt and returns a line without its end. Raises `EOFError` at the end of the input."""


class Messages:
    """Reads messages. Several lines are one if all but the last end in a backslash, or between two \"\"\"."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def next(self) -> str | None:
        """Return the next message; None at the end. Ctrl-C at the prompt drops what was begun."""
        while True:
            try:
                return self._message(self._read(PROMPT))
            except KeyboardInterrupt:
                print()
            except EOFError:
                return None

    def _message(self, first: str) -> str:
        is_block = first.lstrip().startswith(QUOTES)
        lines = [first.lstrip().removeprefix(QUOTES) if is_block else first]
        try:
            while (QUOTES not in lines[-1]) if is_block else lines[-1].endswith("\\"):
                if not is_block:
                    lines[-1] = lines[-1].removesuffix("\\")
                lines.append(self._read(MORE))
        except EOFError:
            pass
        if not is_block:
            return "\n".join(lines)
        lines[-1] = lines[-1].partition(QUOTES)[0]
        return "\n".join(lines).strip("\n")


def reader(is_terminal: bool) -> Read:
    """Return a reader of standard input. On a terminal it prompts, and edits lines by readline."""
    if not is_terminal:
        return lambda prompt: _plain_line()
    try:
        import readline  # noqa: F401 - `input` then edits lines and remembers them, in memory only
    except ImportError:
        pass
    return input


def _plain_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n").removesuffix("\r")


# Commands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """Holds the effect of a line that begins with a slash."""

    words: str = ""  # output
    question: str = ""  # the next question
    ends: bool = False


def is_command(message: str) -> bool:
    """Tell whether a message is a command. A leading space makes it plain text."""
    return message.startswith("/")


def run_command(talk: Talk, message: str) -> CommandOutcome:
    """Run a command. Raises `UserError` for an unknown one, and the command's own errors."""
    name, _, rest = message.partition(" ")
    if name not in COMMANDS:
        raise UserError(f"there is no {name}; /help lists the commands (a space before it makes it a text)")
    return COMMANDS[name][-1](talk, rest.strip())


def _help(talk: Talk, rest: str) -> CommandOutcome:
    lines = [f"  {form:14} {meaning}" for form, meaning, _ in COMMANDS.values()]
    more = (
        'Several lines are one message between two """, or if all but the last end in a backslash.',
        "Ctrl-C stops an answer; Ctrl-D ends.",
    )
    return CommandOutcome("\n".join([*lines, *more]))


def _clear(talk: Talk, rest: str) -> CommandOutcome:
    talk.conversation.turns.clear()
    return CommandOutcome("the conversation begins anew")


def _system(talk: Talk, rest: str) -> CommandOutcome:
    talk.conversation.system = rest
    return CommandOutcome("the system message is set" if rest else "the system message is removed")


def _model(talk: Talk, rest: str) -> CommandOutcome:
    known = talk.models()
    if not rest:
        now = talk.asking.model or known[0]
        return CommandOutcome("\n".join(f"{'*' if name == now else ' '} {name}" for name in known))
    if rest not in known:
        raise UserError(f"the daemon has no model {rest!r}; there are: {', '.join(known)}")
    talk.asking = replace(talk.asking, model=rest)
    return CommandOutcome(f"the model is {rest} from now on")


def _save(talk: Talk, rest: str) -> CommandOutcome:
    if not rest:
        raise UserError("name a file: /save FILE (JSON if it ends in .json)")
    talk.save(Path(rest).expanduser())
    return CommandOutcome(f"saved as {rest}")


def _retry(talk: Talk, rest: str) -> CommandOutcome:
    """Ask the last question again; it may have no answer yet."""
    turns = talk.conversation.turns
    if not talk.last_question:
        raise UserError("nothing was asked yet")
    if turns and turns[-1].question == talk.last_question:
        turns.pop()
    same = "the seed is fixed, so the answer will be the same" if talk.asking.seed is not None else ""
    return CommandOutcome(same, question=talk.last_question)


def _undo(talk: Talk, rest: str) -> CommandOutcome:
    if not talk.conversation.turns:
        raise UserError("nothing was said yet")
    question = talk.conversation.turns.pop().question
    return CommandOutcome(f"taken back: {question.splitlines()[0][:60] if question else ''}")


COMMANDS: dict[str, tuple[str, str, Callable[[Talk, str], CommandOutcome]]] = {
    "/help": ("/help", "this", _help),
    "/clear": ("/clear", "begin a new conversation", _clear),
    "/system": ("/system TEXT", "set the system message; without a text: remove it", _system),
    "/model": ("/model NAME", "choose a model; without a name: list the models", _model),
    "/stats": (
        "/stats",
        "show the figures of the answers so far",
        lambda talk, rest: CommandOutcome(total_line(talk.figures)),
    ),
    "/save": ("/save FILE", "save the conversation as text, or as JSON (.json)", _save),
    "/retry": ("/retry", "fetch another answer to the last question", _retry),
    "/undo": ("/undo", "take the last question and its answer back", _undo),
    "/quit": ("/quit", "end, as Ctrl-D", lambda talk, rest: CommandOutcome(ends=True)),
}
"""Commands by name: form, meaning, and function of the text after the name."""
