"""Long texts have llama.cpp's own tokens with published vocabularies, special tokens among them."""

from __future__ import annotations

import random

import pytest

from common.llama.model import LlamaModel, LlamaSettings
from tests.conftest import REAL_MODELS
from tests.real.models import each_file

pytestmark = [pytest.mark.real, pytest.mark.llama]

PIECES = [
    *(
        "<",
        "<|",
        ">",
        "|>",
        "<unused1",
        "0>",
        "<td>",
        "<tool_call>",
        "<|im_end|>",
        "<start_of_turn>",
        "<eos>",
    ),
    *(" ", "  ", "\n", "\n\n\n", "\t", "\r\n", "▁", "▁▁"),
    *("a", "the", " and", "é", "日本", "\U00020000", "\U0001f600", "\u0301", "\ufffd", "\ufdd0", "\x00"),
]


@pytest.mark.parametrize("file", each_file(["tokens"]))
def test_long_texts_have_llama_cpps_tokens(file: tuple[str, str]) -> None:
    rng = random.Random(7)
    with LlamaModel(LlamaSettings(str(REAL_MODELS / file[0])), weights=False) as model:
        assert model._control_cuts is not None
        pieces = PIECES + rng.sample(model.control_texts, min(40, len(model.control_texts)))
        for size in (2000, 2000, 6000):
            text = "".join(rng.choices(pieces, k=size))
            for parse_special in (False, True):
                assert model.tokenize(text, parse_special) == model._ids(text.encode(), parse_special)
