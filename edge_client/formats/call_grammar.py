"""Makes the grammar of a message that calls tools, in the notation of its model (`call_syntax`).

Control tokens are asked for by id, so that both sides read them alike. Arguments in JSON follow llguidance's
reading of the tool's schema. Arguments by name follow it, too, except strings without quotes
(`_NamedWriter._string`). The mark of an argument's end is excluded from these strings. From strings within an
argument in JSON it is not, as llguidance cannot exclude it; such a text is read as content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from common.errors import UserError
from common.grammar import inline_schema, json_schema_grammar, lark_grammar
from edge_client.formats.api_error import wrong
from edge_client.formats.call_syntax import CallSyntax, Controls, NamedArguments
from edge_client.formats.call_values import referred
from edge_client.formats.families import marks_of
from edge_client.formats.message import Json, MessageForm
from edge_client.formats.parsed_request import CallRule, Tool, Tools
from edge_client.formats.regions import REASONING
from edge_client.formats.schema_bounds import ANY, bounded

ANY_TEXT = "(?s:.*)"
SOME_TEXT = "/(?s:.+)/"
ANY_NAME = "/[A-Za-z_][A-Za-z0-9_.-]*/"
SPACE = r"/\s{0,2}/"

MAX_DEPTH, MAX_SEEN = 16, 4096
"""References and unions that are followed to find values' types: one within the other, and for one tool."""

MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords that hold schemas by name."""

ANNOTATIONS = (
    "title",
    "description",
    "examples",
    "example",
    "default",
    "$schema",
    "$comment",
    "$id",
    "x-guidance",
)
"""Keywords that say nothing about values and would only fill the grammar's 64 KiB."""

OF_STRINGS = ("pattern", "minLength", "maxLength", "format")
OTHER_TYPES = ["object", "array", "number", "boolean", "null"]

DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""Formats of strings without quotes (RFC 3339, RFC 4122). Days end at 28, which every month has."""

OPEN: Json = bounded({"type": "object"})


@dataclass(frozen=True, slots=True)
class Thought:
    """Holds the marks of a model's reasoning before its answer."""

    begin: str
    end: str
    is_open: bool  # the prompt holds the beginning


def thought_of(message: MessageForm, source: str) -> Thought | None:
    """Return the marks of the reasoning that may come before the answer, or None if there is none to come.

    `source` is the chat template's: a model whose template never mentions the marks does not think in them.
    """
    regions = marks_of(message).regions if message.family else ()
    region = next((each for each in regions if each.name == REASONING), None)
    if region is None or region.open is None or region.close is None:
        return None
    begin, end = region.open.texts[0], region.close.texts[0]
    if begin.strip() not in source + message.prefix:
        return None
    begun, ended = message.prefix.rfind(begin), message.prefix.rfind(end)
    return None if ended > begun else Thought(begin, end, begun >= 0)


def request_grammar(tools: Tools, own: str, make: CallGrammars) -> str:
    """Return the grammar of a chat with these tools, of which `own` is the request's own grammar.

    Raises `ApiError` for grammars that exclude each other, and for a tool whose schema cannot be enforced.
    """
    listed = tools.callable
    of_format = own.startswith("{") and json.loads(own)["grammars"][0].get("json_schema") is not None
    if tools.rule is CallRule.REQUIRED:  # a format holds a content, of which there is none
        if own and not of_format:
            raise wrong("forerun", "tool_choice demands a call, which follows its own grammar; set no other")
        return _blaming_tool(make.required, listed)
    if of_format:
        return _blaming_tool(lambda some: make.calls_or(some, own), listed) if listed else make.content(own)
    is_single = not tools.parallel and make.syntax.between is not None
    if listed and not own and (is_single or any(each.strict for each in listed)):
        return _blaming_tool(make.lazy, listed)
    return own


