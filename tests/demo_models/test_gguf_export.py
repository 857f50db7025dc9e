"""The GGUF file: what llama.cpp computes from it is what torch computes from the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from demo_models import DRAFT_GGUF, PROMPTS, TARGET_DIR

pytestmark = pytest.mark.torch

Logits = Callable[[Path, list[int]], npt.NDArray[np.float32]]

MAX_DIFFERENCE = 1e-4
"""Bound on a logit's difference, f32 on both sides: each sums in its own order. 2.9e-5 was measured on
this pair; the bound leaves room for other vector widths."""


def prompt_tokens() -> list[int]:
    from demo_models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(TARGET_DIR)
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    return [token for prompt in prompts for token in tokenizer.encode(prompt["text"]).ids][:384]


def torch_logits(path: Path, tokens: list[int]) -> npt.NDArray[np.float32]:
    import torch

    from demo_models.gguf_export import read_gguf

    with torch.no_grad():
        logits: npt.NDArray[np.float32] = read_gguf(path)(input_ids=torch.tensor([tokens])).logits[0].numpy()
    return logits


@pytest.mark.llama
def test_f32_logits_equal_those_of_torch(tmp_path: Path, llama_logits: Logits) -> None:
    from demo_models.gguf_export import read_gguf, write_gguf

    path = tmp_path / "draft-f32.gguf"
    write_gguf(read_gguf(DRAFT_GGUF), TARGET_DIR / "tokenizer.json", path, quantised=False)
    tokens = prompt_tokens()
    difference = np.abs(llama_logits(path, tokens) - torch_logits(path, tokens)).max()
    assert difference <= MAX_DIFFERENCE


@pytest.mark.llama
def test_the_shipped_file_chooses_as_torch_does_nearly_everywhere(llama_logits: Logits) -> None:
    tokens = prompt_tokens()
    ours, theirs = torch_logits(DRAFT_GGUF, tokens), llama_logits(DRAFT_GGUF, tokens)
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() >= 0.97  # llama.cpp also quantises activations


def test_the_row_order_of_rotary_heads_can_be_undone() -> None:
    from demo_models.gguf_export import interleave_rows, separate_rows

    weight = np.arange(8 * 3, dtype=np.float32).reshape(8, 3)
    assert interleave_rows(weight, 2)[:, 0].tolist() == [0, 6, 3, 9, 12, 18, 15, 21]
    assert np.array_equal(separate_rows(interleave_rows(weight, 2), 2), weight)


def test_what_is_written_in_f32_is_read_back_exactly(tmp_path: Path) -> None:
    from demo_models.architecture import new_model
    from demo_models.gguf_export import read_gguf, write_gguf

    model = new_model(1, seed=3)
    write_gguf(model, TARGET_DIR / "tokenizer.json", tmp_path / "a.gguf", quantised=False)
    back = read_gguf(tmp_path / "a.gguf").state_dict()
    assert all(bool((weight == back[name]).all()) for name, weight in model.state_dict().items())


def test_exporting_the_shipped_draft_again_changes_no_byte(tmp_path: Path) -> None:
    from demo_models.gguf_export import read_gguf, write_gguf

    again = tmp_path / "again.gguf"
    write_gguf(read_gguf(DRAFT_GGUF), TARGET_DIR / "tokenizer.json", again, quantised=True)
    assert again.read_bytes() == DRAFT_GGUF.read_bytes()


def test_a_file_without_the_tensors_is_refused(tmp_path: Path) -> None:
    import gguf

    from demo_models.gguf_export import read_gguf

    writer = gguf.GGUFWriter(tmp_path / "empty.gguf", "llama")
    writer.add_tensor("other.weight", np.zeros((2, 2), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"token_embd\.weight"):
        read_gguf(tmp_path / "empty.gguf")
