"""Reads the conversation and the tools of OpenAI's Responses API as messages and functions of a chat.

The format is that of https://developers.openai.com/api/reference/resources/responses.
"""

from __future__ import annotations

from typing import Any

from edge_client.formats.api_error import unsupported
from edge_client.formats.dialect import Json
from edge_client.formats.fields import MAX_TEXT, Fields
from edge_client.formats.openai import (
    MAX_ID,
    MAX_TOOL_NAME,
    MAX_TOOLS,
    ROLES,
    read_content,
    read_function,
    read_name,
    tool_call,
)
from edge_client.formats.parsed_request import CallRule, Tool, Tools

MAX_ITEMS = 16_384

PART = ("type", "text", "refusal", "annotations", "logprobs")
"""Fields of an item's part that are read, or that clients read again."""

INPUT = "input"
"""The only parameter of the function that stands for a custom tool, whose input is free text."""


def read_items(fields: Fields, instructions: str) -> tuple[list[Json], list[Json]]:
    """Read `input`, a string or a list of items. Raises `ApiError` that names the item's field.

    Return the messages, and of the items what was read, which later requests may continue.
    """
    given = fields.any("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not 0 < len(given) <= MAX_ITEMS:
        raise fields.wrong("input", f"must be a string or a list of 1 to {MAX_ITEMS} items")
    reader = _ItemReader([{"role": "system", "content": instructions}] if instructions else [])
    for at, each in enumerate(given):
        reader.add(fields.entry("input", at, each))
    return reader.messages, reader.read


class _ItemReader:
    """Collects messages from items. An assistant's reasoning, text and calls in a row are one message."""

    def __init__(self, messages: list[Json]) -> None:
        self.messages = messages
        self.read = list[Json]()  # what was read of each item
        self._names = dict[str, str]()  # of called functions, by the call's id

    def add(self, item: Fields) -> None:
        kind = item.text("type", "message", 64)
        match kind:
            case "message":
                self._message(item)
            case "reasoning" if thought := _thought(item):
                self.messages.append({"role": "assistant", "content": "", "reasoning_content": thought})
            case "reasoning":
                item.skip("only the server that encrypted it can read it")
                return
            case "function_call" | "custom_tool_call":
                self._call(item, is_custom=kind == "custom_tool_call")
            case "function_call_output" | "custom_tool_call_output":
                self._output(item)
            case _:
                item.skip(f"items of type {kind} are not read here")
                return
        for name in ("id", "status", "phase"):  # of items that are sent back as they were received
            item.any(name)
        self.read.append({name: _pruned(value) for name, value in item.read.items()})

    def _message(self, item: Fields) -> None:
        role = item.choice("role", "", ROLES[:-1])
        if not role:
            raise item.wrong("role", f"must be one of {', '.join(ROLES[:-1])}")
        content = read_content(item)
        if role != "assistant":  # templates lack OpenAI's newer name "developer"
            self.messages.append({"role": "system" if role == "developer" else role, "content": content})
        elif (last := self._last()) is not None and not last["content"] and "tool_calls" not in last:
            last["content"] = content
        else:
            self.messages.append({"role": role, "content": content})

    def _call(self, item: Fields, is_custom: bool) -> None:
        identity, name = item.text("call_id", longest=MAX_ID), read_name(item)
        name = flat_name(item.text("namespace", longest=MAX_TOOL_NAME), name)
        text = item.text("input" if is_custom else "arguments", longest=MAX_TEXT)
        self._names[identity] = name
        last = self._last()
        if last is None:
            self.messages.append(last := {"role": "assistant", "content": ""})
        call = tool_call(identity, name, {INPUT: text} if is_custom else text)
        last.setdefault("tool_calls", []).append(call)

    def _output(self, item: Fields) -> None:
        identity = item.text("call_id", longest=MAX_ID)
        content = read_content(item, "output", is_result=True)
        message = {"role": "tool", "content": content, "tool_call_id": identity}
        if name := self._names.get(identity):
            message["name"] = name
        self.messages.append(message)

    def _last(self) -> Json | None:
        """Return the last message if it is the assistant's."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last["role"] == "assistant" else None


def _thought(item: Fields) -> str:
    """Return an item's thought; empty for the encrypted ones of other servers."""
    parts = [*item.list("content", MAX_ITEMS), *item.list("summary", MAX_ITEMS)]
    texts = [each.get("text") for each in parts if isinstance(each, dict)]
    return "\n".join(each for each in texts if isinstance(each, str))


class ReadTools:
    """Holds the tools of a request and what their calls are in a response.

    `told` are the tools as they were given. `calls` has the tools that are no plain functions, by the name
    that the model calls: custom tools, and functions of a namespace.
    """

    def __init__(self, fields: Fields) -> None:
        self.told = list[Json]()
        self.calls = dict[str, Json]()
        self._listed = list[Tool]()
        for at, each in enumerate(fields.list("tools", MAX_TOOLS)):
            tool = fields.entry("tools", at, each)
            if self._read(tool):
                own = {"description": None, "parameters": None, "strict": False}
                self.told.append({**own, **each} if tool.any("type") == "function" else each)
        self.tools = self._chosen(fields).checked()

    def _read(self, tool: Fields, namespace: str = "") -> bool:
        """Read one tool. Return whether it can be called here."""
        kind = tool.text("type", longest=64)
        match kind:
            case "function":
                function = read_function(tool)
            case "custom":
                function = _read_custom(tool)
            case "namespace" if not namespace:
                return self._read_namespace(tool)
            case _:
                tool.skip(f"tools of type {kind} do not exist here")
                return False
        called = flat_name(namespace, function.name)
        self._listed.append(Tool(called, function.description, function.parameters, function.strict))
        if namespace or kind == "custom":
            self.calls[called] = {"type": kind, "name": function.name, "namespace": namespace}
        return True

    def _read_namespace(self, tool: Fields) -> bool:
        tool.text("description")
        name = read_name(tool)
        are_read = [self._read(each, name) for each in tool.entries("tools", MAX_TOOLS)]
        return any(are_read)

    def _chosen(self, fields: Fields) -> Tools:
        parallel, given = fields.flag("parallel_tool_calls", True), fields.any("tool_choice")
        listed = tuple(self._listed)
        must = (
            "must be none, auto, required, or an object that names a function, a custom tool or allowed tools"
        )
        if given is None:
            return Tools(listed, parallel=parallel)
        if isinstance(given, str) and given in {each.value for each in CallRule}:
            return Tools(listed, CallRule(given), parallel=parallel)
        if not isinstance(given, dict):
            raise fields.wrong("tool_choice", must)
        choice = Fields(given, "tool_choice.")
        match choice.text("type", longest=64):
            case "function" | "custom":
                return Tools(listed, CallRule.REQUIRED, _called(choice), parallel)
            case "allowed_tools":
                rule = CallRule(choice.choice("mode", "auto", ("auto", "required")))
                names = {_called(each) for each in choice.entries("tools", MAX_TOOLS)}
                return Tools(tuple(each for each in listed if each.name in names), rule, parallel=parallel)
        raise unsupported("tool_choice", f"tool_choice {must}")


def _called(choice: Fields) -> str:
    """Return the name under which the model calls a chosen tool."""
    name = choice.text("name", longest=MAX_TOOL_NAME)
    if not name and choice.text("type", longest=64) in ("function", "custom"):
        raise choice.missing("name")
    return flat_name(choice.text("namespace", longest=MAX_TOOL_NAME), name)


def _read_custom(tool: Fields) -> Tool:
    """Read a custom tool as a function of one string, whose description holds the grammar of its text."""
    own = {"type": "string"}
    if (form := tool.object("format")) is not None:
        definition = form.text("definition")
        if form.text("type", longest=64) == "grammar" and definition:
            own["description"] = f"Text of this {form.text('syntax', longest=64)} grammar:\n{definition}"
    schema = {
        "type": "object",
        "properties": {INPUT: own},
        "required": [INPUT],
        "additionalProperties": False,
    }
    function = read_function(tool)
    return Tool(function.name, function.description, schema, strict=True)


def _pruned(value: Any) -> Any:
    """Return an item's field without what is not read of its parts."""
    if not isinstance(value, list):
        return value
    return [{name: part[name] for name in PART if name in part} for part in value if isinstance(part, dict)]


def flat_name(namespace: str, name: str) -> str:
    """Return the name by which a model calls a tool of a namespace; chat templates know no namespaces."""
    return f"{namespace.removesuffix('__')}__{name}" if namespace else name
