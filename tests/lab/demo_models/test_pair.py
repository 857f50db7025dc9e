"""The committed pair: llama.cpp computes from its files what torch computes from the same weights."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lab.demo_models import DRAFT_GGUF, PROMPTS, TARGET_DIR
from lab.demo_models.corpus import held_out_functions
from training.demo_pair import HEADS

MAX_DIFFERENCE = 1e-4
"""Bound on a logit's difference, f32 on both sides: each sums in its own order. 2.9e-5 was measured on
this pair; the bound leaves room for other vector widths."""


def prompt_tokens() -> list[int]:
    from lab.demo_models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(TARGET_DIR)
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    return [token for prompt in prompts for token in tokenizer.encode(prompt["text"]).ids][:384]


def torch_logits(path: Path, tokens: list[int]) -> npt.NDArray[np.float32]:
    import torch

    from lab.demo_models.gguf_export import read_gguf

    with torch.no_grad():
        logits: npt.NDArray[np.float32] = read_gguf(path)(input_ids=torch.tensor([tokens])).logits[0].numpy()
    return logits


def llama_logits(path: Path, tokens: list[int]) -> npt.NDArray[np.float32]:
    """Logits `[len(tokens), vocab]` in llama.cpp's exact mode: no flash attention, KV in f32, one thread."""
    from common.llama.model import LlamaSettings
    from common.llama.runtime import LlamaRuntime

    count = len(tokens)
    settings = LlamaSettings(
        str(path), n_ctx=512, n_seq_max=2, n_batch=2 * count, max_rows=count, threads=1, exact=True
    )
    with LlamaRuntime(settings) as runtime:
        runtime.batch.fill(tokens, list(range(count)), [0] * count, [1] * count)
        assert runtime.decode() == 0
        return runtime.logits(count).copy()


@pytest.mark.torch
@pytest.mark.llama
def test_f32_logits_equal_those_of_torch(tmp_path: Path) -> None:
    from lab.demo_models.gguf_export import read_gguf, write_gguf

    path = tmp_path / "draft-f32.gguf"
    write_gguf(read_gguf(DRAFT_GGUF), TARGET_DIR / "tokenizer.json", path, quantised=False)
    tokens = prompt_tokens()
    assert np.abs(llama_logits(path, tokens) - torch_logits(path, tokens)).max() <= MAX_DIFFERENCE


@pytest.mark.torch
@pytest.mark.llama
def test_the_shipped_file_chooses_as_torch_does_nearly_everywhere() -> None:
    tokens = prompt_tokens()
    ours, theirs = torch_logits(DRAFT_GGUF, tokens), llama_logits(DRAFT_GGUF, tokens)
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() >= 0.97  # llama.cpp also quantises activations


@pytest.mark.torch
def test_what_is_written_in_f32_is_read_back_exactly(tmp_path: Path) -> None:
    from lab.demo_models.architecture import new_model
    from lab.demo_models.gguf_export import read_gguf, write_gguf
    from training.draft_weights import Relation

    model = new_model(1, seed=3)
    write_gguf(model, TARGET_DIR / "tokenizer.json", tmp_path / "a.gguf", quantised=False)
    back = read_gguf(tmp_path / "a.gguf").state_dict()
    assert all(bool((weight == back[name]).all()) for name, weight in model.state_dict().items())
    rows = np.arange(8 * 3, dtype=np.float32).reshape(8, 3)
    assert Relation(2).to_file(rows)[:, 0].tolist() == [0, 6, 3, 9, 12, 18, 15, 21]


@pytest.mark.torch
def test_exporting_the_shipped_draft_again_changes_no_byte(tmp_path: Path) -> None:
    from lab.demo_models.gguf_export import read_gguf, write_gguf

    again = tmp_path / "again.gguf"
    write_gguf(read_gguf(DRAFT_GGUF), TARGET_DIR / "tokenizer.json", again, quantised=True)
    assert again.read_bytes() == DRAFT_GGUF.read_bytes()


@pytest.mark.torch
@pytest.mark.slow
def test_the_target_completes_held_out_functions_and_the_draft_agrees_mostly() -> None:
    """5 of the 100 functions that README.md reports on."""
    from lab.demo_models.architecture import load_target
    from lab.demo_models.evaluate import EVALUATION_SEED, measure_functions
    from lab.demo_models.gguf_export import read_gguf
    from lab.demo_models.tokenizer import load_tokenizer

    prompts = [prompt for _, prompt in islice(held_out_functions(EVALUATION_SEED), 5)]
    found = measure_functions(
        load_target(TARGET_DIR), read_gguf(DRAFT_GGUF), load_tokenizer(TARGET_DIR), prompts
    )
    assert found.passed >= 4
    assert all(0.65 <= acceptance <= 0.9 for acceptance in found.acceptance.values())


@pytest.mark.torch
@pytest.mark.slow
def test_the_bundled_heads_save_a_third_of_the_targets_steps() -> None:
    from cloud_verifier.engine.torch_loading import load_engine
    from common.sampling import SamplingParams
    from lab.demo_models.evaluate import EVALUATION_SEED
    from training.drafter_trial import try_drafter

    engine, _ = load_engine(str(TARGET_DIR), 512, drafter=str(HEADS))
    texts = [prompt for _, prompt in islice(held_out_functions(EVALUATION_SEED), 2)]
    prompts = [engine.model.tokenize(text) for text in texts]
    sampling = SamplingParams(temperature=0.8, seed=1, max_tokens=40)
    assert try_drafter(engine, prompts, sampling).levels[-1].steps_per_token <= 0.65
