"""Settings are checked where they enter."""

from typing import Any

import pytest

from common.errors import UserError
from common.llama.library import NativeLog
from common.llama.model import LlamaSettings
from tests import wording


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", ""),
        ("n_ctx", -1),
        ("n_seq_max", 1),
        ("n_seq_max", 257),
        ("max_rows", 0),
        ("n_batch", 63),
        ("threads", -1),
        ("gpu_layers", -2),
    ],
)
def test_a_bad_setting_is_named(field: str, value: Any) -> None:
    with wording.raises(UserError):
        LlamaSettings(**{"path": "model.gguf", field: value})


def test_the_logits_that_are_reserved_stay_within_bounds() -> None:
    """Small vocabularies have room for wide trees; large ones have enough."""
    settings = LlamaSettings("model.gguf")
    counts = [settings.num_sequences(num_vocab) for num_vocab in (512, 32_000, 128_256, 262_144)]
    assert counts == [192, 192, 77, 64]
    assert LlamaSettings("model.gguf", n_seq_max=100).num_sequences(262_144) == 100
    assert LlamaSettings("model.gguf", n_batch=64).num_sequences(512) == 64


@pytest.mark.parametrize(("cells", "tokens"), [(256, 512), (8192, 512), (32_768, 128), (2**20, 64)])
def test_a_large_context_is_computed_in_smaller_pieces(cells: int, tokens: int) -> None:
    assert LlamaSettings("model.gguf").num_together(cells) == tokens
    assert LlamaSettings("model.gguf", n_batch=64).num_together(cells) == 64


def test_llama_cpps_errors_are_kept_for_the_next_message() -> None:
    log = NativeLog()
    log.write(4, b"cannot find\n", None)
    log.write(3, b"only a warning\n", None)
    log.write(4, b"tensor x\n", None)
    assert log.reason() == " (llama.cpp: cannot find; tensor x)"
    assert log.reason() == ""
