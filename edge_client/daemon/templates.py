"""Chat messages as a prompt, by the target's own template: rendered in a sandbox, within bounds.

The template comes from a verifier and runs here, so it is trusted with nothing: Jinja's immutable sandbox
keeps it from this process' objects, and what a sandbox leaves open is bounded too, its output, the objects
that it multiplies and its time.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.errors import PeerError, UserError

MAX_OUTPUT = 8 * 2**20
"""Characters: twice what a context of a million tokens holds."""

MAX_OBJECT = 2**24
"""Elements or bits that `*` and `**` may make."""

PATIENCE = 2.0
"""Seconds for one rendering; the templates in use take milliseconds."""

Message = Mapping[str, Any]


class _TooLong(Exception):
    """Raised in the rendering thread from outside."""


class _Refused(Exception):
    """A template's own `raise_exception`: what it says of the messages."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also keeps operators from making objects that fill the memory."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise jinja2.TemplateRuntimeError("% does not format here, as it pads to any width")
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise jinja2.TemplateRuntimeError("a power of numbers this large is not computed")
        if operator == "*":
            sizes = [len(each) if hasattr(each, "__len__") else abs(each) for each in (left, right)]
            if any(hasattr(each, "__len__") for each in (left, right)) and sizes[0] * sizes[1] > MAX_OBJECT:
                raise jinja2.TemplateRuntimeError("a repetition this long is not made")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """A template and the words that it knows. Raises `PeerError` if it cannot be parsed."""

    def __init__(self, source: str, words: Mapping[str, str]) -> None:
        self.source = source
        self._words = dict(words)
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        for name in ("center", "format"):  # pad to any width; no template in use needs them
            del environment.filters[name]
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)  # noqa: DTZ005 - the user's own day
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise PeerError(f"the target's chat template cannot be read: {error}") from error

    def render(self, messages: Sequence[Message], **settings: Any) -> str:
        """The prompt, ready for the model's answer. `settings` are the template's own switches.

        Takes up to `PATIENCE` seconds, so call it beside the event loop. Raises `UserError` where it refuses
        the messages, `PeerError` where it breaks, writes too much or does not come to an end.
        """
        values = {"add_generation_prompt": True, **settings, **self._words, "messages": list(messages)}
        rendering = _Rendering(self._template, values)
        rendering.start()
        rendering.join(PATIENCE)
        rendering.give_up()
        return rendering.result()


class _Rendering(threading.Thread):
    """A rendering that can be stopped: templates may loop as long as they like."""

    def __init__(self, template: jinja2.Template, values: dict[str, Any]) -> None:
        super().__init__(name="chat template", daemon=True)
        self._template, self._values = template, values
        self._parts: list[str] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            size = 0
            for part in self._template.generate(self._values):
                size += len(part)
                if size > MAX_OUTPUT:
                    raise jinja2.TemplateRuntimeError(f"it writes more than {MAX_OUTPUT} characters")
                self._parts.append(part)
        except BaseException as error:  # noqa: BLE001 - outermost frame of this thread; told by `result`
            self._error = error

    def give_up(self) -> None:
        """Stop it if it still runs: raises in that thread at its next line of Python."""
        while self.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident or 0), ctypes.py_object(_TooLong)
            )
            self.join(0.05)

    def result(self) -> str:
        match self._error:
            case None:
                return "".join(self._parts)
            case _Refused():
                raise UserError(f"the target's chat template refuses these messages: {self._error}")
            case _TooLong():
                raise PeerError(f"the target's chat template did not come to an end in {PATIENCE:g} s")
            case _:
                raise PeerError(
                    f"the target's chat template cannot render these messages: {self._error}"
                ) from self._error


def _refuse(message: str) -> None:
    raise _Refused(message)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """As transformers does it: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= 64
