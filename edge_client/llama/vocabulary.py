"""The draft model's vocabulary: texts and ids, and the table that the tokenizer fingerprint is made of."""

from __future__ import annotations

import ctypes
import re
from functools import cached_property
from typing import Any

from common.errors import UserError

UNKNOWN_ATTRIBUTE = 1 << 0  # LLAMA_TOKEN_ATTR_UNKNOWN
UNUSED_ATTRIBUTE = 1 << 1  # LLAMA_TOKEN_ATTR_UNUSED
CONTROL_ATTRIBUTE = 1 << 3  # LLAMA_TOKEN_ATTR_CONTROL
PADDING = re.compile(rb"\[PAD\d*\]")  # what converters call entries that only round the vocabulary's size up
FIRST_PIECE_BYTES = 64  # longer pieces are asked for again


class LlamaVocabulary:
    """Over llama.cpp's llama_vocab; valid as long as the model is loaded."""

    def __init__(self, library: Any, vocab: Any) -> None:
        self._library = library
        self._vocab = vocab
        self.size: int = library.llama_vocab_n_tokens(vocab)

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids of the file's own end tokens, of a text and of a turn, increasing.

        llama.cpp counts more tokens as ends, by their spelling: "</s>" and the paddings and separators of
        code models, which a target writes as text. They end a text only where a file names no end at all.
        """
        library = self._library
        own = {library.llama_vocab_eos(self._vocab), library.llama_vocab_eot(self._vocab)}
        ends = sorted(token for token in own if token >= 0)
        return tuple(ends or (t for t in range(self.size) if library.llama_vocab_is_eog(self._vocab, t)))

    @cached_property
    def begin_ids(self) -> tuple[int, ...]:
        """What the model was trained to find before every text: its begin token, or nothing."""
        token: int = self._library.llama_vocab_bos(self._vocab)
        adds = bool(self._library.llama_vocab_get_add_bos(self._vocab))
        return (token,) if adds and token >= 0 else ()

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that are no text, increasing: control tokens, and what stands for the unknown."""
        special = CONTROL_ATTRIBUTE | UNKNOWN_ATTRIBUTE
        return tuple(token for token in range(self.size) if self._attributes(token) & special)

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """The texts of `special_ids`, as llama.cpp looks for them in a text."""
        texts = (self._library.llama_vocab_get_text(self._vocab, token) for token in self.special_ids)
        return tuple(text.decode("utf-8", "replace") for text in texts)

    def pieces(self) -> list[bytes | None]:
        """[size] the bytes that each token adds to the text; None if it stands for nothing, as in
        `token_table`."""
        return [None if self._entry(token) is None else self.piece(token) for token in range(self.size)]

    def token_table(self) -> list[bytes | None]:
        """[size] each token's text as the tokenizer file spells it (UTF-8); None if unused or padding."""
        return [self._entry(token) for token in range(self.size)]

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        """Token ids of `text`, with no begin or end token added: the prompt's template says those itself."""
        data = text.encode("utf-8")
        capacity = len(data) + 16  # a token is a byte at least; some tokenizers add a space
        ids = (ctypes.c_int32 * capacity)()
        count = self._library.llama_tokenize(
            self._vocab, data, len(data), ids, capacity, False, parse_special
        )
        if count < 0:
            raise UserError(f"llama.cpp cannot tokenize {text[:40]!r} with this model's vocabulary")
        return list(ids[:count])

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text, control tokens too. Raises `UserError` outside."""
        if not 0 <= token < self.size:
            raise UserError(f"token {token} is outside the draft's vocabulary of {self.size}")
        length, text = self._piece(token, FIRST_PIECE_BYTES)
        return text if length >= 0 else self._piece(token, -length)[1]

    def _piece(self, token: int, capacity: int) -> tuple[int, bytes]:
        buffer = ctypes.create_string_buffer(capacity)
        length = self._library.llama_token_to_piece(self._vocab, token, buffer, capacity, 0, True)
        return length, buffer.raw[: max(0, length)]

    def _entry(self, token: int) -> bytes | None:
        text: bytes = self._library.llama_vocab_get_text(self._vocab, token)
        unused = self._attributes(token) & UNUSED_ATTRIBUTE
        return None if unused or PADDING.fullmatch(text) else text

    def _attributes(self, token: int) -> int:
        attributes: int = self._library.llama_vocab_get_attr(self._vocab, token)
        return attributes
