"""Transformers' ways to write many texts: both write what the model writes alone, and their times are
told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from tests.forerun.bench.small import small_target

pytestmark = pytest.mark.torch

PROMPTS = [[1, 2, 3, 4], [9, 8, 7, 6, 5, 4, 3], [11, 12]]
ASKED = {"prompts": PROMPTS, "max_tokens": 6, "at_once": 2, "temperature": 0.0, "seed": 0}


@pytest.fixture(scope="module")
def rivals(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from forerun.bench.rivals import Rivals

    return Rivals(small_target(tmp_path_factory.mktemp("rivals")), 1, "cpu")


def alone(rivals: Any, prompt: list[int], count: int) -> list[int]:
    """The model's own greedy text, token by token without a cache."""
    import torch

    ids = torch.tensor([prompt])
    rivals._model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        for _ in range(count):
            best = rivals._model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
            ids = torch.cat([ids, best.view(1, 1)], dim=1)
    return list(ids[0, len(prompt) :].tolist())


@pytest.mark.parametrize("do", ["continuous", "padded"])
def test_every_text_is_the_models_own(do: str, rivals: Any) -> None:
    told = rivals.answer({"do": do, **ASKED})
    assert told["texts"] == [alone(rivals, prompt, 6) for prompt in PROMPTS]
    assert [len(times) for times in told["arrivals"]] == [6, 6, 6]
    assert all(times == sorted(times) and times[0] >= 0 for times in told["arrivals"])
    assert told["target_steps"] >= 6
    assert told["seconds"] > 0


def test_the_fastest_setting_is_kept(rivals: Any) -> None:
    told = rivals.answer({"do": "tune", **ASKED})
    tried = {name: seconds for name, seconds in told["tried_seconds"].items() if seconds is not None}
    assert told["setting"] == min(tried, key=lambda name: tried[name])
    assert str(rivals._setting) == told["setting"]


def test_sampled_texts_have_the_length_asked_for(rivals: Any) -> None:
    told = rivals.answer({"do": "continuous", **ASKED, "temperature": 0.8})
    assert [len(text) for text in told["texts"]] == [6, 6, 6]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    from forerun.bench.rivals import Rivals

    with pytest.raises(UserError, match="transformers cannot load"):
        Rivals(str(tmp_path), 1, "cpu")
