"""What two models must share before their token ids mean the same: the token table and its fingerprint.

Model makers round the size of the vocabulary up, each to another number. So the fingerprint covers the ids
that stand for a token, and tables that differ only by padding have the same one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from common.errors import UserError

MAX_TOKENS = (
    2**20
)  # four times the largest vocabulary in use (Gemma: 262,144); `common.choice` sums that many
MAX_TEXT_BYTES = 2**16  # vocabularies hold runs of hundreds of spaces, not pages
FINGERPRINT_BYTES = 32
PERSON = (
    b"forerun vocab 1"  # sets this hash apart from any other use of BLAKE2b; a new rule gets a new number
)
SHOWN_CHARACTERS = 40

TokenText = bytes | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first id at which two tables differ; None where a table has no token."""

    token: int
    edge_text: TokenText
    verifier_text: TokenText


class Vocabulary:
    """A token table: the text of every id, None for ids that stand for nothing (padding, unused).

    Raises `UserError` for a table with more than `MAX_TOKENS` ids or a text longer than `MAX_TEXT_BYTES`.
    """

    def __init__(self, table: Sequence[TokenText]) -> None:
        if len(table) > MAX_TOKENS:
            raise UserError(f"the token table has {len(table)} ids; at most {MAX_TOKENS} are supported")
        for token, text in enumerate(table):
            if text is not None and len(text) > MAX_TEXT_BYTES:
                raise UserError(
                    f"token {token} is {len(text)} bytes long; at most {MAX_TEXT_BYTES} are supported"
                )
        self.table = tuple(table)

    @property
    def size(self) -> int:
        """Number of ids, padding included."""
        return len(self.table)

    @cached_property
    def num_tokens(self) -> int:
        """Number of ids that stand for a token."""
        return sum(text is not None for text in self.table)

    @cached_property
    def fingerprint(self) -> bytes:
        """BLAKE2b, 32 bytes, over id and length (both uint32, little endian) and text of each token by id."""
        digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES, person=PERSON)
        for token, text in enumerate(self.table):
            if text is not None:
                digest.update(struct.pack("<II", token, len(text)) + text)
        return digest.digest()

    def text(self, token: int) -> TokenText:
        """The text of an id; None for padding and for ids beyond the table."""
        return self.table[token] if 0 <= token < len(self.table) else None


def differing_ids(edge: Vocabulary, verifier: Vocabulary) -> list[int]:
    """All ids that do not stand for the same token in both, increasing."""
    longest = max(edge.size, verifier.size)
    return [token for token in range(longest) if edge.text(token) != verifier.text(token)]


def first_difference(edge: Vocabulary, verifier: Vocabulary) -> Difference | None:
    """The first id that does not stand for the same token in both; None if the tables match."""
    differing = differing_ids(edge, verifier)
    if not differing:
        return None
    return Difference(differing[0], edge.text(differing[0]), verifier.text(differing[0]))


def explain_mismatch(edge: Vocabulary, verifier: Vocabulary) -> str:
    """Why a draft model does not fit a target model, for people: both fingerprints, the first difference."""
    prints = f"fingerprints {edge.fingerprint.hex()} (draft) and {verifier.fingerprint.hex()} (target)"
    first = first_difference(edge, verifier)
    if first is None:
        return f"draft and target have the same {edge.num_tokens} tokens; {prints}"
    if not edge.num_tokens or not verifier.num_tokens:
        silent = "draft" if not edge.num_tokens else "target"
        return f"the tokenizers cannot be compared, the {silent} named no token; {prints}"
    count = len(differing_ids(edge, verifier))
    return (
        f"the draft's tokenizer is not the target's: id {first.token} is {_shown(first.edge_text)} in the "
        f"draft and {_shown(first.verifier_text)} in the target, the first of {count} differing ids "
        f"({edge.num_tokens} tokens in the draft, {verifier.num_tokens} in the target); {prints}. "
        "Use a draft model of the same family as the target."
    )


def _shown(text: TokenText) -> str:
    if text is None:
        return "no token"
    shown = text[: 4 * SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
    return repr(shown[:SHOWN_CHARACTERS]) + ("..." if len(shown) > SHOWN_CHARACTERS else "")
