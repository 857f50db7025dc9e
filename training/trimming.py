"""Trims a draft's vocabulary to its frequent tokens (FR-Spec, arXiv 2502.14856; VocabTrim, arXiv 2506.22694).

A model of llama.cpp has one vocabulary. So embedding and output layer lose the same rows, and the tokenizer
the same tokens. The edge then drafts through a translation (`--tokens`), which spells all other tokens by
those that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from common.errors import UserError
from training.gguf_files import copy_fields, finish

PREFIX = "tokenizer.ggml."
BY_TOKEN = tuple(f"{PREFIX}{name}" for name in ("tokens", "token_type", "scores"))
"""Lists with an entry for each token."""

PRIOR = 100_000
"""Counts that Zipf's law gives the first id of a vocabulary. Tokenizers number tokens by their frequency in
training, and the texts at hand hold few of the rarer ones."""

TABLES = ("token_embd.weight", "output.weight", "output.bias")
"""Tensors with a row for each token."""


class Trimming:
    """Chooses a draft's tokens and writes it with these alone. Raises `UserError` if it cannot keep so many.

    Bytes and special tokens come first, then those with the greatest sum of `counts` and `PRIOR` / id. `kept`
    are the ids, increasing.
    """

    def __init__(self, source: Path, counts: Mapping[int, int], num_tokens: int) -> None:
        fields = gguf.GGUFReader(source).fields
        texts, kinds = (fields[name].contents() for name in BY_TOKEN[:2])
        ordinary = (gguf.TokenType.NORMAL, gguf.TokenType.UNUSED)
        kept = {token for token, kind in enumerate(kinds) if kind not in ordinary or len(texts[token]) == 1}
        kept |= {field.contents() for name, field in fields.items() if name.endswith("_token_id")}
        if not len(kept) <= num_tokens <= len(texts):
            raise UserError(
                f"--trim is {num_tokens}; {source} has {len(texts)} tokens, {len(kept)} of them bytes "
                "or special; give a number between"
            )
        normal = (token for token, kind in enumerate(kinds) if kind == gguf.TokenType.NORMAL)
        for token in sorted(normal, key=lambda token: -counts.get(token, 0) - PRIOR / (token + 1)):
            if len(kept) < num_tokens:
                kept.add(token)
        self.kept = sorted(kept)

    def outside(self, counts: Mapping[int, int]) -> float:
        """Return the share of counted tokens that are not kept."""
        kept = set(self.kept)
        lost = sum(count for token, count in counts.items() if token not in kept)
        return lost / max(1, sum(counts.values()))

    def write(self, source: Path, out: Path) -> None:
        """Write the model `source`, which has the same tokens, with the kept ones. Types of weights stay."""
        reader = gguf.GGUFReader(source)
        writer = gguf.GGUFWriter(out, architecture := reader.fields["general.architecture"].contents())
        changes: dict[str, object] = {f"{architecture}.vocab_size": len(self.kept)}
        place = {token: number for number, token in enumerate(self.kept)}
        for name, field in reader.fields.items():
            if name in BY_TOKEN:
                entries = field.contents()
                changes[name] = [entries[token] for token in self.kept]
            elif name.startswith(PREFIX) and name.endswith("_token_id"):
                changes[name] = place[field.contents()]
        if f"{PREFIX}merges" in reader.fields:
            changes[f"{PREFIX}merges"] = self._merges(reader)
        copy_fields(reader, writer, changes)
        for tensor in reader.tensors:
            data = tensor.data[np.array(self.kept)] if tensor.name in TABLES else tensor.data
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        finish(writer)

    def _merges(self, reader: gguf.GGUFReader) -> list[str]:
        """Return the merges of two kept tokens to a third."""
        texts, merges = (reader.fields[f"{PREFIX}{name}"].contents() for name in ("tokens", "merges"))
        known = {texts[token] for token in self.kept}
        return [merge for merge in merges if {*merge.split(" "), merge.replace(" ", "")} <= known]
