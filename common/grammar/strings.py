"""Make and check grammars as strings, in which form they are sent, from JSON schemas, regular expressions and
Lark."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.sampling import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


def matcher_class() -> type[LLMatcher]:
    """Import llguidance's matcher. Raises `UserError` if llguidance is not installed."""
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise UserError(
            "grammars need llguidance, which is not installed here; pip install 'forerun[edge]' or "
            "'forerun[verifier]'"
        ) from error
    return LLMatcher


def is_installed() -> bool:
    """Tell whether llguidance is installed, without an import."""
    return find_spec("llguidance") is not None


def limits() -> LLParserLimits:
    """Return the limits of one grammar. A verifier compiles untrusted grammars, and all its sessions wait for
    a mask. Items bound the time of a mask: ambiguous grammars take some 20 ms at most, while rows of 2,000
    items took seconds. A schema of n optional properties has rows of some 2 n items. States, about half a kB
    each, bound the memory of a grammar's lexer. A compile is bounded elsewhere (`compile_trial`)."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=400,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=10_000,
        max_grammar_size=100_000,
        verbose_errors=False,  # they would bring the parser's state and a backtrace
    )


def new_matcher(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher before the first token. Raises `UserError` with llguidance's message for a grammar
    that llguidance refuses; its constructor never raises."""
    matcher = matcher_class()(tokenizer, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        raise refused(matcher.get_error())
    return matcher


def refused(words: str) -> UserError:
    """Return the error of a grammar with which llguidance finds this fault."""
    first = words.strip().removesuffix("<non-verbose/>").strip()
    return UserError(f"the grammar is refused: {first}")


WHITE_SPACE = r"[ ]{0,2}|\n[ \t]{0,64}"
"""At most two blanks, or a new line with its indentation. Without a limit, models in an unnatural format may
write blanks until their tokens are used up."""

UNFORCED = {"name": "forerun-unforced", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: ""'}
"""A grammar without references. In a list of grammars its options apply to all."""


def json_schema_grammar(schema: dict[str, Any]) -> str:
    """Return the grammar of the texts that match a JSON schema, with `WHITE_SPACE` between their parts unless
    the schema's `x-guidance` sets another pattern. Raises `UserError` for a schema that llguidance does not
    support."""
    try:
        grammar = matcher_class().grammar_from_json_schema(
            schema, defaults={"whitespace_pattern": WHITE_SPACE}
        )
    except (ValueError, RecursionError) as error:  # a number beyond 64 bits, or too deep
        raise UserError(f"the JSON schema is refused: {error}") from None
    return checked(grammar)


def inline_schema(schema: dict[str, Any]) -> str:
    """Return a JSON schema as a part of a Lark grammar, with the white space of `json_schema_grammar`."""
    guidance = {"whitespace_pattern": WHITE_SPACE, **schema.get("x-guidance", {})}
    told = json.dumps({**schema, "x-guidance": guidance}, ensure_ascii=False, separators=(",", ":"))
    return f"%json {told}"


def regex_grammar(regex: str) -> str:
    """Return the grammar of the texts that a regular expression (Rust's syntax) matches as a whole. Raises
    `UserError`."""
    return checked(matcher_class().grammar_from_regex(regex))


def lark_grammar(lark: str) -> str:
    """Return a grammar from llguidance's dialect of Lark. Raises `UserError`."""
    return checked(matcher_class().grammar_from_lark(lark))


def checked(grammar: str) -> str:
    """Return the grammar if it is short enough and compiles without special tokens. Raises `UserError` with
    llguidance's message."""
    SamplingParams(grammar=grammar)
    is_error, words = matcher_class().validate_grammar_with_warnings(unforced(grammar), None, limits=limits())
    if is_error:
        raise refused(" ".join(words))
    return grammar


def unforced(grammar: str) -> str:
    """Return the grammar with forcing off (see the package), as it is compiled. Raises `UserError` for JSON
    without a list of grammars."""
    if not grammar.lstrip().startswith("{"):
        return json.dumps({"grammars": [{"lark_grammar": grammar}, UNFORCED]})
    try:
        told = json.loads(grammar)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the grammar is not valid JSON: {error}") from error
    listed = told.get("grammars")
    if not isinstance(listed, list) or not listed:
        raise UserError("the grammar is JSON without a list of grammars; see llguidance's grammar_from_*")
    return json.dumps({**told, "grammars": [*listed, UNFORCED]})
