"""Implements `forerun chat`: holds a conversation with the running daemon."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.errors import ForerunError, UserError
from edge_client.texts.events import TextAdded, TextEnded
from forerun.chat.answer import answer
from forerun.chat.asking import CHAT_PATH, AskOptions, Json
from forerun.chat.display import Display, legend, stats_line
from forerun.terminal import Painter, note

DESCRIPTION = """\
Hold a conversation with the running daemon (`forerun edge`), on a terminal or in a pipe:

  forerun chat --system 'Answer briefly.'
  printf 'What is a tree?\\nAnd a forest?\\n' | forerun chat

/help lists the commands. Ctrl-C stops an answer, Ctrl-D ends."""

HELP = '''\
  /clear           begin a new conversation
  /system TEXT     set the system message; without a text: remove it
  /model NAME      choose a model; without a name: list the models
  /retry           fetch another answer to the last question
  /save FILE       save the conversation as JSON
  /quit            end, as Ctrl-D
Several lines between two """ are one message. A space before a slash makes it a text.'''

QUOTES = '"""'
PROMPT, MORE = "> ", "… "

Read = Callable[[str], str]
"""Shows a prompt and returns a line without its end. Raises `EOFError` at the end of the input."""


def add_parser(commands: Any) -> None:
    add_command(commands, "chat", "talk to the running daemon", run, AskOptions, DESCRIPTION)


def run(options: AskOptions) -> int:
    """Hold the conversation. Return 1 if the last answer failed and input is not a terminal."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    options.daemon().get("/v1/models")  # that it answers, before anything is typed
    chat, read = TerminalChat(options), reader(is_terminal)
    if is_terminal:
        note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends")
    if options.show_origin:
        note(legend(chat.painter))
    failed = False
    while not chat.is_over and (message := next_message(read)) is not None:
        try:
            if message.strip():
                chat.take(message)
                failed = False
        except ForerunError as error:
            print(f"forerun: {error}", file=sys.stderr)
            failed = True
    if is_terminal and not chat.is_over:
        print()  # Ctrl-D leaves the cursor behind the prompt
    return 1 if failed and not is_terminal else 0


def next_message(read: Read) -> str | None:
    """Return the next message; None at the end. Ctrl-C at the prompt drops what was begun."""
    while True:
        try:
            first = read(PROMPT)
            if not first.lstrip().startswith(QUOTES):
                return first
            lines = [first.lstrip().removeprefix(QUOTES)]
            while QUOTES not in lines[-1]:
                lines.append(read(MORE))
            return "\n".join([*lines[:-1], lines[-1].partition(QUOTES)[0]]).strip("\n")
        except KeyboardInterrupt:
            print()
        except EOFError:
            return None


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


class TerminalChat:
    """Holds a conversation: its options and the turns so far."""

    def __init__(self, options: AskOptions) -> None:
        self.options = options
        self.messages: list[Json] = []
        self.painter = Painter(sys.stdout)
        self.is_over = False
        self._last_question = ""
        self._commands: dict[str, Callable[[str], str]] = {
            "/help": lambda rest: HELP,
            "/clear": self._clear,
            "/system": self._system,
            "/model": self._model,
            "/retry": self._retry,
            "/save": self._save,
            "/quit": self._quit,
        }

    def take(self, message: str) -> None:
        """Answer a message or run a command. Raises the `ForerunError` that ends it."""
        if not message.startswith("/"):
            self.ask(message)
            return
        name, _, rest = message.partition(" ")
        if name not in self._commands:
            words = f"there is no {name}; /help lists the commands (a space before it makes it a text)"
            raise UserError(words)
        if words := self._commands[name](rest.strip()):
            self._aside(words)

    def ask(self, question: str) -> None:
        """Fetch and show an answer. The conversation also keeps one that was stopped or broke off."""
        self._last_question = question
        asked = {"role": "user", "content": question}
        body = self.options.body(self.options.conversation(*self.messages, asked))
        display = Display(self.painter, sys.stdout, origin=self.options.show_origin)
        text, ended, words = "", False, "[stopped]"
        try:
            with closing(answer(self.options.daemon(), CHAT_PATH, body)) as events:
                for event in events:
                    display.take(event)
                    if isinstance(event, TextAdded):
                        text += event.text
                    elif isinstance(event, TextEnded):
                        ended, words = True, stats_line(event.figures)
        except KeyboardInterrupt:
            pass
        finally:
            display.close()
            if text or ended:
                self.messages += [asked, {"role": "assistant", "content": text}]
        self._aside(words)

    def _aside(self, words: str) -> None:
        """Print words that are no part of the answer: dim on a terminal, else on standard error."""
        print(self.painter.dim(words), file=sys.stdout if sys.stdout.isatty() else sys.stderr, flush=True)

    def _clear(self, rest: str) -> str:
        self.messages.clear()
        return "the conversation begins anew"

    def _system(self, rest: str) -> str:
        self.options = replace(self.options, system_text=rest)
        return "the system message is set" if rest else "the system message is removed"

    def _model(self, rest: str) -> str:
        names = [str(card["id"]) for card in self.options.daemon().get("/v1/models")["data"]]
        if not rest:
            now = self.options.model or names[0]
            return "\n".join(f"{'*' if name == now else ' '} {name}" for name in names)
        if rest not in names:
            raise UserError(f"the daemon has no model {rest!r}; there are: {', '.join(names)}")
        self.options = replace(self.options, model=rest)
        return f"the model is {rest} from now on"

    def _retry(self, rest: str) -> str:
        """Ask the last question again; it may have no answer yet."""
        if not self._last_question:
            raise UserError("nothing was asked yet")
        if self.messages[-2:-1] == [{"role": "user", "content": self._last_question}]:
            del self.messages[-2:]
        self.ask(self._last_question)
        return "" if self.options.seed is None else "the seed is fixed, so the answer is the same"

    def _save(self, rest: str) -> str:
        """Write the conversation in the API's form. Raises `UserError` rather than replace a file."""
        conversation = {"model": self.options.model, **self.options.conversation(*self.messages)}
        try:
            with Path(rest).expanduser().open("x", encoding="utf-8") as file:
                json.dump(conversation, file, indent=1)
        except OSError as error:
            raise UserError(f"/save {rest}: {error.strerror or error}; name another file") from error
        return f"saved as {rest}"

    def _quit(self, rest: str) -> str:
        self.is_over = True
        return ""
