"""Shows a model what its chat template does not write: tools, calls, and messages in some orders.

A model with a notation of calls keeps it. Any other model gets that of Hermes: the tools are listed in the
system message, and the calls and results of earlier turns are text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from common.errors import PeerError, UserError
from edge_client.api.call_syntax import HERMES, IDS, PROBES, CallSyntax, Controls, find_syntax
from edge_client.api.turn_order import TurnOrder, find_order, one_call_each
from edge_client.texts.message import Json
from edge_client.texts.templates import ChatTemplate

LISTED = "You can call functions. Each line describes one in JSON.\n<tools>\n{tools}\n</tools>\n"
OWN_WAY = "To call a function, write the call as you always write calls."
HERMES_WAY = """To call a function, write its name and its arguments in this form, once for each call:
<tool_call>
{"name": "the function's name", "arguments": {"an argument's name": "its value"}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class CallStyle:
    """Holds how one target is shown messages, tools and calls."""

    syntax: CallSyntax
    is_own: bool  # the template has a notation of calls
    lists_tools: bool  # the template writes the tools
    has_system: bool  # the template writes a system message
    order: TurnOrder

    def shown(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[Json]:
        """Return the messages for the template, with what it does not write by itself."""
        written = [self._message(each) for each in messages]
        if self.is_own and self.syntax.between is None:
            written = one_call_each(written)
        shown = self._with_system(self.order.shown(written))
        if not tools or (self.lists_tools and self.is_own):
            return shown
        lines = "\n".join(json.dumps(each["function"], ensure_ascii=False) for each in tools)
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
        """Return one message as the template takes it."""
        calls = message.get("tool_calls", ())
        if not self.is_own and message["role"] == "tool":
            return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        if not calls:
            return message
        if self.is_own:
            return {**message, "tool_calls": [self._call(each) for each in calls]}
        functions = [json.dumps(each["function"], ensure_ascii=False) for each in calls]
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
            arguments = json.dumps(arguments, ensure_ascii=False)
        if self.syntax.named is not None and not isinstance(arguments, dict):  # a text that is no JSON object
            arguments = {"arguments": arguments}
        return {**call, "function": {**call["function"], "arguments": arguments}}


@lru_cache(maxsize=8)
def call_style(template: ChatTemplate, controls: Controls) -> CallStyle:
    """Return how a target is shown messages and tools. Renders its template some fifteen times."""
    syntax = find_syntax(template.render, controls)
    user = {"role": "user", "content": "hello"}
    arguments: Any = "{}" if syntax is not None and syntax.arguments_as_text else {}
    function = {"name": PROBES[0]["function"]["name"], "arguments": arguments}
    call = {"id": IDS[0], "type": "function", "function": function}
    return CallStyle(
        syntax or HERMES,
        syntax is not None,
        _writes(template, PROBES[0]["function"]["name"], [user], {"tools": PROBES}),
        _writes(template, "a system", [{"role": "system", "content": "a system"}, user], {}),
        find_order(template.render, {"role": "assistant", "content": "", "tool_calls": [call]}),
    )


def _writes(template: ChatTemplate, text: str, messages: Sequence[Json], settings: Mapping[str, Any]) -> bool:
    try:
        return text in template.render(messages, settings)
    except (PeerError, UserError):
        return False
