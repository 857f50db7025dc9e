"""Grammars of a draft model: the masks with which the verifier chooses, so that the draft proposes what can
be chosen."""

from __future__ import annotations

import threading

from common.grammar import Grammars, Matcher, Tokens
from edge_client.llama.vocabulary import LlamaVocabulary


class DraftGrammars:
    """Compiled grammars over one draft's vocabulary; safe in several threads, valid as long as the model.

    The vocabulary is read when the first grammar is asked for, which takes tenths of a second of a large one:
    who can, calls `check` in a thread of its own before a session drafts, and the drafter's thread finds it
    done.
    """

    def __init__(self, vocabulary: LlamaVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._grammars: Grammars | None = None

    def check(self, grammar: str) -> None:
        """Compile it and keep it. Raises `UserError` if it is refused, or if llguidance is not installed."""
        self.matcher(grammar)

    def matcher(self, grammar: str) -> Matcher:
        """For one text, in one thread. Raises as `check`."""
        with self._lock:
            if self._grammars is None:
                tokens = self._tokens()
                tokens.tokenizer  # noqa: B018 - made here, where others wait for it, and not twice
                self._grammars = Grammars(tokens)
        return self._grammars.matcher(grammar)

    def _tokens(self) -> Tokens:
        vocabulary = self._vocabulary
        return Tokens(vocabulary.pieces(), vocabulary.special_ids, vocabulary.eos_ids, vocabulary.size)
