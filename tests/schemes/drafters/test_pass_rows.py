"""Rows of learnt embeddings below the tip compute what plain transformers does with them behind the text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.choice import rank
from common.sampling import SamplingParams
from schemes.drafters import drafter as drafter_module
from schemes.drafters.heads import HeadsLabel, PassRows, read_heads, save_heads
from tests.cloud_verifier.engine.tiny import target
from tests.schemes.drafters.rig import (
    DEPTH,
    SAMPLINGS,
    draft_of,
    engine_of,
    guess,
    guess_item,
    plainly,
    read,
    write,
)
from tests.schemes.drafters.test_heads import FINGERPRINT, PROMPT, VOCABULARY
from training.head_training import level_states

pytestmark = pytest.mark.torch

SIGHT = DEPTH - 1


def rows_of(model: TargetModel) -> PassRows:
    heads = draft_of("pass", model)
    assert isinstance(heads, PassRows)
    return heads


def plain_rows(model: TargetModel, heads: PassRows, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and last hidden states of a text's last row and of all rows below it, by transformers alone."""
    states = list[torch.Tensor]()
    hook = model.decoder.register_forward_hook(lambda _module, _inputs, output: states.append(output[0]))
    embedded = model.module.get_input_embeddings()(torch.tensor(text))
    whole = torch.cat((embedded, *(each[None] for each in heads.embeddings)))
    with plainly(model):
        logits = model.module(inputs_embeds=whole[None], use_cache=False).logits[0]
    hook.remove()
    return logits[-SIGHT - 1 :], states[0][0, -SIGHT - 1 :]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "gpt2"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm"])
def test_rows_guess_by_their_definition(family: str, sampling: SamplingParams) -> None:
    model = target(family)
    heads = rows_of(model)
    engine = engine_of(heads, model)
    session, tip = read(engine, PROMPT, sampling)
    (found,) = guess(engine, guess_item(session, tip))
    assert max(len(each.path) for each in found) == SIGHT
    logits, _ = plain_rows(model, heads, [*PROMPT, tip])
    for each in found:
        level = len(each.path)
        expected = rank(logits[level].numpy(), sampling, len(PROMPT) + level, len(each.tokens))
        np.testing.assert_allclose(each.scores, expected.scores, atol=1e-4)
    assert found[0].tokens[0] == write(engine, session, tip, 1)[0], "what follows the tip is certain"


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
def test_rows_in_training_are_those_of_a_guess(family: str) -> None:
    model = target(family)
    heads = rows_of(model)
    texts = [PROMPT, PROMPT[::-1]]
    with torch.inference_mode():
        found = list(level_states(heads, torch.tensor(texts), torch.empty(0), SIGHT))
    assert [each.shape[1] for each in found] == [len(PROMPT) - level for level in range(1, SIGHT + 1)]
    for own, text in enumerate(texts):
        for tip in range(len(PROMPT) - 1):
            _, states = plain_rows(model, heads, text[: tip + 1])
            for level in range(1, min(SIGHT, len(PROMPT) - 1 - tip) + 1):
                torch.testing.assert_close(found[level - 1][own, tip], states[level], atol=1e-4, rtol=1e-3)


def test_texts_without_room_for_all_rows_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = target("llama")
    heads, last = rows_of(model), model.max_positions
    engine = engine_of(heads, model)
    for length, has_room in ((last - SIGHT - 1, True), (last - SIGHT, False)):
        session, tip = read(engine, [index % 90 for index in range(length)])
        assert bool(guess(engine, guess_item(session, tip))[0]) == has_room
    monkeypatch.setattr(drafter_module, "SCRATCH", 2 * SIGHT)
    engine = engine_of(heads, model)
    session, tip = read(engine, PROMPT)
    found = guess(engine, guess_item(session, tip), guess_item(session, tip))
    assert [bool(each) for each in found] == [True, False]


def test_a_file_gives_the_rows_back(tmp_path: Path) -> None:
    model, path = target("llama"), tmp_path / "heads.safetensors"
    save_heads(rows_of(model), HeadsLabel.of("pass", SIGHT, model, FINGERPRINT), path)
    loaded = read_heads(path, model, VOCABULARY)
    assert isinstance(loaded, PassRows)
    assert (loaded.num_ahead, loaded.depth) == (SIGHT, DEPTH)
    assert path.stat().st_size < 4096
