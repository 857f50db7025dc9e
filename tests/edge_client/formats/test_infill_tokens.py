"""Prompts with a gap through llama.cpp's own tokenizer, which reads tokens that users defined in any text."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.llama.model import LlamaModel, LlamaSettings
from common.vocabulary import Vocabulary
from edge_client.formats.infill import FAMILIES, ExtraFile, Gap, Infill, InfillFamily

pytestmark = pytest.mark.llama


@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each.prefix)
def test_texts_of_a_familys_tokens_stay_text(family: InfillFamily, tmp_path: Path) -> None:
    from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf

    own = family.texts
    path = write_tiny_gguf(tmp_path / "infill.gguf", TinyShape(user_defined=own))
    odd = "".join(own) + "the " + family.prefix
    with LlamaModel(LlamaSettings(str(path)), weights=False) as model:
        table = model.token_table()
        ids = {text: table.index(text.encode()) for text in own}
        infill = Infill.of(Vocabulary(table))
        assert infill is not None
        extra = [ExtraFile(odd, odd)] if family.file else []
        gap = Gap(odd, odd, odd, extra)
        tokens = infill.prompt(gap, lambda text: model.tokenize(text, False))
        text = b"".join(map(model.piece, tokens)).decode()
    marks = [token for token in tokens if token in ids.values()]
    sides = [ids[family.prefix], ids[family.suffix]]
    files = [ids[family.repository], ids[family.file], ids[family.file]] if extra else []
    middle = [ids[family.middle]] if family.middle else []
    assert marks == [*files, *(sides[::-1] if family.suffix_first else sides), *middle]
    assert text.count(odd) == 3 + 2 * len(extra), "nothing is lost"
    assert infill.ends == tuple(sorted(ids.values()))