def _blaming_tool(make: Callable[[Sequence[Tool]], str], listed: Sequence[Tool]) -> str:
    """Return the grammar of these tools. Raises `ApiError` that names the tool at fault."""
    try:
        for is_open in (True, False):  # a schema may leave no value within our bounds
            with suppress(UserError):
                return make([_ending(each, is_open) for each in listed])
        return make(listed)
    except RecursionError as error:
        raise wrong("tools", "a tool's parameters are nested too deeply") from error
    except UserError as error:
        for tool in listed:
            try:
                make([tool])
            except UserError as its:
                words = f"the tool {tool.name} cannot be enforced: {its}; make its schema simpler"
                raise wrong("tools", words) from its
        raise wrong("tools", f"the tools together cannot be enforced: {error}; list fewer tools") from error


def _ending(tool: Tool, is_open: bool) -> Tool:
    """Return a tool in whose arguments all numbers end (`bounded`)."""
    return replace(tool, parameters=bounded(closed(tool.parameters), is_open=is_open))


@dataclass(frozen=True, slots=True)
class CallGrammars:
    """Makes the grammars of one request's calls."""

    syntax: CallSyntax
    controls: Controls
    parallel: bool = True
    thought: Thought | None = None  # None: the model does not think, or has done so

    def required(self, tools: Sequence[Tool]) -> str:
        """Return the grammar of at least one call of these tools and nothing else.

        Raises `UserError` for a schema that cannot be enforced.
        """
        lark = _Lark(self.controls)
        return self._made(lark, self._calls(lark, tools))

    def calls_or(self, tools: Sequence[Tool], content: str) -> str:
        """Return the grammar of calls, or of a content that a JSON schema's grammar describes. Raises
        `UserError` as `required`."""
        lark = _Lark(self.controls)
        if self.syntax.begin.startswith("{"):
            # Text and JSON that begin alike would be told apart too early.
            calls = " | ".join(_call_in_json(self.syntax, each) for each in _lenient(tools))
        else:
            calls = self._calls(lark, _lenient(tools))
        return self._made(lark, f"{calls} | {self._content(lark, content)}")

    def content(self, content: str) -> str:
        """Return the grammar of a content that a JSON schema's grammar describes."""
        if self.thought is None and not self.syntax.content_begin:
            return content
        lark = _Lark(self.controls)
        return self._made(lark, self._content(lark, content))

    def _content(self, lark: _Lark, content: str) -> str:
        schema = json.loads(content)["grammars"][0]["json_schema"]
        return f"{lark.literal(self.syntax.content_begin)} {inline_schema(schema)}"

    def lazy(self, tools: Sequence[Tool]) -> str:
        """Return the grammar of any text in which the calls of strict tools follow their schemas, and of one
        call unless several are allowed.

        Raises `UserError` as `required`.
        """
        lark, begin = _Lark(self.controls), self._trigger()
        calls = self._calls(lark, _lenient(tools), begin)
        if not begin:
            # JSON without marks is a call at the message's beginning only.
            return self._made(lark, rf"{calls} | (/[^{{\[\s]{ANY_TEXT}/)?")
        text = SOME_TEXT
        if begin in self.controls.ids:
            calls = f"{text}? {lark.literal(begin)} {calls}"
        else:
            mark = _escaped(begin)
            text = lark.rule(f"{SOME_TEXT} & ~/{ANY_TEXT}{mark}{ANY_TEXT}/", letter="T")
            calls = f"{lark.rule(f'/{ANY_TEXT}{mark}/', 'lazy')} {calls}"
        others = sorted(value for name, value in self.controls.ids.items() if name != begin)
        other = f"({text}? <[{','.join(map(str, others))}]>)*" if others else ""
        if self.parallel:
            return self._made(lark, f"({other} {calls})* {other} {text}?")
        return self._made(lark, f"{other} ({calls} {other})? {text}?")

    def _trigger(self) -> str:
        """Return the part of the calls' beginning that nothing but a call has; empty if there is none."""
        begin = self.syntax.begin
        first = self.controls.split(begin)[0] if begin else ""
        if "to=functions." in begin:
            return "to=functions."
        if first in self.controls.ids:
            return first
        tag = re.match(r"<[^>]+>", begin)
        return tag[0] if tag else ""

    def _calls(self, lark: _Lark, tools: Sequence[Tool], begun: str = "") -> str:
        """Return the rule of calls whose beginning is written up to `begun`."""
        syntax = self.syntax
        alike = dict[str, list[Tool]]()
        for each in tools:
            alike.setdefault(json.dumps(each.parameters), []).append(each)
        one = lark.rule(" | ".join(lark.rule(_call(lark, syntax, some)) for some in alike.values()))
        begin = syntax.begin[syntax.begin.find(begun) + len(begun) :]
        # In a free text the next call's own mark begins it, so that other text may follow a call as well.
        several = self.parallel and syntax.between and not (begun and begun in syntax.between)
        more = f"({lark.literal(syntax.between)} {one})*" if syntax.between and several else ""
        return lark.rule(f"{lark.literal(begin)} {one} {more} {lark.literal(syntax.end)}")

    def _made(self, lark: _Lark, body: str) -> str:
        """Return the grammar of a message with this body, after a thought."""
        if self.thought is not None:
            begin, end = lark.literal(self.thought.begin), lark.text(self.thought.end)
            after = f"{end} {SPACE} {lark.literal(self.syntax.after_thought)}"
            thought = lark.rule(after if self.thought.is_open else f"{begin} {after}")
            body = f"{thought}{'' if self.thought.is_open else '?'} ({body})"
        return lark_grammar(lark.grammar(body))


