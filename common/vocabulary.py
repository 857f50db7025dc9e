"""Compare the token tables of two models, which must match before they can share token ids.

Model makers round the size of the vocabulary up to different numbers. So the fingerprint covers only ids that
stand for a token, and tables that differ only by padding have the same fingerprint.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
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


class Vocabulary:
    """The token table has the text of every id, and None for ids that stand for nothing.

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
        """Return the number of ids, padding included."""
        return len(self.table)

    @cached_property
    def num_tokens(self) -> int:
        """Return the number of ids that stand for a token."""
        return sum(text is not None for text in self.table)

    @cached_property
    def fingerprint(self) -> bytes:
        """Return BLAKE2b, 32 bytes, over id and length (uint32, little endian) and text of each token by
        id."""
        digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES, person=PERSON)
        for token, text in enumerate(self.table):
            if text is not None:
                digest.update(struct.pack("<II", token, len(text)) + text)
        return digest.digest()

    def text(self, token: int) -> TokenText:
        """Return the text of an id; None for padding and for ids beyond the table."""
        return self.table[token] if 0 <= token < len(self.table) else None


def differing_ids(edge: Vocabulary, verifier: Vocabulary) -> list[int]:
    """Return all ids that do not stand for the same token in both, increasing."""
    longest = max(edge.size, verifier.size)
    return [token for token in range(longest) if edge.text(token) != verifier.text(token)]


def explain_mismatch(edge: Vocabulary, verifier: Vocabulary) -> str:
    """Explain to a person why a draft model does not fit a target model."""
    prints = f"fingerprints {edge.fingerprint.hex()} (draft) and {verifier.fingerprint.hex()} (target)"
    differing = differing_ids(edge, verifier)
    if not differing:
        return f"draft and target have the same {edge.num_tokens} tokens; {prints}"
    if not edge.num_tokens or not verifier.num_tokens:
        silent = "draft" if not edge.num_tokens else "target"
        return f"the tokenizers cannot be compared, the {silent} named no token; {prints}"
    token, count = differing[0], len(differing)
    return (
        f"the draft's tokenizer is not the target's: id {token} is {_shown(edge.text(token))} in the "
        f"draft and {_shown(verifier.text(token))} in the target, the first of {count} differing ids "
        f"({edge.num_tokens} tokens in the draft, {verifier.num_tokens} in the target); {prints}. "
        "Use a draft model of the same family as the target, or give a GGUF file with the target's tokens "
        "(--tokens): the draft model then drafts through a translation."
    )


def _shown(text: TokenText) -> str:
    if text is None:
        return "no token"
    shown = text[: 4 * SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
    return repr(shown[:SHOWN_CHARACTERS]) + ("..." if len(shown) > SHOWN_CHARACTERS else "")
