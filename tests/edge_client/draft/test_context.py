"""An automatic context holds the longest text that memory allows, and layers go to an accelerator if any."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import CapacityError, UserError
from common.llama import library as llama_library
from common.llama.library import ALL_LAYERS, free_memory, offloaded_layers
from common.llama.model import LlamaModel, LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.memory import tokens_that_fit
from common.wire.bounds import MAX_COMMITTED_TOKENS, MAX_PROMPT_TOKENS
from edge_client.draft.group import DraftGroup, MemberDrafter
from edge_client.draft.shared_model import (
    LEAST_CELLS,
    SEAT_TOKENS,
    OtherModel,
    SharedDraftModel,
    choose_context,
)
from edge_client.settings import load_config
from tests.edge_client.draft.tiny_architectures import write_architecture
from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf
from tests.edge_client.draft.tree_world import GREEDY, exact_settings

pytestmark = pytest.mark.llama

KIB, GIB = 1 << 10, 1 << 30


@pytest.mark.parametrize(
    ("kv_bytes", "longest", "free", "tokens"),
    [
        (KIB, 32_768, GIB, 32_768),  # the model's own context
        (KIB, 512, GIB, 16_384),  # short texts, and room for several
        (KIB, 2**20, GIB, 2**19),  # as many as half of the memory holds
        (KIB, 2**20, 1024, 0),
        (KIB, 2**20, None, 16_384),  # unknown memory
        (KIB, 2**20, 0, 16_384),
        (0, 2**20, 1024, 2**20),  # only states: no memory by tokens
        (0, 2**31 - 1, 1024, MAX_PROMPT_TOKENS + MAX_COMMITTED_TOKENS),  # as many as a session may bring
    ],
)
def test_kv_memory_holds_one_longest_text_within_a_share_of_what_is_free(
    kv_bytes: int, longest: int, free: int | None, tokens: int
) -> None:
    assert tokens_that_fit(kv_bytes, longest, 16_384, free, share=0.5) == tokens


@pytest.mark.parametrize(
    ("trained", "target", "seats", "free", "cells"),
    [
        (32_768, 0, 1, GIB, 32_768),  # no target known yet
        (131_072, 32_768, 8, GIB, 32_768),
        (32_768, 131_072, 8, GIB, 32_768),
        (2048, 2048, 8, GIB, 8 * SEAT_TOKENS),
        (131_072, 0, 1, 64 * 1024 * KIB, 16_384),  # a quarter of the memory
        (131_072, 0, 2, 0, 2 * SEAT_TOKENS),
        (131_072, 0, 2, 1, LEAST_CELLS),
    ],
)
def test_a_drafts_context_holds_what_draft_and_target_take(
    trained: int, target: int, seats: int, free: int, cells: int
) -> None:
    assert choose_context(trained, target, seats, KIB, free) == cells


@pytest.mark.parametrize(
    "shape",
    [
        TinyShape(),
        TinyShape(num_layers=3, num_heads=8, num_kv_heads=1),
        TinyShape(num_layers=3, architecture="jamba"),  # whose file has the number of each layer
        TinyShape(architecture="mamba"),
        "openelm",  # heads of each layer
        "deepseek2",  # one latent in place of keys and values
        "gpt-oss",  # two caches, one of them of windows
        "minimax-m3",  # keys of an index, too
    ],
    ids=str,
)
@pytest.mark.parametrize("exact", [True, False])
def test_the_bytes_of_a_cell_are_those_that_llama_cpp_keeps(
    shape: TinyShape | str, exact: bool, tmp_path: Path
) -> None:
    """A saved sequence grows with each token by its keys and values, and by a few bytes for its position."""
    path = tmp_path / "m.gguf"
    write_architecture(path, shape) if isinstance(shape, str) else write_tiny_gguf(path, shape)
    settings = replace(exact_settings(path), exact=exact)
    sizes = []
    with LlamaRuntime(settings) as runtime:
        for position in range(2):
            runtime.batch.fill([5], [position], [0], [1])
            assert runtime.decode() == 0
            sizes.append(len(runtime.seq_state(0)))
    with LlamaModel(settings, weights=False) as tokens:
        assert tokens.context_length == TinyShape.context
        assert 0 <= sizes[1] - sizes[0] - tokens.kv_bytes <= 32


@pytest.mark.parametrize("context", [0, 2**31, 2**32 - 1])
@pytest.mark.parametrize("n_ctx", [0, 512])
async def test_a_draft_with_an_impossible_context_length_is_refused(
    context: int, n_ctx: int, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", TinyShape(context=context))
    draft = SharedDraftModel(replace(exact_settings(path), n_ctx=n_ctx), 1)
    with pytest.raises(UserError, match=rf"m\.gguf.* {context} .*context_length"):
        await draft.load()
    await draft.close()


@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("block_count", 513),
        ("block_count", 2**32 - 1),
        ("embedding_length", 2**31),
        ("attention.head_count", 2**31),
        ("attention.head_count_kv", 2**32 - 1),
    ],
)
def test_a_size_that_no_model_has_is_named(key: str, number: int, model: Path, tmp_path: Path) -> None:
    content = bytearray(model.read_bytes())
    at = content.index(key.encode() + (4).to_bytes(4, "little")) + len(key) + 4  # behind gguf_type uint32
    content[at : at + 4] = number.to_bytes(4, "little")
    (tmp_path / "m.gguf").write_bytes(content)
    with (
        LlamaModel(LlamaSettings(str(tmp_path / "m.gguf")), weights=False) as tokens,
        pytest.raises(UserError, match=rf" {number} .*{key}"),
    ):
        _ = tokens.kv_bytes


async def test_a_context_is_chosen_at_each_loading(model: Path) -> None:
    """The target may have become known, and memory free, since the last one."""
    settings = replace(exact_settings(model), n_ctx=0)
    free = [8 * GIB]
    draft = SharedDraftModel(settings, 1, other=OtherModel(settings, "cascade"), free=lambda layers: free[0])
    targets = [0, 2048]
    draft.targets += [lambda: targets[0], lambda: targets[1]]

    async def loaded() -> list[int]:
        await draft.load()
        found = [runtime.n_ctx for runtime in draft._runtimes]
        await draft.unload()
        return found

    trained = draft.tokens.context_length
    assert await loaded() == [trained] * 2
    free[0] = draft.size_bytes + 4 * 768 * 2 * draft.tokens.kv_bytes
    assert await loaded() == [768] * 2
    await draft.close()


def test_the_log_warns_once_of_texts_that_do_not_fit(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LlamaRuntime(exact_settings(model, 256, 8)) as runtime:
        group = DraftGroup(runtime, 2)
        for index in (0, 1, 0):
            with pytest.raises(CapacityError, match=r"draft\.context"):
                MemberDrafter(group, index).start([1] * 300, 1, GREEDY)
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "--context" in warned[0].getMessage()


@dataclass
class Device:
    kind: int  # ggml_backend_dev_type
    free: int


class Native:
    """ggml's devices as its C functions report them. Attributes of ctypes can be set on each."""

    def __init__(self, *devices: Device) -> None:
        def memory(device: int, free: Any, total: Any) -> None:
            free._obj.value = total._obj.value = devices[device - 1].free

        self.ggml_backend_dev_count = _function(lambda: len(devices))
        self.ggml_backend_dev_get = _function(lambda place: place + 1)
        self.ggml_backend_dev_type = _function(lambda device: devices[device - 1].kind)
        self.ggml_backend_dev_memory = _function(memory)