def _lenient(tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools, with any arguments for those that are not strict."""
    return [each if each.strict else replace(each, parameters=OPEN) for each in tools]


def _call(lark: _Lark, syntax: CallSyntax, alike: Sequence[Tool]) -> str:
    """Return the expression of one call without the marks around calls. The tools differ in their names."""
    schema, names = bare(alike[0].parameters), [each.name for each in alike]
    json_schema_grammar(schema)  # refuses what is no schema, without the rules around it
    if syntax.named is not None:
        return f"{_one_of(names)} {_NamedWriter(lark, syntax, syntax.named, schema).arguments()}"
    if (syntax.begin if syntax.name_first else syntax.middle).endswith('"'):
        names = [json.dumps(each, ensure_ascii=False)[1:-1] for each in names]
    arguments, middle = inline_schema(closed(schema)), lark.literal(syntax.middle)
    return " ".join((_one_of(names), middle, arguments)[:: 1 if syntax.name_first else -1])


def _one_of(names: Sequence[str]) -> str:
    return f"({' | '.join(map(quoted, names))})"


def _call_in_json(syntax: CallSyntax, tool: Tool) -> str:
    """Return the expression of a call that is one JSON object without marks."""
    named, given = re.findall(r'"(\w+)":', syntax.begin + syntax.middle)
    arguments = closed(bare(tool.parameters))
    schema: Json = {each: arguments[each] for each in ("$defs", "definitions") if each in arguments}
    members: Json = {named: {"const": tool.name}, given: arguments}
    schema |= {"type": "object", "properties": members, "required": list(members)}
    return inline_schema({**schema, "additionalProperties": False})


def bare(schema: Any) -> Any:
    """Return a JSON schema without annotations."""
    if not isinstance(schema, dict):
        return [bare(each) for each in schema] if isinstance(schema, list) else schema
    plain = Json()
    for name, value in schema.items():
        if name in MAPS and isinstance(value, dict):
            plain[name] = {each: bare(inner) for each, inner in value.items()}
        elif name in ("enum", "const", "required"):
            plain[name] = value
        elif name not in ANNOTATIONS:
            plain[name] = bare(value)
    return plain


def closed(schema: Json) -> Json:
    """Return a schema with the arguments alone that it names, unless it says otherwise or has no names."""
    if "properties" in schema and "additionalProperties" not in schema:
        return {"type": "object", **schema, "additionalProperties": False}
    return schema


class _Lark:
    """Collects the rules of one grammar in llguidance's dialect of Lark."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._rules = list[str]()
        self._num_names = 0
        self._known = dict[tuple[str, str, str], str]()  # names of rules

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules, ""])

    def rule(self, body: str, option: str = "", letter: str = "r") -> str:
        """Return the name of a rule. Names of terminals, which are regular, begin with a capital."""
        key = body, option, letter
        if key not in self._known:
            self._known[key] = name = self.name(letter)
            self.add(f"{name}{option and f'[{option}]'}", body)
        return self._known[key]

    def name(self, letter: str = "r") -> str:
        """Return a new name, for a rule that holds itself."""
        self._num_names += 1
        return f"{letter}{self._num_names}"

    def add(self, name: str, body: str) -> None:
        self._rules.append(f"{name}: {body}")

    def literal(self, text: str, before: str = "") -> str:
        """Return the expression of exactly this text, with its control tokens. The text `before` has none."""
        parts, plain = list[str](), before
        for piece in self._controls.split(text):
            if piece in self._controls.ids:
                parts += [quoted(plain)] * bool(plain) + [f"<[{self._controls.ids[piece]}]>"]
                plain = ""
            else:
                plain += piece
        return " ".join(parts + [quoted(plain)] * (bool(plain) or not parts))

    def text(self, end: str, terminal: str = f"/{ANY_TEXT}/") -> str:
        """Return the expression of a text and this end, which is nowhere within the text."""
        if self._controls.split(end)[0] in self._controls.ids:
            return f"{terminal} {self.literal(end)}"
        return self.rule(terminal, f"suffix={quoted(end)}")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """Return a regular expression of exactly this text between slashes."""
    return re.sub(r"[^A-Za-z0-9_ <>=:\"]", lambda char: f"\\x{{{ord(char[0]):x}}}", text)


