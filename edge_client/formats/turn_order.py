"""Arranges a conversation's messages as a chat template takes them.

Agents send several system messages, some of them between turns, and the user may speak twice in a row or
right after a tool's result. Templates refuse or drop such messages (Qwen 3.5, Gemma 3, Mistral, gpt-oss), or
put them elsewhere (DeepSeek). What a template takes stays as it is. Further messages change none of those
before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

from common.errors import PeerError, UserError
from edge_client.formats.message import Json

BETWEEN = "\n\n"
"""Stands between the texts of messages that become one."""

DONE = "Done."
"""Said by the assistant between a tool's result and the user, for templates that demand an answer there."""


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """Says which orders of messages a template takes."""

    later_systems: bool  # system messages after the first message
    one_role: bool  # messages of the user or of the assistant in a row
    user_after_tool: bool

    def shown(self, messages: Iterable[Json]) -> list[Json]:
        shown = list[Json]()
        for each in messages:
            last = shown[-1]["role"] if shown else ""
            message = each if last in ("", "system") else self._between_turns(each)
            role = message["role"]
            if last == role and not self._takes_again(role):
                shown[-1] = _joined(shown[-1], message)
                continue
            if (last, role) == ("tool", "user") and not self.user_after_tool:
                shown.append({"role": "assistant", "content": DONE})
            shown.append(message)
        return shown

    def _between_turns(self, message: Json) -> Json:
        if message["role"] != "system" or self.later_systems:
            return message
        return {"role": "user", "content": reminder(message["content"])}

    def _takes_again(self, role: str) -> bool:
        return self.later_systems if role == "system" else self.one_role or role == "tool"


def one_call_each(messages: Iterable[Json]) -> list[Json]:
    """Return the messages with one call in each, followed by its result, for templates that take one call."""
    alone, rest = list[Json](), deque(messages)
    while rest:
        message = rest.popleft()
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            alone.append(message)
            continue
        results = list[Json]()
        while rest and rest[0]["role"] == "tool":
            results.append(rest.popleft())
        for call in calls:
            alone.append({**message, "tool_calls": [call]})
            alone += [each for each in results if each.get("tool_call_id") == call["id"]]
            results = [each for each in results if each.get("tool_call_id") != call["id"]]
            message = {"role": "assistant", "content": ""}
        alone += results
    return alone


def calls_apart(messages: Iterable[Json]) -> list[Json]:
    """Return the messages with calls behind the content, for templates that drop one of both or move it."""
    apart = list[Json]()
    for each in messages:
        calls = each.get("tool_calls")
        if not calls or not each["content"]:
            apart.append(each)
            continue
        apart.append({name: value for name, value in each.items() if name != "tool_calls"})
        apart.append({"role": "assistant", "content": "", "tool_calls": calls})
    return apart


def reminder(text: str) -> str:
    """Return a system message's text as a part of the user's, in the form that coding agents use."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def is_plain(messages: Sequence[Json]) -> bool:
    """Tell whether every template takes these messages: a system message, then user and assistant in turn."""
    roles = [each["role"] for each in messages]
    turns = zip(roles[roles[:1] == ["system"] :], cycle(("user", "assistant")), strict=False)
    return all(a == b for a, b in turns) and not any("tool_calls" in each for each in messages)


def find_order(render: Callable[[Sequence[Json]], str], call: Json) -> TurnOrder:
    """Return the orders that a template takes. Renders it three times; `call` is a message with a call."""

    def probe(at: int, role: str) -> Json:
        identity = {"tool_call_id": call["tool_calls"][0]["id"]} if role == "tool" else {}
        return call if role == "call" else {"role": role, "content": f"probe {at}", **identity}

    def writes(*roles: str) -> bool:
        try:
            text = render([probe(at, role) for at, role in enumerate(roles)])
        except (PeerError, UserError):
            return False
        places = [text.find(f"probe {at}") for at, role in enumerate(roles) if role != "call"]
        return -1 not in places and places == sorted(places)

    return TurnOrder(
        later_systems=writes("system", "system", "user", "assistant", "system", "user"),
        one_role=writes("user", "user"),
        user_after_tool=writes("user", "call", "tool", "user"),
    )


def _joined(first: Json, second: Json) -> Json:
    """Return two messages of one role as one."""
    joined = {**first, **second}
    for name in ("content", "reasoning_content"):
        if texts := [each[name] for each in (first, second) if each.get(name)]:
            joined[name] = BETWEEN.join(texts)
    if calls := [call for each in (first, second) for call in each.get("tool_calls", ())]:
        joined["tool_calls"] = calls
    return joined