def _function(call: Any) -> Any:
    return type("Function", (), {"__call__": lambda self, *arguments: call(*arguments)})()


class Bindings:
    def __init__(self, *devices: Device) -> None:
        self._lib = Native(*devices)
        self.offloads = any(device.kind for device in devices)

    def llama_supports_gpu_offload(self) -> bool:
        return self.offloads


PROCESSOR, CARD, SHARED, BLAS = Device(0, 9 * GIB), Device(1, 3 * GIB), Device(2, GIB), Device(3, GIB)


@pytest.mark.parametrize(
    ("devices", "asked", "layers", "free"),
    [
        ([PROCESSOR], None, 0, 5 * GIB),
        ([PROCESSOR], ALL_LAYERS, 0, 5 * GIB),
        ([PROCESSOR, BLAS], 0, 0, 5 * GIB),
        ([CARD, PROCESSOR], None, ALL_LAYERS, 3 * GIB),
        ([CARD, SHARED, PROCESSOR], None, ALL_LAYERS, 4 * GIB),
        ([CARD, PROCESSOR], 0, 0, 5 * GIB),
        ([Device(1, 7 * GIB), PROCESSOR], 12, 12, 5 * GIB),  # layers on both sides: the smaller decides
    ],
)
def test_layers_go_to_an_accelerator_if_there_is_one(
    devices: list[Device], asked: int | None, layers: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_library, "library", lambda: Bindings(*devices))
    monkeypatch.setattr(llama_library, "available_memory", lambda: 5 * GIB)
    assert offloaded_layers(asked) == layers
    assert free_memory(layers) == free


@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_context_without_tokens_is_refused(value: str) -> None:
    with pytest.raises(UserError, match=r"draft\.context"):
        load_config({}, {"FORERUN_EDGE_DRAFT_CONTEXT": value}, [])
