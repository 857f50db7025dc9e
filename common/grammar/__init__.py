"""Grammars as masks of token ids: what may be written next, asked along a tree that grows and branches.

    Tokens    a vocabulary's bytes, as llguidance reads them: a GGUF's pieces or a Hugging Face tokenizer
    Grammars  compiled grammars of one vocabulary, safe in several threads
    Matcher   one text under one grammar: the mask after any path
    Masks     the matchers of many texts, the least recently used forgotten first

The mask is a function of grammar, vocabulary and the generated tokens alone. llguidance would also force:
where the next bytes are certain it allows only the first token of their usual spelling. That is switched off
in every grammar (`strings.unforced`), since it calls the tokenizer, of which each side has another; so all
tokens that fit are allowed, and both sides, with the same bytes, have the same masks.
"""

from __future__ import annotations

from common.grammar.masks import Grammars, Masks, Matcher
from common.grammar.strings import json_object_grammar, json_schema_grammar, lark_grammar, regex_grammar
from common.grammar.tokens import Tokens

__all__ = [
    "Grammars",
    "Masks",
    "Matcher",
    "Tokens",
    "json_object_grammar",
    "json_schema_grammar",
    "lark_grammar",
    "regex_grammar",
]