class _NamedWriter:
    """Writes the rules of one tool's arguments that stand one by one behind their names."""

    def __init__(self, lark: _Lark, syntax: CallSyntax, named: NamedArguments, root: Json) -> None:
        self._lark = lark
        self._ends = re.findall(r"</[^<>]+>", syntax.end)
        self._named = named
        self._root = root
        self._num_seen = 0
        self._objects = dict[str, str]()  # rules by schema, for those that hold themselves

    def arguments(self) -> str:
        """Return the expression of all arguments, with what stands around them."""
        texts, others = self._alternatives(self._root)
        if texts or len(others) != 1 or others[0].get("type") != "object":
            raise UserError("its parameters must be of the type object, without anyOf, oneOf and allOf")
        named = self._named
        return self._object(others[0], (named.first, named.between, named.last, named.none), self._parameter)

    def _object(
        self, schema: Json, marks: tuple[str, str, str, str], write: Callable[[str, Any], str]
    ) -> str:
        """Return the expression of an object. `marks` stand before the first member, between members, after
        the last one, and for no members. Members have the schema's order; optional ones may be left out."""
        # A literal must not be the beginning of another one that may stand in its place: llguidance takes the
        # longer one as long as it fits.
        first, between, last, none = marks
        head = none if first.startswith(none) else ""
        first, none = first.removeprefix(head), none.removeprefix(head)
        head, first, between, last, none = map(self._lark.literal, (head, first, between, last, none))
        members, needed = self._members(schema)
        if not members and schema.get("additionalProperties", "properties" not in schema) is not False:
            any_member = self._lark.rule(write("", True))
            return f"{head} ({none} | {first} {any_member} ({between} {any_member})* {last})"
        rules = {name: self._lark.rule(write(name, each)) for name, each in members.items()}
        rest, starts = self._lark.rule(last), list[str]()
        for name in reversed(rules):
            if name in needed:
                starts.clear()
            starts.append(f"{first} {rules[name]} {rest}")
            step = f"{between} {rules[name]}"
            rest = self._lark.rule(f"{step if name in needed else f'({step})?'} {rest}")
        return f"{head} ({' | '.join(starts + [none] * (not needed))})"

    def _members(self, schema: Json) -> tuple[dict[str, Any], set[str]]:
        """Return an object's members by name, and the names of those that it needs."""
        for keyword in (
            "patternProperties",
            "minProperties",
            "maxProperties",
            "dependentRequired",
            "if",
            "not",
        ):
            if keyword in schema:
                raise UserError(f"its parameters use {keyword}, which cannot be enforced for this target")
        needed = list(schema.get("required", ()))
        members = {**schema.get("properties", {})}
        members |= {name: True for name in needed if name not in members}
        return dict(sorted(members.items())) if self._named.is_sorted else members, set(needed)

    def _parameter(self, name: str, schema: Any) -> str:
        """Return the expression of one argument; of any name if it is empty."""
        (before_text, after_text), (before, after) = self._named.text, self._named.other
        texts, others = self._alternatives(schema)
        if before_text == before and any(not each for each in texts):
            others = []  # any text is allowed, also one that is JSON
        return self._alternate(
            [
                *(self._named_literal(name, before_text) + self._string(each, after_text) for each in texts),
                *(
                    f"{self._named_literal(name, before)}{self._other(each)} {self._lark.literal(after)}"
                    for each in others
                ),
            ]
        )

    def _named_literal(self, name: str, mark: str) -> str:
        return f"{self._lark.literal(mark, name)} " if name else f"{ANY_NAME} {self._lark.literal(mark)} "

    def _alternate(self, choices: list[str]) -> str:
        if not choices:
            raise UserError("its parameters allow no value at all for one of them")
        return " | ".join(choices)

    def _other(self, schema: Json) -> str:
        """Return the expression of a value that is no string."""
        if self._named.is_json:
            return self._lark.rule(inline_schema(self._with_definitions(schema)))
        if schema.get("type") in ("object", "array"):
            key = json.dumps(schema, sort_keys=True)
            if key not in self._objects:
                self._objects[key] = self._lark.name()
                nested = self._nested_object if schema["type"] == "object" else self._nested_array
                self._lark.add(self._objects[key], nested(schema))
            return self._objects[key]
        return self._lark.rule(inline_schema(self._with_definitions(schema)))

    def _nested_object(self, schema: Json) -> str:
        def member(name: str, inner: Any) -> str:
            return f"{self._named_literal(name, self._named.other[0])}({self._element(inner)})"

        return self._object(schema, ("{", ",", "}", "{}"), member)

    def _nested_array(self, schema: Json) -> str:
        if any(each in schema for each in ("prefixItems", "contains", "uniqueItems")):
            raise UserError("its parameters have an array that cannot be enforced for this target")
        least, most = schema.get("minItems", 0), schema.get("maxItems", "")
        one = self._lark.rule(self._element(schema.get("items", True)))
        if most == 0:
            return '"[]"'
        more = f'("," {one}){{{max(0, least - 1)},{most and most - 1}}}'
        return f'"[" {one} {more} "]"' + (' | "[]"' if least == 0 else "")

    def _element(self, schema: Any) -> str:
        """Return the expression of a value within an object or array that is not in JSON."""
        quote = self._lark.literal(self._named.text[0].removeprefix(self._named.other[0]))
        texts, others = self._alternatives(schema)
        strings = [f"{quote} {self._string(each, self._named.text[1])}" for each in texts]
        return self._alternate(strings + [self._other(each) for each in others])

    def _with_definitions(self, schema: Json) -> Json:
        """Return a part of the schema with the definitions to which it may refer."""
        if '"$ref"' not in json.dumps(schema):
            return schema
        return {
            **{each: self._root[each] for each in ("$defs", "definitions") if each in self._root},
            **schema,
        }

    # Strings ----------------------------------------------------------------------------------------------

    def _string(self, schema: Json, end: str) -> str:
        """Return the expression of a string without quotes, and its end."""
        if "enum" in schema:
            return f"({' | '.join(self._lark.literal(end, each) for each in schema['enum'])})"
        mark = end.lstrip()
        # A text with the mark of a call's end would be read as that end.
        marks = "|".join(map(_escaped, [mark, *self._ends]))
        without = f"~/{ANY_TEXT}({marks}){ANY_TEXT}/"
        if not schema:
            plain = f"/{ANY_TEXT}/ & {without}"
            return self._lark.text(
                mark, self._lark.rule(plain, letter="T") if self._ends else f"/{ANY_TEXT}/"
            )
        parts = [rf"/\S(?s:.*\S)?|/ & {without}"]
        if "minLength" in schema or "maxLength" in schema:
            parts.append(f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/")
        if "pattern" in schema:
            parts.append(f"/{_searched(schema['pattern'])}/")
        if (name := schema.get("format")) is not None:
            if name not in FORMATS:
                known = ", ".join(FORMATS)
                raise UserError(f"its parameters use the format {name}; this target can be held to {known}")
            parts.append(f"/{FORMATS[name]}/")
        return self._lark.text(end, self._lark.rule(" & ".join(parts), letter="T"))

    def _alternatives(self, schema: Any, depth: int = 0) -> tuple[list[Json], list[Json]]:
        """Return the strings and the other values that a schema allows, as schemas of one type each.

        A string's schema holds what it must match, nothing for any string.
        """
        self._num_seen += 1
        if depth > MAX_DEPTH or self._num_seen > MAX_SEEN:
            raise UserError("its parameters refer to each other too often")
        if schema is False:
            return [], []
        if not isinstance(schema, dict):
            schema = referred(ANY["$ref"], self._root)
            schema = schema if isinstance(schema, dict) else {}
        if "$ref" in schema:
            return self._alternatives(self._resolved(schema), depth + 1)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                rest = {name: value for name, value in schema.items() if name != union}
                pairs = [self._alternatives(_merged(rest, each), depth + 1) for each in schema[union]]
                return [e for texts, _ in pairs for e in texts], [e for _, others in pairs for e in others]
        if "allOf" in schema:
            merged = {name: value for name, value in schema.items() if name != "allOf"}
            for each in schema["allOf"]:
                merged = _merged(merged, each)
            return self._alternatives(merged, depth + 1)
        return _by_type(schema)

    def _resolved(self, schema: Json) -> Json:
        """Return the schema to which another one refers, with what that one adds."""
        target = referred(str(schema["$ref"]), self._root)
        if not isinstance(target, dict) or not str(schema["$ref"]).startswith("#"):
            raise UserError(f"its parameters refer to {schema['$ref']}, which is not there")
        return _merged({name: value for name, value in schema.items() if name != "$ref"}, target)


def _merged(one: Json, other: Any) -> Json:
    """Return a schema that holds for the values of both, as far as their keywords differ or are lists."""
    if other is False:
        return {**one, "enum": []}
    merged = dict(one)
    for name, value in (other if isinstance(other, dict) else {}).items():
        if name in MAPS and name in merged:
            merged[name] = {**merged[name], **value}
        elif name == "required":
            merged[name] = [*merged.get(name, ()), *value]
        elif name in merged and merged[name] != value:
            raise UserError(f"its parameters set {name} twice for one value; set it once")
        else:
            merged[name] = value
    return merged


def _by_type(schema: Json) -> tuple[list[Json], list[Json]]:
    """Return `_alternatives` of a schema without references and unions."""
    types = schema.get("type", ["string", *OTHER_TYPES])
    types = [types] if isinstance(types, str) else list(types)
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if listed is not None:
        texts = [each for each in listed if isinstance(each, str) and "string" in types]
        others = [each for each in listed if not isinstance(each, str)]
        return [{"enum": texts}] * bool(texts), [{"enum": others}] * bool(others)
    text = {name: schema[name] for name in OF_STRINGS if name in schema}
    rest = {name: value for name, value in schema.items() if name not in OF_STRINGS}
    others = [{**rest, "type": each} for each in types if each != "string"]
    return [text] * ("string" in types), others


def _searched(pattern: str) -> str:
    """Return a regular expression of all texts in which a schema's pattern is found."""
    begin = "" if pattern.startswith("^") else ANY_TEXT
    is_anchored = pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern.removeprefix("^").removesuffix("$") if is_anchored else pattern.removeprefix("^")
    return re.sub(r"(?<!\\)/", r"\/", f"{begin}(?:{inner}){'' if is_anchored else ANY_TEXT}")
