"""A draft that is read and written is the same draft in llama.cpp, with its change or without its layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UserError
from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from forerun import demo_pair
from tests import wording
from training.draft_weights import DraftWeights, FloatArray

pytestmark = [pytest.mark.torch, pytest.mark.llama]

TOKENS = list(range(300, 316))


def by_llama(path: Path, adapter: str = "") -> FloatArray:
    with LlamaRuntime(LlamaSettings(str(path), n_ctx=256, exact=True, adapter=adapter)) as runtime:
        count = len(TOKENS)
        runtime.batch.fill(TOKENS, list(range(count)), [0] * count, [1] * count)
        assert runtime.decode() == 0
        return runtime.logits(count).copy()


def by_torch(draft: DraftWeights) -> FloatArray:
    with torch.inference_mode():
        logits: FloatArray = draft.logits(
            torch.tensor([TOKENS]), torch.ones(1, len(TOKENS), dtype=torch.bool)
        ).numpy()
    return logits


@pytest.fixture
def draft() -> DraftWeights:
    return DraftWeights(demo_pair.DRAFT_GGUF)


def test_an_unchanged_draft_is_written_as_it_was(draft: DraftWeights, tmp_path: Path) -> None:
    draft.write(tmp_path / "same.gguf", "Q8_0")
    np.testing.assert_array_equal(by_llama(tmp_path / "same.gguf"), by_llama(demo_pair.DRAFT_GGUF))


def test_a_low_rank_change_is_written_into_the_weights_and_as_an_adapter(
    draft: DraftWeights, tmp_path: Path
) -> None:
    before = by_torch(draft)
    draft.write(tmp_path / "base.gguf", "F32")
    draft.add_low_rank(4)
    trained = [name for name, weight in draft.module.named_parameters() if weight.requires_grad]
    with torch.no_grad():
        for name in trained:
            draft.module.get_parameter(name).normal_(0.0, 0.02)
    changed = by_torch(draft)
    assert np.abs(changed - before).max() > 0.01
    draft.write(tmp_path / "merged.gguf", "F32")
    np.testing.assert_allclose(by_llama(tmp_path / "merged.gguf"), changed, atol=1e-3)
    draft.write_adapter(tmp_path / "adapter.gguf")
    adapted = by_llama(tmp_path / "base.gguf", str(tmp_path / "adapter.gguf"))
    np.testing.assert_allclose(adapted, changed, atol=1e-3)
    assert (tmp_path / "adapter.gguf").stat().st_size < demo_pair.DRAFT_GGUF.stat().st_size / 4


def test_a_draft_may_lose_layers(draft: DraftWeights, tmp_path: Path) -> None:
    with wording.raises(UserError):
        draft.check_layers([0, 1])
    draft.keep_layers([0])
    draft.write(tmp_path / "short.gguf", "F32")
    np.testing.assert_allclose(by_llama(tmp_path / "short.gguf"), by_torch(draft), atol=1e-3)


def test_an_unknown_type_is_refused_before_anything_is_written(draft: DraftWeights, tmp_path: Path) -> None:
    with wording.raises(UserError):
        draft.write(tmp_path / "out.gguf", "Q9")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"no model")
    with wording.raises(UserError):
        DraftWeights(path)
