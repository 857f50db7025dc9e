"""A vocabulary as llguidance wants it: the bytes that each token adds to the text, and which tokens add
none."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.errors import LocalError, UserError
from common.grammar.strings import matcher_class

if TYPE_CHECKING:
    from llguidance import LLTokenizer

SPECIAL = 0xFF
"""llguidance marks tokens that are no text by this first byte, which UTF-8 never has."""


@dataclass(frozen=True, slots=True)
class _Words:
    """What `llguidance.TokenizerWrapper` wraps."""

    tokens: Sequence[bytes]
    special_token_ids: Sequence[int]
    eos_token_id: int
    bos_token_id: int | None = None

    def __call__(self, text: str) -> list[int]:
        raise LocalError("a grammar asked for a tokenizer, which only forcing needs")


class Tokens:
    """Holds one model's tokens for grammars.

    Args: pieces, each token's bytes by id, None for ids that stand for nothing (padding, unused);
    special_ids, tokens that are no text (control tokens), whose pieces are the names by which a Lark grammar
    may ask for them (`<|name|>`); eos_ids, all tokens that end a text; width, entries of a row of logits,
    which may be more than there are pieces or fewer. No grammar allows what stands for nothing. Raises
    `UserError` for a model without an end token, whose text could never be complete.
    """

    def __init__(
        self,
        pieces: Sequence[bytes | None],
        special_ids: Collection[int],
        eos_ids: Sequence[int],
        width: int,
    ) -> None:
        self.width = width
        self.eos_ids = tuple(token for token in eos_ids if 0 <= token < width)
        if not self.eos_ids:
            raise UserError("this model names no end token, so a text under a grammar could not end")
        self._special = sorted({token for token in special_ids if token < width} | set(self.eos_ids))
        self._pieces = _padded(pieces, set(self._special), width)

    @classmethod
    def of_tokenizer_json(cls, text: str, eos_ids: Sequence[int], width: int) -> Tokens:
        """Read a Hugging Face tokenizer.json: byte-level BPE, or sentencepiece with byte fallback. Raises
        `UserError` for another kind."""
        matcher_class()
        from llguidance import LLTokenizer

        try:
            spelt = LLTokenizer(text, slices=[])
        except ValueError as error:
            raise UserError(f"grammars cannot be served with this model's tokenizer: {error}") from error
        added = json.loads(text).get("added_tokens", ())
        special = {int(token["id"]) for token in added if token.get("special")}
        pieces = [spelt.decode_bytes([token]) or None for token in range(spelt.vocab_size)]
        return cls(pieces, special, eos_ids, width)

    def outline(self) -> dict[str, Any]:
        """Return the part that a compile needs, for JSON: the single bytes and the special tokens."""
        special = set(self._special)
        kept = {
            token: piece.hex()
            for token, piece in enumerate(self._pieces)
            if piece and (len(piece) == 1 or token in special)
        }
        return {"width": self.width, "pieces": kept, "special": self._special, "eos": self.eos_ids}

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """The tokenizer for llguidance. Its first use takes tenths of a second for 128k tokens.

        Raises `UserError` if llguidance is not installed.
        """
        matcher_class()
        from llguidance import LLTokenizer, TokenizerWrapper

        words = _Words(self._pieces, self._special, self.eos_ids[0])
        return LLTokenizer(TokenizerWrapper(words), eos_token=list(self.eos_ids))

    @cached_property
    def ends(self) -> NDArray[np.bool_]:
        """The end tokens, bool [width], read-only: only these may follow a complete text."""
        mask = np.zeros(self.width, np.bool_)
        mask[list(self.eos_ids)] = True
        mask.flags.writeable = False
        return mask


def _padded(pieces: Sequence[bytes | None], special: set[int], width: int) -> list[bytes]:
    """Return an entry for each logit, empty where there is no token: those are never allowed.

    A piece of text that begins with the byte of special tokens would be taken for one, and is in no text of
    UTF-8.
    """
    entries = [piece or b"" for piece in pieces[:width]]
    for token, piece in enumerate(entries):
        if token not in special and piece[:1] == bytes((SPECIAL,)):
            entries[token] = b""
    return entries + [b""] * (width - len(entries))
