"""Settings are checked where they enter; hub paths are taken apart; the AMX guard reads the build's words."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import UserError
from edge_client.llama.files import find_model
from edge_client.llama.library import NativeLog, extra_bufts_are_safe
from edge_client.llama.settings import LlamaSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", ""),
        ("kv_type", "int3"),
        ("n_ctx", -1),
        ("n_seq_max", 1),
        ("n_seq_max", 257),
        ("max_rows", 0),
        ("n_batch", 63),
        ("threads", -1),
        ("threads_batch", 513),
        ("gpu_layers", -2),
    ],
)
def test_a_bad_setting_is_named(field: str, value: Any) -> None:
    with pytest.raises(UserError, match="path" if field == "path" else field):
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


def test_quantised_kv_needs_flash_attention() -> None:
    with pytest.raises(UserError, match="flash_attention"):
        LlamaSettings("model.gguf", kv_type="q8_0", flash_attention=False)


@pytest.mark.parametrize("path", ["hf://", "hf://org", "hf://org/repo", "hf://org/repo/", "hf:///repo/file"])
def test_an_incomplete_hub_path_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="hf://organisation/repository"):
        find_model(path)


@pytest.mark.parametrize(
    ("system_info", "safe"),
    [("CPU : AVX512 = 1 | AMX_INT8 = 1 | ", False), ("CPU : AVX512 = 1 | ", True), ("", True)],
)
def test_amx_builds_count_as_unsafe(system_info: str, safe: bool) -> None:
    assert extra_bufts_are_safe(system_info) is safe


def test_llama_cpps_errors_are_kept_for_the_next_message() -> None:
    log = NativeLog()
    log.write(4, b"cannot find\n", None)
    log.write(3, b"only a warning\n", None)
    log.write(4, b"tensor x\n", None)
    assert log.reason() == " (llama.cpp: cannot find; tensor x)"
    assert log.reason() == ""
