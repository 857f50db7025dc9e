"""Rows leave at the first exit that is sure, by transformers' hidden states, no deeper than those above."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.choice import rank
from common.errors import UserError
from common.sampling import SamplingParams
from schemes.drafters.heads import (
    ExitHeads,
    HeadsLabel,
    MedusaHeads,
    exit_layers,
    load_exits,
    read_heads,
    save_heads,
)
from tests import wording
from tests.cloud_verifier.engine.tiny import target
from tests.schemes.drafters.rig import SAMPLINGS, engine_of, guess, guess_item, read
from tests.schemes.drafters.test_heads import FINGERPRINT, VOCABULARY
from tests.schemes.drafters.test_whole_models import PROMPT, deep_model

pytestmark = pytest.mark.torch

PLACES = (1, 3)


def exits_of(model: TargetModel, gamma: float) -> ExitHeads:
    torch.manual_seed(1)
    heads = ExitHeads(model, len(PLACES), gamma).requires_grad_(False)
    torch.nn.init.normal_(heads.weights, std=0.3)
    return heads


def last_row(plain: Any, heads: ExitHeads, text: list[int], tip: int) -> tuple[np.ndarray, list[int]]:
    """Logits of a text's last row, and the exits where the rows from place `tip` on leave; 0: nowhere."""
    left, logits = [len(PLACES)], torch.empty(0)
    for end in range(tip + 1, len(text) + 1):
        states = plain(torch.tensor([text[:end]]), output_hidden_states=True).hidden_states
        left.append(0)
        for number in range(1, left[-2] + 1):
            state = states[PLACES[number - 1]][0, -1]
            state = state + functional.silu(heads.weights[number - 1] @ state + heads.biases[number - 1])
            logits = plain.lm_head(plain.model.norm(state))
            if logits.softmax(dim=-1).max() >= heads.gamma:
                left[-1] = number
                break
    return logits.numpy(), left[1:]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm"])
@torch.inference_mode()
def test_rows_leave_by_their_definition(sampling: SamplingParams) -> None:
    seen = set[tuple[int, ...]]()
    for family, gamma in itertools.product(("llama", "gemma3_text"), (0.05, 0.15, 0.2, 0.25, 0.3, 0.4, 0.7)):
        plain, model = deep_model(family), TargetModel(family, deep_model(family))
        plain.set_attn_implementation("eager")
        heads = exits_of(model, gamma)
        engine = engine_of(heads, model)
        for prompt in (PROMPT, PROMPT[::-1], PROMPT[2:]):
            session, tip = read(engine, prompt, sampling)
            (found,) = guess(engine, guess_item(session, tip))
            for each in found:
                text = [*prompt, tip, *each.path]
                logits, left = last_row(plain, heads, text, len(prompt))
                assert all(left[:-1]), "nothing is guessed below a row that is unsure"
                expected = rank(logits, sampling, len(text) - 1, len(each.tokens))
                np.testing.assert_allclose(each.scores, expected.scores, atol=1e-3)
                seen.add(tuple(left))
    assert {left[-1] for left in seen} == {0, 1, 2}, "rows leave at each exit, and at none"
    assert any(len(left) > 1 for left in seen)


def test_exits_are_spread_evenly() -> None:
    assert exit_layers(4, 2) == PLACES
    assert exit_layers(32, 3) == (8, 16, 24)
    assert exit_layers(10, 9) == tuple(range(1, 10))


def test_a_file_gives_the_exits_back_with_any_threshold(tmp_path: Path) -> None:
    model, path = target("llama"), tmp_path / "heads.safetensors"
    heads = ExitHeads(model, 1)
    save_heads(heads, HeadsLabel.of("exit", 1, model, FINGERPRINT), path)
    loaded = read_heads(path, model, VOCABULARY)
    assert isinstance(loaded, ExitHeads)
    assert (loaded.num_trained, loaded.gamma) == (1, heads.gamma)
    assert load_exits(f"exits:0.5:{path}", model, VOCABULARY).gamma == 0.5
    for source in ("exits", "exits:0.5", f"exits:x:{path}", f"exits:0:{path}", f"exits:1.5:{path}"):
        with wording.raises(UserError):
            load_exits(source, model, VOCABULARY)
    save_heads(MedusaHeads(model, 1), HeadsLabel.of("medusa", 1, model, FINGERPRINT), path)
    with wording.raises(UserError):
        load_exits(f"exits:0.5:{path}", model, VOCABULARY)


def test_no_more_exits_than_a_target_has_layers_between() -> None:
    with wording.raises(UserError):
        ExitHeads(target("llama"), 2)
