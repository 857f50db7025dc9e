"""Shows a model what its chat template does not write: tools, calls, and messages in some orders.

A model with a notation of calls keeps it, if our reader knows it. Any other model gets that of Hermes: the
tools are listed in the system message, and the calls and results of earlier turns are text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from common.errors import PeerError, UserError
from edge_client.formats.call_syntax import CONTENT, HERMES, IDS, PROBES, CallSyntax, Controls, find_syntax
from edge_client.formats.chat_template import ChatTemplate, CostlyTemplateError
from edge_client.formats.detokenizer import TextSpan
from edge_client.formats.families import begun_by, family_of
from edge_client.formats.json_text import json_text
from edge_client.formats.message import Json, Message, MessageForm
from edge_client.formats.message_reader import MessageReader
from edge_client.formats.turn_order import TurnOrder, calls_apart, find_order, one_call_each

LISTED = "You can call functions. Each line describes one in JSON.\n<tools>\n{tools}\n</tools>\n"
OWN_WAY = "To call a function, write the call as you always write calls."
HERMES_WAY = """To call a function, write its name and its arguments in this form, once for each call:
<tool_call>
{"name": "the function's name", "arguments": {"an argument's name": "its value"}}
</tool_call>"""

SYSTEM, RESULT = "probed system", "probed result"

MAX_PROBED = 2**16
"""Characters of a probe's text. The longest in use have some 5,000; a hostile template could write 8 MB."""


@dataclass(frozen=True, slots=True)
class CallStyle:
    """Holds how one target is shown messages, tools and calls."""

    syntax: CallSyntax
    is_own: bool  # the template has a notation of calls, and its calls are read
    lists_tools: bool  # the template writes the tools
    order: TurnOrder
    has_system: bool = True  # the template writes a system message, also before a result at the end
    keeps_content: bool = True  # the template writes content beside calls, and before their results

    def shown(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[Json]:
        """Return the messages for the template, with what it does not write by itself."""
        written = [self._message(each) for each in messages]
        if self.is_own and self.syntax.between is None:
            written = one_call_each(written)
        shown = self._with_system(self.order.shown(written))
        if not self.keeps_content:
            shown = calls_apart(shown)
        if not tools or (self.lists_tools and self.is_own):
            return shown
        lines = "\n".join(json_text(each["function"]) for each in tools)
        return self._with_instructions(
            shown, LISTED.format(tools=lines) + (OWN_WAY if self.is_own else HERMES_WAY)
        )

    def _with_system(self, messages: list[Json]) -> list[Json]:
        """Return the messages with the system message in the user's, if the template refuses or drops it."""
        if self.has_system or [each["role"] for each in messages[:2]] != ["system", "user"]:
            return messages
        system, user, *rest = messages
        return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]

    def _with_instructions(self, messages: list[Json], text: str) -> list[Json]:
        """Return the messages with a text for the model at the end of the system message, or in its place."""
        role = "system" if self.has_system else "user"
        if messages and messages[0]["role"] == role:
            first = messages[0]
            joined = (first["content"], text) if self.has_system else (text, first["content"])
            return [{**first, "content": "\n\n".join(filter(None, joined))}, *messages[1:]]
        return [{"role": role, "content": text}, *messages]

    def _message(self, message: Json) -> Json:
        calls = message.get("tool_calls", ())
        if not self.is_own and message["role"] == "tool":
            return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        if not calls:
            return message
        if self.is_own:
            return {**message, "tool_calls": [self._call(each) for each in calls]}
        functions = [json_text(each["function"]) for each in calls]
        written = [f"<tool_call>\n{each}\n</tool_call>" for each in functions]
        content = "\n".join(filter(None, [message["content"], *written]))
        return {
            **{name: value for name, value in message.items() if name != "tool_calls"},
            "content": content,
        }

    def _call(self, call: Json) -> Json:
        """Return a call with its arguments in the form that the template takes."""
        arguments = call["function"]["arguments"]
        if self.syntax.arguments_as_text and not isinstance(arguments, str):
            arguments = json_text(arguments)
        if self.syntax.named is not None and not isinstance(arguments, dict):  # a text that is no JSON object
            arguments = {"arguments": arguments}
        return {**call, "function": {**call["function"], "arguments": arguments}}


@lru_cache(maxsize=8)
def call_style(template: ChatTemplate, controls: Controls) -> CallStyle:
    """Return how a target is shown messages and tools. Renders its template some twenty times, but not again
    after one that took all its time."""
    probes = _Probes(template)
    syntax = find_syntax(probes.render, controls)
    user: Json = {"role": "user", "content": "hello"}
    lists_tools = PROBES[0]["function"]["name"] in probes.text([user], {"tools": PROBES})
    arguments: Any = "{}" if syntax is not None and syntax.arguments_as_text else {}
    function = {"name": PROBES[0]["function"]["name"], "arguments": arguments}
    call = {"id": IDS[0], "type": "function", "function": function}
    called: Json = {"role": "assistant", "content": "", "tool_calls": [call]}
    form = family_of(template.source).form(template.source)
    if syntax is not None and not _is_read(probes, controls, [user, called], form):
        syntax = None
    style = CallStyle(syntax or HERMES, syntax is not None, lists_tools, find_order(probes.render, called))
    chat = [user, {**called, "content": CONTENT}, {"role": "tool", "content": RESULT, "tool_call_id": IDS[0]}]
    if not _keeps_content(probes, style.shown(chat, [])):
        apart = replace(style, keeps_content=False)
        longer = [*chat, {"role": "assistant", "content": "done"}, user]
        style = apart if _keeps_content(probes, apart.shown(longer, [])) else style
    begun = [{"role": "system", "content": SYSTEM}, user]
    chats = (style.shown(each, []) for each in (begun, [*begun, *chat[1:]]))
    return replace(style, has_system=all(SYSTEM in probes.text(each) for each in chats))


def _is_read(probes: _Probes, controls: Controls, chat: Sequence[Json], form: MessageForm) -> bool:
    """Tell whether the call at a chat's end, as the template writes it, is read as that call."""
    begun = probes.text(chat[:-1], {"tools": PROBES})
    whole = probes.text(chat, {"tools": PROBES, "add_generation_prompt": False})
    begun = controls.common_prefix(begun, whole)
    reader = MessageReader(replace(begun_by(form, begun), tools=PROBES))
    message = Message()
    message.add(reader.feed([TextSpan(whole.removeprefix(begun), None)]))
    message.add(reader.finish())
    return [each.name for each in message.calls] == [chat[-1]["tool_calls"][0]["function"]["name"]]


def _keeps_content(probes: _Probes, messages: Sequence[Json]) -> bool:
    text = probes.text(messages)
    return -1 < text.find(CONTENT) < text.find(RESULT)


class _Probes:
    """Renders short chats by a template that may be hostile."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._costly: CostlyTemplateError | None = None  # why no further chat is rendered

    def render(self, messages: Sequence[Json], settings: Mapping[str, Any] | None = None) -> str:
        """Render a chat. Raises `PeerError`, also if its text is too long to be examined, or `UserError`."""
        if self._costly is not None:
            raise self._costly
        try:
            text = self._template.render(messages, settings)
        except CostlyTemplateError as error:
            self._costly = error
            raise
        if len(text) > MAX_PROBED:
            raise PeerError(f"the target's chat template writes {len(text)} characters for a short chat")
        return text

    def text(self, messages: Sequence[Json], settings: Mapping[str, Any] | None = None) -> str:
        """Return a chat as the template writes it; empty if it refuses or fails."""
        try:
            return self.render(messages, settings)
        except (PeerError, UserError):
            return ""
