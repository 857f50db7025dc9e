"""Grammars as strings: made, checked, and refused in the library's words."""

from __future__ import annotations

import json

import pytest

from common.errors import UserError
from common.sampling import MAX_GRAMMAR_BYTES

pytestmark = pytest.mark.grammar


def test_each_kind_is_made_and_can_be_compiled() -> None:
    from common.grammar.strings import (
        checked,
        json_object_grammar,
        json_schema_grammar,
        lark_grammar,
        regex_grammar,
    )

    made = (
        json_schema_grammar({"type": "integer"}),
        json_schema_grammar('{"type": "integer"}'),
        json_object_grammar(),
        regex_grammar("a+"),
        lark_grammar('start: "a"'),
    )
    assert [checked(grammar) for grammar in made] == list(made)
    assert made[0] == made[1]


def test_what_is_wrong_is_told_in_the_librarys_words() -> None:
    from common.grammar.strings import json_schema_grammar, lark_grammar, regex_grammar

    with pytest.raises(UserError, match="Invalid type: intger"):
        json_schema_grammar({"type": "intger"})
    with pytest.raises(UserError, match="unclosed group"):
        regex_grammar("(")
    with pytest.raises(UserError, match="unknown"):
        lark_grammar("start: missing")


@pytest.mark.parametrize(
    ("schema", "words"), [("{", "not valid JSON"), ("[1]", "must be an object"), ("[" * 100_000, "not valid")]
)
def test_a_schema_that_is_no_object_is_refused(schema: str, words: str) -> None:
    from common.grammar.strings import json_schema_grammar

    with pytest.raises(UserError, match=words):
        json_schema_grammar(schema)


@pytest.mark.parametrize("grammar", ["{}", '{"grammars": []}', '{"grammars": 3}', "{grammars", '{"a": 1}'])
def test_json_that_is_no_list_of_grammars_is_refused(grammar: str) -> None:
    from common.grammar.strings import checked

    with pytest.raises(UserError, match="JSON"):
        checked(grammar)


def test_a_grammar_is_bounded_in_bytes_and_in_what_it_compiles_to() -> None:
    from common.grammar.strings import lark_grammar

    with pytest.raises(UserError, match=f"at most {MAX_GRAMMAR_BYTES}"):
        lark_grammar(f'start: "{"é" * MAX_GRAMMAR_BYTES}"')
    with pytest.raises(UserError, match="too deeply nested"):
        lark_grammar("start: " + "(" * 3000 + '"a"' + ")" * 3000)


def test_forcing_is_switched_off_and_nothing_else_changes() -> None:
    from common.grammar.strings import UNFORCED, unforced

    told = json.loads(unforced('{"grammars": [{"lark_grammar": "start: /a/"}], "max_tokens": 3}'))
    assert told == {"grammars": [{"lark_grammar": "start: /a/"}, UNFORCED], "max_tokens": 3}
    assert json.loads(unforced("start: /é/"))["grammars"] == [{"lark_grammar": "start: /é/"}, UNFORCED]
