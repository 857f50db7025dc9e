"""Loading says what is wrong and what to do; the vocabulary reads as the file has it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from common.errors import UserError
from edge_client.llama.settings import LlamaSettings

if TYPE_CHECKING:
    from edge_client.llama.runtime import LlamaRuntime

pytestmark = pytest.mark.llama

NUM_VOCAB = 300
END = NUM_VOCAB - 2


def load(path: Path, verbose: bool = False) -> LlamaRuntime:
    from edge_client.llama.runtime import LlamaRuntime

    return LlamaRuntime(
        LlamaSettings(str(path), n_ctx=256, n_seq_max=4, n_batch=64, threads=1, verbose=verbose)
    )


@pytest.fixture(scope="module")
def runtime(model: Path) -> Iterator[LlamaRuntime]:
    with load(model) as loaded:
        yield loaded


def test_sizes_are_those_of_the_file(runtime: LlamaRuntime) -> None:
    assert runtime.num_vocab == NUM_VOCAB
    assert runtime.n_ctx_train == 1024
    assert runtime.n_ctx >= 256
    assert "llama" in runtime.description


def test_the_token_table_has_every_text_and_no_padding(runtime: LlamaRuntime) -> None:
    from tests.edge_client.llama.tiny_gguf import tiny_tokens

    table = runtime.token_table()
    assert len(table) == NUM_VOCAB
    assert table[:-1] == [text.encode() for text in tiny_tokens(NUM_VOCAB)[:-1]]
    assert table[-1] is None


@pytest.mark.parametrize("text", ["the and thé\n", "", "日本", "a<|end_of_text|>b"])
def test_pieces_of_a_text_are_the_text(runtime: LlamaRuntime, text: str) -> None:
    for parse_special in (False, True):
        tokens = runtime.tokenize(text, parse_special)
        assert b"".join(map(runtime.piece, tokens)).decode() == text
        assert (END in tokens) == (parse_special and "<|" in text)


def test_a_piece_longer_than_the_first_buffer_comes_whole(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_client.llama.vocabulary.FIRST_PIECE_BYTES", 2)
    assert runtime.piece(END) == b"<|end_of_text|>"


def test_end_tokens_are_those_that_the_file_names(runtime: LlamaRuntime, model: Path, tmp_path: Path) -> None:
    assert runtime.eos_ids == (END,)
    spelt = tmp_path / "spelt.gguf"  # one of its texts is spelt as an end token of other models
    spelt.write_bytes(model.read_bytes().replace(b"<filler10>", b"<|eom_id|>"))
    with load(spelt) as loaded:
        assert loaded.tokenize("<|eom_id|>", True) == [270]
        assert loaded.eos_ids == (END,)


@pytest.mark.parametrize("token", [-1, NUM_VOCAB])
def test_a_piece_outside_the_vocabulary_is_refused(runtime: LlamaRuntime, token: int) -> None:
    with pytest.raises(UserError, match="outside the draft's vocabulary"):
        runtime.piece(token)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no draft model at .*nothing\.gguf"):
        load(tmp_path / "nothing.gguf")


def test_another_kind_of_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(UserError, match="not a GGUF file"):
        load(path)


def test_a_cut_off_file_is_refused_with_llama_cpps_reason(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    with pytest.raises(UserError, match=r"cannot be loaded as a GGUF model \(llama\.cpp: .*fetch or convert"):
        load(path)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    from tests.edge_client.llama.tiny_gguf import TinyShape, write_tiny_gguf

    path = write_tiny_gguf(tmp_path / "odd.gguf", TinyShape(architecture="unheard-of"))
    with pytest.raises(UserError, match="unheard-of"):
        load(path)


@pytest.mark.parametrize("question", ["llama_model_is_recurrent", "llama_model_is_hybrid"])
def test_recurrent_models_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    from edge_client.llama.library import library

    monkeypatch.setattr(library(), question, lambda _model: True)
    with pytest.raises(UserError, match="attention-only decoder"):
        load(model)


def test_closing_twice_is_allowed(model: Path) -> None:
    runtime = load(model)
    runtime.close()
    runtime.close()


@pytest.mark.parametrize(
    ("system_info", "choice", "uses"),
    [
        (b"CPU : AVX512 = 1 | AMX_INT8 = 1 | REPACK = 1 | ", None, False),
        (b"CPU : AVX512 = 1 | REPACK = 1 | ", None, True),
        (b"CPU : AMX_INT8 = 1 | ", True, True),
        (b"CPU : AVX2 = 1 | ", False, False),
    ],
)
def test_builds_with_amx_load_without_extra_buffers(
    model: Path, monkeypatch: pytest.MonkeyPatch, system_info: bytes, choice: bool | None, uses: bool
) -> None:
    from edge_client.llama.library import library
    from edge_client.llama.runtime import LlamaRuntime

    seen: list[bool] = []
    load_model = library().llama_model_load_from_file

    def spy(path: bytes, params: object) -> object:
        seen.append(getattr(params, "use_extra_bufts"))  # noqa: B009  a ctypes field, unknown to the checker
        return load_model(path, params)

    monkeypatch.setattr(library(), "llama_print_system_info", lambda: system_info)
    monkeypatch.setattr(library(), "llama_model_load_from_file", spy)
    settings = LlamaSettings(str(model), n_ctx=256, n_seq_max=4, n_batch=64, use_extra_bufts=choice)
    with LlamaRuntime(settings) as runtime:
        assert runtime.uses_extra_bufts is uses
    assert seen == [uses]


def test_a_quantised_batch_survives(tmp_path: Path) -> None:
    """The AMX defect killed the process in any quantised decode of more than one token."""
    from tests.edge_client.llama.tiny_gguf import TinyShape, write_tiny_gguf

    with load(write_tiny_gguf(tmp_path / "q8.gguf", TinyShape(quantised=True))) as runtime:
        runtime.batch.fill([1, 2, 3], [0, 1, 2], [0, 0, 0], [False, False, True])
        assert runtime.decode() == 0
        assert runtime.logits(1).shape == (1, NUM_VOCAB)


def test_llama_cpp_writes_nothing_to_the_terminal(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(model).close()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


@pytest.mark.parametrize(("verbose", "level"), [(False, logging.DEBUG), (True, logging.INFO)])
def test_llama_cpps_log_is_ours(
    model: Path, caplog: pytest.LogCaptureFixture, verbose: bool, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, "edge_client.llama"):
        load(model, verbose).close()
    levels = {record.levelno for record in caplog.records if "n_ctx " in record.message}
    assert levels == {level}


def test_without_weights_the_tokens_are_the_same(
    model: Path, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_client.llama.library import library
    from edge_client.llama.model import LlamaModel

    seen: list[bool] = []
    load_model = library().llama_model_load_from_file

    def spy(path: bytes, params: object) -> object:
        seen.append(getattr(params, "vocab_only"))  # noqa: B009  a ctypes field, unknown to the checker
        return load_model(path, params)

    monkeypatch.setattr(library(), "llama_model_load_from_file", spy)

    with LlamaModel(LlamaSettings(str(model)), weights=False) as tokens_only:
        assert tokens_only.token_table() == runtime.token_table()
        assert tokens_only.eos_ids == runtime.eos_ids
        assert tokens_only.tokenize("the and thé", False) == runtime.tokenize("the and thé", False)
    assert seen == [True]


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 1), (8, 7)])
def test_a_processor_is_left_to_others(processors: int, threads: int) -> None:
    from edge_client.llama.runtime import default_threads

    assert default_threads(processors) == threads
