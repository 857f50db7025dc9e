"""A GGUF file loaded by llama.cpp: its tokens, and its weights if they are wanted."""

from __future__ import annotations

import ctypes
import os
from types import TracebackType
from typing import Any, Self

from common.errors import UserError
from edge_client.llama.files import find_model
from edge_client.llama.grammar import DraftGrammars
from edge_client.llama.library import extra_bufts_are_safe, library, native_log
from edge_client.llama.settings import LlamaSettings
from edge_client.llama.vocabulary import LlamaVocabulary


class LlamaModel:
    """Loads in the constructor, frees in `close`. Raises `UserError` with what to do about it.

    Without `weights` only the tokens are read, whatever the architecture.
    """

    def __init__(self, settings: LlamaSettings, *, weights: bool = True) -> None:
        self.settings = settings
        self._library = library()
        native_log().verbose = settings.verbose
        native_log().errors.clear()
        self.uses_extra_bufts = self._choose_extra_bufts()
        self.path = find_model(settings.path, settings.models, settings.sha256)  # the local file
        self._model: Any = self._load_model(self.path, weights)
        self.vocabulary = LlamaVocabulary(self._library, self._library.llama_model_get_vocab(self._model))
        self.grammars = DraftGrammars(self.vocabulary)

    @property
    def num_vocab(self) -> int:
        return self.vocabulary.size

    @property
    def description(self) -> str:
        """The architecture and size, as llama.cpp words them."""
        text = ctypes.create_string_buffer(256)
        self._library.llama_model_desc(self._model, text, len(text))
        return text.value.decode("utf-8", "replace")

    @property
    def chat_template(self) -> str:
        """Of the file itself, as Jinja; empty if it has none."""
        found: bytes | None = self._library.llama_model_chat_template(self._model, None)
        return found.decode("utf-8", "replace") if found else ""

    # --- vocabulary -------------------------------------------------------------------------------------

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The model's own end tokens."""
        return self.vocabulary.eos_ids

    @property
    def begin_ids(self) -> tuple[int, ...]:
        """What stands before every text that no template begins: the begin token, if the model has one."""
        return self.vocabulary.begin_ids

    @property
    def control_texts(self) -> tuple[str, ...]:
        """How the control tokens are written in a text that is read with `parse_special`."""
        return self.vocabulary.control_texts

    def token_table(self) -> list[bytes | None]:
        """Text of every token id as bytes, None for entries that stand for nothing (`LlamaVocabulary`)."""
        return self.vocabulary.token_table()

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        """Token ids of `text`; with `parse_special` the texts of control tokens become those tokens."""
        return self.vocabulary.tokenize(text, parse_special)

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text."""
        return self.vocabulary.piece(token)

    # --- life -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the model. Again is allowed; anything else afterwards is not."""
        model, self._model = self._model, None
        if model:
            self._library.llama_model_free(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- loading ----------------------------------------------------------------------------------------

    def _choose_extra_bufts(self) -> bool:
        if self.settings.use_extra_bufts is not None:
            return self.settings.use_extra_bufts
        return extra_bufts_are_safe(self._library.llama_print_system_info().decode())

    def _load_model(self, path: str, weights: bool) -> Any:
        params = self._library.llama_model_default_params()
        params.n_gpu_layers = self.settings.gpu_layers
        params.use_extra_bufts = self.uses_extra_bufts
        params.vocab_only = not weights
        model = self._library.llama_model_load_from_file(os.fsencode(path), params)
        if not model:  # passed on, a NULL model crashes the process
            raise UserError(
                f"{path} cannot be loaded as a GGUF model{native_log().reason()}; "
                "fetch or convert it again, and check that this llama.cpp knows its architecture"
            )
        return model
