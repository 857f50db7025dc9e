"""A conversation: what was said, and how the next answer is fetched and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from edge_client.local_client import LocalClient
from forerun.chat.asking import CHAT_PATH, Asking, Json
from forerun.chat.display import Display
from forerun.chat.following import Following
from forerun.chat.parts import Ended

Find = Callable[[], LocalClient]


@dataclass(slots=True)
class Turn:
    """A question and its answer, which may have been broken off."""

    question: str
    answer: str


@dataclass(slots=True)
class Conversation:
    """What was said so far."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)

    def messages(self, question: str | None = None) -> list[Json]:
        """As the API wants it, with a further question."""
        found = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            found.append({"role": "user", "content": turn.question})
            found.append({"role": "assistant", "content": turn.answer})
        return found if question is None else [*found, {"role": "user", "content": question}]


class Talk:
    """Asks a daemon on behalf of a conversation, and keeps what comes.

    Args: asking, how; find, the daemon that runs now; display, a new one for each answer.
    """

    def __init__(
        self, conversation: Conversation, asking: Asking, find: Find, display: Callable[[], Display]
    ) -> None:
        self.conversation = conversation
        self.asking = asking
        self.find = find
        self.figures: list[Any] = []  # of the answers that are whole
        self.last_question = ""
        self.was_stopped = False  # the last answer, by Ctrl-C
        self._display = display
        self._written: set[Path] = set()

    def ask(self, question: str) -> Ended | None:
        """Fetch and show an answer; None if it was stopped. Raises the `ForerunError` that ended it.

        Whatever came of it stays in the conversation.
        """
        self.last_question, self.was_stopped = question, False
        body = self.asking.body({"messages": self.conversation.messages(question)})
        following, display = Following(self.find, CHAT_PATH, body), self._display()
        ended: Ended | None = None
        try:
            for part in following.parts():
                display.take(part)
                ended = part if isinstance(part, Ended) else ended
        except KeyboardInterrupt:
            self.was_stopped = True
            following.stop()
        except BrokenPipeError:  # nobody reads any more; the daemon would write on
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
        """That the daemon has, the default first."""
        told = self.find().get("/v1/models")
        return [str(each["id"]) for each in told["data"]]

    def undo(self) -> Turn:
        """Take the last question and its answer back. Raises `UserError` if there is none."""
        if not self.conversation.turns:
            raise UserError("nothing was said yet")
        return self.conversation.turns.pop()

    def save(self, path: Path) -> None:
        """As JSON if the name says so, else as text. Raises `UserError` rather than replace a file that this
        conversation has not written."""
        if path.exists() and path not in self._written:
            raise UserError(f"{path} is there already and is left as it is; name another file")
        try:
            path.write_text(self._document(path.suffix == ".json"), encoding="utf-8")
        except (OSError, UnicodeEncodeError) as error:
            raise UserError(f"{path} cannot be written: {error}") from error
        self._written.add(path)

    def _document(self, as_json: bool) -> str:
        messages = self.conversation.messages()
        if as_json:
            return json.dumps({"model": self.asking.model, "messages": messages}, indent=1) + "\n"
        return "".join(f"{each['role']}:\n{each['content']}\n\n" for each in messages)
