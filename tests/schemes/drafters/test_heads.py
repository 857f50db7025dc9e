"""Heads compute what their definition says, in packed slots as in plain transformers, for their target."""

import copy
import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import save_file
from torch.nn import functional

from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.errors import UserError
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from schemes.drafters import drafter as drafter_module
from schemes.drafters.drafter import DraftRows
from schemes.drafters.heads import (
    FORMAT,
    ExitHeads,
    HeadsLabel,
    MedusaHeads,
    PassRows,
    RecurrentHead,
    exit_layers,
    load_exits,
    logits_of,
    read_heads,
    save_heads,
)
from schemes.drafters.whole_models import SkippedLayers, first_layers, numbered, skipped_layers
from tests import wording
from tests.cloud_verifier.engine.tiny import EXTRAS, SHAPE, from_config, target
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
from tests.support.law import rank
from training.head_training import level_states

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


# Rows leave at the first exit that is sure, by transformers' hidden states, no deeper than those above.


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


# Rows of learnt embeddings below the tip compute what plain transformers does with them behind the text.


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


# A target without some of its layers guesses as transformers does without them, behind the target's KV.


LAYERS = 4


def deep_model(family: str) -> Any:
    """A random model of four layers, which differ in kind in some families."""
    torch.manual_seed(0)
    shape = {**SHAPE, "num_hidden_layers": LAYERS, "initializer_range": 0.2, **EXTRAS.get(family, {})}
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2} if "sliding_window" in shape else {}
    return from_config(hf.AutoConfig.for_model(family, **shape, **(kinds if family != "mistral" else {})))


def logits_without(plain: Any, skipped: tuple[int, ...], before: list[int], tokens: list[int]) -> Any:
    """Logits [T, V] of tokens by transformers alone: a model that has only the other layers, with the whole
    model's cache of the tokens before."""
    cache = hf.DynamicCache(config=plain.config)
    cut = copy.deepcopy(plain)
    kept = [number for number in range(LAYERS) if number not in skipped]
    cut.model.layers = torch.nn.ModuleList(cut.model.layers[number] for number in kept)
    cut.config.num_hidden_layers = len(kept)
    if (kinds := getattr(plain.config, "layer_types", None)) is not None:
        cut.config.layer_types = [kinds[number] for number in kept]
    with torch.inference_mode():
        plain(torch.tensor([before]), past_key_values=cache, use_cache=True)
        return cut(torch.tensor([tokens]), past_key_values=cache, use_cache=True).logits[0].numpy()


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "mistral"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm"])
def test_skipped_layers_guess_by_their_definition(family: str, sampling: SamplingParams) -> None:
    plain, model = deep_model(family), TargetModel(family, deep_model(family))
    plain.set_attn_implementation("eager")
    for skipped in ((1,), (1, 2), (0, 3)):
        engine = engine_of(SkippedLayers(model, skipped), model)
        session, tip = read(engine, PROMPT, sampling)
        (found,) = guess(engine, guess_item(session, tip, depth=3))
        assert max(len(each.path) for each in found) == 2
        for each in found:
            text = [tip, *each.path]
            logits = logits_without(plain, skipped, PROMPT, text)[-1]
            expected = rank(logits, sampling, len(PROMPT) + len(text) - 1, len(each.tokens))
            np.testing.assert_allclose(each.scores, expected.scores, atol=1e-3)


def test_a_list_of_layers_is_read_and_written() -> None:
    model = TargetModel("llama", deep_model("llama"))
    draft = skipped_layers("skip:3,0-1", model, VOCABULARY)
    assert draft.depth > 1
    assert numbered((3, 0, 1)) == "0-1,3"
    assert numbered((3, 5, 8, 9, 10, 11)) == "3,5,8-11"


REFUSED_LISTS = "skip skip: skip:a skip:0, skip:-1 skip:2-1 skip:0,0 skip:0,0-1 skip:2 skip:0-1"


@pytest.mark.parametrize("source", REFUSED_LISTS.split())
def test_other_lists_of_layers_are_refused(source: str) -> None:
    with wording.raises(UserError):
        skipped_layers(source, target("llama"), VOCABULARY)


@pytest.mark.parametrize("source", ["exit", "exit:x", "exit:0", "exit:3"])
def test_exits_that_a_target_has_not_are_refused(source: str) -> None:
    with wording.raises(UserError):
        first_layers(source, target("llama"), VOCABULARY)
