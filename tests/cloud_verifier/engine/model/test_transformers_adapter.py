"""Loading says in a sentence what is wrong; what is loaded tells its tokens, limits and end tokens."""

import json
import socket
from dataclasses import replace
from http.client import BadStatusLine
from pathlib import Path
from ssl import SSLCertVerificationError
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cloud_verifier.engine.model import checkpoint, transformers_adapter
from cloud_verifier.engine.model.transformers_adapter import load_target
from cloud_verifier.engine.torch_loading import load_engine
from common.errors import UserError
from common.sampling import SamplingDefaults
from tests import wording
from tests.cloud_verifier.engine.tiny import plain_model, target

pytestmark = pytest.mark.torch

WORDS = {"<eos>": 0, "Ġthe": 1, "cat": 2, "<0x0A>": 3, "é": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama saved as its makers would, with a tokenizer of five words."""
    place = tmp_path_factory.mktemp("model")
    plain_model("llama").save_pretrained(place)
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<eos>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>").save_pretrained(place)
    return place


def copied(folder: Path, place: Path, without: str = "") -> Path:
    for file in folder.iterdir():
        if file.name != without:
            (place / file.name).write_bytes(file.read_bytes())
    return place


def test_a_folder_is_loaded_with_its_tokenizer(folder: Path) -> None:
    model = load_target(str(folder), dtype="bfloat16")
    assert (model.dtype, model.device) == (torch.bfloat16, torch.device("cpu"))
    assert (model.vocab_size, model.num_layers, model.max_positions) == (97, 2, 128)
    assert (model.eos_token_ids, model.sliding_window) == ((3,), None)
    assert model.name == str(folder)
    assert model.tokenize("cat Ġthe cat") == [2, 1, 2]


@pytest.mark.parametrize(
    ("stored", "computes", "small"),
    [
        ("bfloat16", True, False),
        ("bfloat16", True, True),
        ("bfloat16", False, False),
        ("float16", True, False),
    ],
)
def test_a_cpu_takes_bfloat16_for_a_large_model_that_is_stored_so_if_it_computes_in_it(
    stored: str, computes: bool, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_model("llama").to(transformers_adapter.DTYPES[stored]).save_pretrained(tmp_path)
    monkeypatch.setattr(transformers_adapter, "computes_bfloat16", lambda: computes)
    monkeypatch.setattr(transformers_adapter, "SMALL", 10**8 if small else 10)
    for dtype in ("auto", "float32", "bfloat16"):
        model = transformers_adapter.load_target(str(tmp_path), dtype=dtype, with_tokenizer=False)
        half = dtype == "bfloat16" or (dtype, stored, computes, small) == ("auto", "bfloat16", True, False)
        assert model.dtype is (torch.bfloat16 if half else torch.float32)


def test_the_token_table_holds_the_stored_texts_and_pads_to_the_model(folder: Path) -> None:
    table = load_target(str(folder)).token_table()
    assert table[:5] == [b"<eos>", "Ġthe".encode(), b"cat", b"<0x0A>", "é".encode()]
    assert table[5:] == [None] * 92


@pytest.mark.parametrize("without", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, without: str) -> None:
    with wording.raises(UserError):
        load_target(str(copied(folder, tmp_path, without)))


@pytest.mark.parametrize("source", ["/no/such/folder", "./typo", "tests/typo"])
def test_a_mistyped_folder_is_not_looked_for_on_the_hub(source: str) -> None:
    with wording.raises(UserError):
        load_target(source)


def test_incomplete_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    place = copied(folder, tmp_path)
    weights = load_file(place / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    with wording.raises(UserError):
        load_target(str(place))


def test_a_kind_that_cannot_be_served_is_refused_before_its_weights(tmp_path: Path) -> None:
    plain_model("llama4_text").config.save_pretrained(tmp_path)
    with wording.raises(UserError):
        load_target(str(tmp_path))


@pytest.mark.parametrize("setting", [{"dtype": "int3"}, {"device": "abacus"}, {"device": "cuda"}])
def test_settings_are_checked_before_anything_is_read(
    setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: False))
    with wording.raises(UserError):
        load_target("/no/such/folder", **setting)


def test_without_a_tokenizer_its_uses_are_refused() -> None:
    with wording.raises(UserError):
        target("llama").token_table()


def chat_of(folder: Path, place: Path, **settings: object) -> tuple[str, str, str] | None:
    """What is told of a target with these changes of tokenizer_config.json."""
    copied(folder, place)
    config = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps({**config, **settings}))
    chat = load_target(str(place)).chat
    return None if chat is None else (chat.template, chat.bos_token, chat.eos_token)


TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ undefined.name() }}{% endfor %}"
NAMED = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"chat_template": TEMPLATE}, (TEMPLATE, "", "<eos>")),
        ({"chat_template": NAMED, "bos_token": "cat"}, ("a", "cat", "<eos>")),
        ({"chat_template": NAMED[:1]}, None),
        ({"chat_template": "x" * (2**18 + 1)}, None),
        ({}, None),
    ],
    ids=["as written, not run", "the default of several", "no default", "beyond the bound", "none"],
)
def test_a_chat_template_is_told(
    settings: dict[str, Any], told: tuple[str, str, str] | None, folder: Path, tmp_path: Path
) -> None:
    assert chat_of(folder, tmp_path, **settings) == told


def test_sampling_defaults_are_those_of_the_generation_settings(folder: Path, tmp_path: Path) -> None:
    assert load_target(str(folder)).sampling_defaults == SamplingDefaults()
    place = copied(folder, tmp_path)
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 1.0, "repetition_penalty": 1.05}
    (place / "generation_config.json").write_text(json.dumps({**settings, "min_p": 7.0}))
    advised = load_target(str(place)).sampling_defaults.advised
    assert advised == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}


def test_a_missing_package_is_no_reason_to_look_for_another_folder() -> None:
    def load() -> None:
        raise ImportError("Loading it requires gptqmodel (`pip install gptqmodel`) library.")

    with wording.raises(UserError):
        checkpoint.loading("a model", load)


@pytest.mark.parametrize("without", ["generation_config.json", ""])
def test_a_checkpoint_is_described_without_its_weights_as_it_is_served(
    without: str, folder: Path, tmp_path: Path
) -> None:
    place = copied(folder, tmp_path, without)
    tokenizer = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "chat_template": "{{ messages }}"}))
    if not without:
        (place / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 3], "top_k": 20}))
    engine, table = load_engine(str(place), 8)
    info = replace(engine.info, near_tie=0.0, grammars=False)  # which the way of serving decides
    (place / "model.safetensors").unlink()
    assert checkpoint.describe(str(place), 8) == (info, table)
    assert info.chat is not None


def test_a_name_that_is_no_folder_fails_at_once_where_the_hub_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with wording.raises(UserError):
        load_target("demo_modles/target")
    assert not [each for each in caplog.records if "Retrying" in each.getMessage()]


@pytest.mark.parametrize(
    ("answer", "loads"),
    [(URLError(SSLCertVerificationError("unknown authority")), True), (BadStatusLine("200?"), False)],
)
def test_what_answers_in_place_of_the_hub_is_no_traceback(
    answer: Exception, loads: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """transformers trusts other certificates than Python's own client, so it is asked."""

    def refuse(*_: object, **__: object) -> None:
        raise answer

    monkeypatch.setattr(checkpoint, "urlopen", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    if loads:
        assert checkpoint._on_the_hub("some/model") == "some/model"
        return
    with wording.raises(UserError):
        checkpoint._on_the_hub("some/model")
