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
