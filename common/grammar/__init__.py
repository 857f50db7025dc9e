"""Turn grammars into masks of the allowed next token ids, along a tree that grows and branches.

    Tokens    a vocabulary's bytes, as llguidance reads them: a GGUF's pieces or a Hugging Face tokenizer
    Grammars  compiled grammars of one vocabulary, safe in several threads
    Matcher   one text under one grammar: the mask after any path
    Masks     the matchers of many texts, the least recently used forgotten first

The mask is a function of grammar, vocabulary and the generated tokens alone. llguidance can also force: if
the next bytes are certain it allows only the first token of their usual spelling. Forcing is off in every
grammar (`strings.unforced`), since it calls the tokenizer, which differs between the sides. So all fitting
tokens are allowed, and both sides have the same masks.
"""

from __future__ import annotations

from common.grammar.masks import Grammars, Masks, Matcher
from common.grammar.strings import (
    inline_schema,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from common.grammar.tokens import Tokens

__all__ = [
    "Grammars",
    "Masks",
    "Matcher",
    "Tokens",
    "inline_schema",
    "json_schema_grammar",
    "lark_grammar",
    "regex_grammar",
]
