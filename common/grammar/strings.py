"""Grammars as strings, which is how they travel: made from JSON schemas, regular expressions and Lark, and
checked where they are made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.grammar.library import limits, matcher_class, refused
from common.sampling import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLTokenizer

WHITE_SPACE = r"[ ]{0,2}|\n[ \t]{0,64}"
"""At most two blanks, or a new line with its indentation. Where any is allowed, models that are forced into a
format they would not choose write blanks until their tokens are used up."""

UNFORCED = {"name": "forerun-unforced", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: ""'}
"""Nothing refers to this grammar, but of a list of grammars the options of any hold for all."""


def json_schema_grammar(schema: str | dict[str, Any], tokenizer: LLTokenizer | None = None) -> str:
    """The grammar of the JSON texts that fit a JSON schema, with `WHITE_SPACE` between their parts unless the
    schema's own `x-guidance` says otherwise. Raises `UserError` for a schema that is no JSON or that
    llguidance does not take."""
    if isinstance(schema, str):
        schema = _json(schema, "the JSON schema")
    grammar = matcher_class().grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITE_SPACE})
    return checked(grammar, tokenizer)


def json_object_grammar() -> str:
    """The grammar of all JSON objects. Raises `UserError` without llguidance."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(regex: str, tokenizer: LLTokenizer | None = None) -> str:
    """The grammar of the texts that a regular expression (of Rust's regex syntax) matches as a whole. Raises
    `UserError`."""
    return checked(matcher_class().grammar_from_regex(regex), tokenizer)


def lark_grammar(lark: str, tokenizer: LLTokenizer | None = None) -> str:
    """A grammar in llguidance's dialect of Lark. Raises `UserError`."""
    return checked(matcher_class().grammar_from_lark(lark), tokenizer)


def checked(grammar: str, tokenizer: LLTokenizer | None = None) -> str:
    """The grammar itself, if it can travel and be compiled; which special tokens there are, only a tokenizer
    tells. Raises `UserError` in the library's words."""
    SamplingParams(grammar=grammar)
    is_error, words = matcher_class().validate_grammar_with_warnings(
        unforced(grammar), tokenizer, limits=limits()
    )
    if is_error:
        raise refused(" ".join(words))
    return grammar


def unforced(grammar: str) -> str:
    """The grammar as it is compiled, without forcing (see the package). Raises `UserError` for JSON that is
    no list of grammars."""
    told = _json(grammar, "the grammar") if grammar.lstrip().startswith("{") else _alone(grammar)
    listed = told.get("grammars")
    if not isinstance(listed, list) or not listed:
        raise UserError("the grammar is JSON without a list of grammars; see llguidance's grammar_from_*")
    return json.dumps({**told, "grammars": [*listed, UNFORCED]})


def _alone(lark: str) -> dict[str, Any]:
    return {"grammars": [{"lark_grammar": lark}]}


def _json(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{what} is {type(found).__name__} in JSON; it must be an object")
    return found
