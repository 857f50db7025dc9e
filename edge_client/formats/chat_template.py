"""Renders chat messages as a prompt by the target's template, in a bounded process of its own.

The template comes from a verifier and runs on this device, so it is untrusted. Jinja's immutable sandbox
keeps it from objects. But one expression can fill the memory or block an interpreter for minutes, and no list
of forbidden constructs is complete. So a process (`main`) with little memory and no files to write runs the
template, and is ended if it takes too long.

The process reads messages of JSON: one with the template's `source`, then one with `values` for each text. It
answers each with the `text`, or with an error under `refused`, `broke` or `unreadable`.
"""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.child import ChildProcess, die_first, limit, serve
from common.errors import PeerError, UserError

if TYPE_CHECKING:
    import jinja2
    from jinja2.nodes import Node
    from jinja2.parser import Parser

MAX_OUTPUT = 8 * 2**20
"""Characters of a prompt: twice those of a context of a million tokens."""

MAX_ANSWER = 12 * MAX_OUTPUT + 1024
"""Bytes of an answer. JSON takes twelve for a character beyond U+FFFF."""

MAX_LINE = 2**28
"""Bytes of a question, more than fit into the process's memory."""

PROCESSOR_TIME = 2.0
"""Seconds of a processor to read the template, and for one rendering. Those in use take milliseconds."""

PATIENCE = 30.0
"""Seconds on the clock for the same. A machine that takes longer is busy."""

MEMORY = 512 * 2**20
"""Bytes of memory for one rendering. The process also limits itself, unless the system forbids that, as our
own systemd unit does."""

ADDRESSES = 768 * 2**20
"""Bytes of the process's address space, with Python and all copies of a text."""

Message = Mapping[str, Any]


class CostlyTemplateError(PeerError):
    """Raised where a template broke a bound of its process, or ended it."""


class ChatTemplate:
    """Holds a template and its words. Any thread may render, one text at a time."""

    def __init__(self, source: str, words: Mapping[str, str]) -> None:
        self.source = source
        self._words = dict(words)
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None

    def render(self, messages: Sequence[Message], settings: Mapping[str, Any] | None = None) -> str:
        """Return the prompt, ready for the model's answer. `settings` are the template's own switches.

        Takes up to `PROCESSOR_TIME` and some tenths of a second more for a new process, on a busy machine up
        to `PATIENCE`, so call it outside the event loop. Raises `UserError` if the template refuses the
        messages, and `PeerError` if it is unreadable, fails or writes too much, which is a
        `CostlyTemplateError` if it does not end or fills its memory. Raises `CapacityError` if this machine
        is too busy, and `LocalError` if no process starts.
        """
        values = {
            "add_generation_prompt": True,
            **(settings or {}),
            **self._words,
            "messages": list(messages),
        }
        with self._lock:
            answer = self._ask(self._ready(), {"values": values})
        if "text" in answer:
            return str(answer["text"])
        ((why, words),) = answer.items()
        if why == "refused":
            raise UserError(f"the target's chat template refuses these messages: {words[:1000]}")
        cannot = "be read" if why == "unreadable" else "render these messages"
        raise PeerError(f"the target's chat template cannot {cannot}: {words[:1000]}")

    def _ready(self) -> ChildProcess:
        if self._child is None or not self._child.is_alive:
            module = "edge_client.formats.chat_template"
            child = ChildProcess(module, {"most": MAX_OUTPUT}, max_line=MAX_ANSWER, purpose="chat templates")
            self._ask(child, {"source": self.source})
            self._child = child
        return self._child

    @staticmethod
    def _ask(child: ChildProcess, message: Mapping[str, Any]) -> dict[str, Any]:
        answer = child.ask(message, PATIENCE, seconds=PROCESSOR_TIME, memory=MEMORY)
        if answer is None:
            why = child.why or "has ended the process that renders it"
            raise CostlyTemplateError(f"the target's chat template {why}")
        return answer


# The process ------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """Raised by a template's own `raise_exception`."""


def main() -> None:
    """Serve until standard input ends. On a system without limits only the parent bounds this process."""
    die_first()
    limit(RLIMIT_AS=ADDRESSES, RLIMIT_DATA=ADDRESSES, RLIMIT_FSIZE=0)
    serve(_begin, MAX_LINE)


def _begin(asked: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    import jinja2.ext
    import jinja2.sandbox  # noqa: F401 - here, not at the first template's cost

    template: jinja2.Template | str = ""

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        nonlocal template
        if "source" not in message:
            return _told(template, message["values"], asked["most"])
        template = _parsed(message["source"])
        return {"read": True}

    return answer


def _told(template: jinja2.Template | str, values: dict[str, Any], most: int) -> dict[str, str]:
    if isinstance(template, str):
        return {"unreadable": template}
    parts, size = list[str](), 0
    try:
        for part in template.generate(values):
            parts.append(part)
            size += len(part)
            if size > most:
                return {"broke": f"it writes more than {most} characters"}
        return {"text": "".join(parts)}
    except _Refused as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"broke": f"it needs more than {ADDRESSES >> 20} MiB of memory"}
    except Exception as error:  # noqa: BLE001 - outermost frame: a template may raise anything
        return {"broke": str(error) or type(error).__name__}


def _parsed(source: str) -> jinja2.Template | str:
    """Return the template, or its error. Jinja already evaluates constants here."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """Reads transformers' block around the model's own texts, a mark for training."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    # as transformers does it: Jinja's own filter escapes HTML
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)  # noqa: DTZ005 - the user's own day
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        return str(error) or type(error).__name__


def _refuse(message: str) -> None:
    raise _Refused(message)


if __name__ == "__main__":
    main()
