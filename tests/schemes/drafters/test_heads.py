"""Heads compute what their definition says, in packed slots as in plain transformers, for their target."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.choice import rank
from common.errors import UserError
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from schemes.drafters.drafter import DraftRows
from schemes.drafters.heads import (
    FORMAT,
    HeadsLabel,
    MedusaHeads,
    RecurrentHead,
    logits_of,
    read_heads,
    save_heads,
)
from tests import wording
from tests.cloud_verifier.engine.tiny import target
from tests.schemes.drafters.rig import DEPTH, SAMPLINGS, draft_of, engine_of, guess, guess_item, plainly, read

pytestmark = pytest.mark.torch

PROMPT = [5, 9, 2, 41, 7, 7, 80, 13]
VOCABULARY = Vocabulary((b"a", b"b"))
FINGERPRINT = VOCABULARY.fingerprint


def features_of(model: TargetModel, tokens: list[int]) -> torch.Tensor:
    """The target's last hidden states [T, H] by transformers alone."""
    found: list[torch.Tensor] = []
    hook = model.decoder.register_forward_hook(lambda _module, _inputs, output: found.append(output[0]))
    with plainly(model):
        model.plain_logits(tokens, 1)
    hook.remove()
    return found[0][0]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "gpt2", "opt"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm"])
def test_a_recurrent_head_guesses_as_it_does_in_plain_transformers(
    family: str, sampling: SamplingParams
) -> None:
    model = target(family)
    head = draft_of("recurrent", model)
    assert isinstance(head, RecurrentHead)
    engine = engine_of(head, model)
    session, tip = read(engine, PROMPT, sampling)
    (found,) = guess(engine, guess_item(session, tip))
    above = features_of(model, PROMPT)
    for each in found:
        text, features, logits = [*PROMPT, tip, *each.path], above, torch.empty(0)
        for length in range(len(PROMPT) + 1, len(text) + 1):  # each level's output is the next one's input
            features, logits = one_level_on(model, head, text[:length], features)
        expected = rank(logits[0].numpy(), sampling, len(text) - 1, len(each.tokens))
        np.testing.assert_allclose(each.scores, expected.scores, atol=1e-4)


def one_level_on(
    model: TargetModel, head: RecurrentHead, tokens: list[int], features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the head over a whole text in plain transformers, with the features before each row but the first.
    Returns the features with the last row's output behind them, and its logits [1, V]."""
    last = len(tokens) - 2
    rows = DraftRows(torch.tensor(tokens[1:]), torch.arange(last + 1), features, torch.tensor([last]), 1)
    with plainly(model):
        found = head.forward(rows)
    assert found.features is not None
    return torch.cat((features, found.features)), found.logits


def test_medusa_heads_guess_by_their_definition() -> None:
    model = target("llama")
    heads = draft_of("medusa", model)
    assert isinstance(heads, MedusaHeads)
    for sampling in SAMPLINGS:
        engine = engine_of(heads, model)
        session, tip = read(engine, PROMPT, sampling)
        (found,) = guess(engine, guess_item(session, tip))
        assert max(len(each.path) for each in found) == DEPTH - 1
        hidden = features_of(model, PROMPT)[-1]
        for each in found:
            level = len(each.path)
            own = hidden + functional.silu(heads.weights[level] @ hidden + heads.biases[level])
            logits = logits_of(model, own).detach().numpy()
            expected = rank(logits, sampling, len(PROMPT) + len(each.path), len(each.tokens))
            assert list(each.tokens) == expected.tokens.tolist()


@pytest.mark.parametrize("kind", ["recurrent", "medusa"])
def test_a_file_gives_the_heads_back(kind: str, tmp_path: Path) -> None:
    model, path = target("llama"), tmp_path / "heads.safetensors"
    heads = draft_of(kind, model)
    assert isinstance(heads, RecurrentHead | MedusaHeads)
    save_heads(heads, HeadsLabel.of(kind, DEPTH, model, FINGERPRINT), path)
    loaded = read_heads(path, model, VOCABULARY)
    assert (loaded.kind, loaded.depth) == (kind, DEPTH)
    for name, weights in heads.state_dict().items():
        assert torch.equal(weights.bfloat16().float(), loaded.state_dict()[name])
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_heads_of_another_target_are_refused(tmp_path: Path) -> None:
    model, path = target("llama"), tmp_path / "heads.safetensors"
    heads = draft_of("medusa", model)
    assert isinstance(heads, MedusaHeads)
    save_heads(heads, HeadsLabel.of("medusa", DEPTH, model, FINGERPRINT), path)
    with wording.raises(UserError):
        read_heads(path, model, Vocabulary((b"c",)))
    save_heads(heads, HeadsLabel("medusa", DEPTH + 1, FINGERPRINT.hex(), 32, 2), path)
    with wording.raises(UserError):  # weights are missing
        read_heads(path, model, VOCABULARY)
    save_heads(heads, HeadsLabel("medusa", DEPTH, FINGERPRINT.hex(), 32, 3), path)
    with wording.raises(UserError):
        read_heads(path, model, VOCABULARY)


def test_other_files_are_refused(tmp_path: Path) -> None:
    model, path = target("llama"), tmp_path / "heads.safetensors"
    with wording.raises(UserError):
        read_heads(path, model, VOCABULARY)
    path.write_bytes(b"no safetensors")
    with wording.raises(UserError):
        read_heads(path, model, VOCABULARY)
    save_file({"a": torch.zeros(1)}, path)
    with wording.raises(UserError):
        read_heads(path, model, VOCABULARY)


@pytest.mark.parametrize("kind", ["recurrent", "medusa"])
@pytest.mark.parametrize("name", ["depth", "vocabulary", "hidden_size", "num_layers"])
@pytest.mark.parametrize("value", [None, "x", "0", "-1", "1000000000000"])
def test_damaged_labels_are_refused(kind: str, name: str, value: str | None, tmp_path: Path) -> None:
    """Before memory is asked for by them."""
    model, path = target("llama"), tmp_path / "heads.safetensors"
    label = {key: str(each) for key, each in asdict(HeadsLabel.of(kind, 1, model, FINGERPRINT)).items()}
    label |= {"format": FORMAT} | ({} if value is None else {name: value})
    if value is None:
        del label[name]
    save_file({"a": torch.zeros(1)}, path, label)
    with pytest.raises(UserError):
        read_heads(path, model, VOCABULARY)
