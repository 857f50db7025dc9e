"""Loading says what is wrong and what to do; the vocabulary reads as the file has it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from common.llama.library import library
from common.llama.model import LlamaModel, LlamaSettings
from common.llama.runtime import LlamaRuntime
from tests import wording

pytestmark = pytest.mark.llama

NUM_VOCAB = 300
END = NUM_VOCAB - 2


def load(path: Path) -> LlamaRuntime:
    return LlamaRuntime(LlamaSettings(str(path), n_ctx=256, n_seq_max=4, n_batch=64, threads=1))


@pytest.fixture(scope="module")
def runtime(model: Path) -> Iterator[LlamaRuntime]:
    with load(model) as loaded:
        yield loaded
    loaded.close()  # again is allowed


def test_the_token_table_has_every_text_and_no_padding(runtime: LlamaRuntime) -> None:
    from tests.edge_client.draft.tiny_gguf import tiny_tokens

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
    monkeypatch.setattr("common.llama.model.FIRST_PIECE_BYTES", 2)
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
    with wording.raises(UserError):
        runtime.piece(token)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf

    path = write_tiny_gguf(tmp_path / "odd.gguf", TinyShape(architecture="unheard-of"))
    with wording.raises(UserError):
        load(path)


@pytest.mark.parametrize("architecture", ["mamba", "jamba"])
def test_recurrent_models_are_refused_where_states_are_cut_back(tmp_path: Path, architecture: str) -> None:
    from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf

    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(architecture=architecture))
    with wording.raises(UserError):
        LlamaRuntime(LlamaSettings(str(path), n_ctx=256), with_states=False)


@pytest.mark.parametrize("question", ["llama_model_is_diffusion", "llama_model_has_encoder"])
def test_models_that_are_no_decoders_are_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    monkeypatch.setattr(library(), question, lambda _model: True)
    with wording.raises(UserError):
        load(model)


@pytest.fixture
def loadings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Parameters with which llama.cpp was asked to load a model."""
    seen, load_model = list[Any](), library().llama_model_load_from_file

    def spy(path: bytes, params: Any) -> object:
        seen.append(params)
        return load_model(path, params)

    monkeypatch.setattr(library(), "llama_model_load_from_file", spy)
    return seen


@pytest.mark.parametrize(
    ("system_info", "uses"),
    [
        (b"CPU : AVX512 = 1 | AMX_INT8 = 1 | REPACK = 1 | ", False),
        (b"CPU : AVX512 = 1 | REPACK = 1 | ", True),
    ],
)
def test_builds_with_amx_load_without_extra_buffers(
    model: Path, monkeypatch: pytest.MonkeyPatch, loadings: list[Any], system_info: bytes, uses: bool
) -> None:
    monkeypatch.setattr(library(), "llama_print_system_info", lambda: system_info)
    LlamaModel(LlamaSettings(str(model)), weights=False).close()
    assert [params.use_extra_bufts for params in loadings] == [uses]


def test_llama_cpps_log_is_ours_and_nothing_comes_to_the_terminal(
    model: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "common.llama"):
        load(model).close()
    assert {record.levelno for record in caplog.records if "n_ctx " in record.message} == {logging.DEBUG}
    assert capfd.readouterr() == ("", "")


def test_without_weights_the_tokens_are_the_same(
    model: Path, runtime: LlamaRuntime, loadings: list[Any]
) -> None:
    with LlamaModel(LlamaSettings(str(model)), weights=False) as tokens_only:
        assert tokens_only.token_table() == runtime.token_table()
        assert tokens_only.eos_ids == runtime.eos_ids
        assert tokens_only.tokenize("the and thé", False) == runtime.tokenize("the and thé", False)
    assert [params.vocab_only for params in loadings] == [True]
