"""The engine chooses what the reference chooses, row by row, by either of its ways."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloud_verifier.core.engine_protocol import Ask, Offer, StepItem, StepPlan
from cloud_verifier.core.rules import decide
from cloud_verifier.engine.engine import TorchEngine, last_hidden
from cloud_verifier.engine.sampling import choice
from cloud_verifier.engine.sampling.choice import choose, choose_dense, gumbel, noise_bits, noise_keys
from cloud_verifier.engine.sampling.host import ChoiceRow, choice_rows, probabilities
from common import choice as reference
from common import noise
from common.acceptance import Acceptance, AcceptanceRule, quantised
from common.errors import LocalError
from common.sampling import SamplingParams
from schemes.rules.trained_judge import Judge
from tests import wording
from tests.cloud_verifier.engine.tiny import Session, Slots, ints, target

pytestmark = pytest.mark.torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Chooser = Callable[[Tensor, Sequence[ChoiceRow]], tuple[Tensor, Tensor]]
WAYS = [choose, choose_dense]

PROMPT = np.array([1, 2, 2, 5], np.int32)
GENERATED = np.array([5, 6, 6, 6, 0], np.int32)

MIXED = [
    SamplingParams(),
    SamplingParams(repetition_penalty=1.4),
    SamplingParams(logit_bias=((3, 4.0), (0, -9.0), (3, 1.0))),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.4, top_k=3),
    SamplingParams(temperature=1.0, top_k=1000),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=2.0, top_p=0.999),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.3, top_k=40, top_p=0.7, min_p=0.01),
    SamplingParams(temperature=1.0, top_k=200, top_p=0.9999),
    SamplingParams(temperature=0.9, top_p=0.8, presence_penalty=0.6, frequency_penalty=0.2),
    SamplingParams(temperature=1.0, repetition_penalty=0.8, logit_bias=((1, 2.0),)),
    SamplingParams(temperature=5e-324, min_p=0.5),
]


def rows_of(params: Sequence[SamplingParams]) -> list[ChoiceRow]:
    """One row of each, with a seed and a position of its own."""
    rows = []
    for index, one in enumerate(params):
        history = (PROMPT, GENERATED) if one.has_penalties else (None, None)
        rows.append(ChoiceRow(replace(one, seed=2**63 + 7 * index), 100 * index, *history))
    return rows


def make_rows(count: int) -> list[ChoiceRow]:
    """All of `MIXED` in turn."""
    return rows_of([MIXED[index % len(MIXED)] for index in range(count)])


def assert_like_the_reference(way: Chooser, logits: Tensor, rows: Sequence[ChoiceRow]) -> None:
    before = logits.clone()
    tokens, margins = way(logits, rows)
    assert (tokens.dtype, margins.dtype) == (torch.int64, torch.float32)
    assert tokens.device.type == margins.device.type == logits.device.type
    assert torch.equal(before, logits)
    for index, row in enumerate(rows):
        one = logits[index].cpu().numpy()
        expected = reference.choose(one, row.params, row.position, row.prompt, row.generated, row.allowed)
        assert (index, int(tokens[index])) == (index, expected.token)
        assert float(margins[index]) == pytest.approx(expected.margin, rel=1e-6, abs=1e-11)


def random_logits(rows: int, size: int, spread: float, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(rows * size)
    return (torch.randn(rows, size, generator=generator) * spread).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("size", "spread"), [(8, 1.0), (8, 0.0), (300, 3.0), (5000, 0.2), (5000, 8.0)])
def test_choices_equal_the_reference(way: Chooser, size: int, spread: float, device: str) -> None:
    """Flat and peaked rows; vocabularies smaller and larger than the front that filters sort first. Also
    under grammars, beside rows without one, and together with bias, penalties and filters."""
    rows = make_rows(4 * len(MIXED))
    logits = random_logits(len(rows), size, spread, device)
    assert_like_the_reference(way, logits, rows)
    assert_like_the_reference(way, logits, masked(rows, size))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("entries", [1, 20, choice.ENTRIES])
def test_rows_of_a_session_share_what_its_history_changes(
    way: Chooser, entries: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of several sessions, with a history kept from earlier steps and without one."""
    monkeypatch.setattr(choice, "ENTRIES", entries)
    rows = []
    for session, params in enumerate(MIXED):
        history = reference.History.of(params, PROMPT, GENERATED[: session % 4])
        for path in ([], [7], [7, 2], [6, 0, 6]):
            generated = np.append(GENERATED, np.array(path, np.int32))
            rows.append(ChoiceRow(params, 9, PROMPT, generated, history=history))
            rows.append(ChoiceRow(params, 9, PROMPT, generated))
    logits = random_logits(len(rows), 300, 2.0, device)
    logits[1::2] = logits[::2]
    assert_like_the_reference(way, logits, rows)


def masked(rows: Sequence[ChoiceRow], size: int) -> list[ChoiceRow]:
    """Three rows of four under a grammar: one token in two, few, or a single one."""
    chance = np.random.default_rng(size)
    shares = (None, 0.5, 2.0 / size, 0.0)
    found = []
    for index, row in enumerate(rows):
        share = shares[index % len(shares)]
        allowed = None if share is None else chance.random(size) < share
        if allowed is not None:
            allowed[index % size] = True
        found.append(replace(row, allowed=allowed))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_that_allows_nothing_or_has_another_size_is_a_defect(way: Chooser) -> None:
    for allowed in (np.zeros(4, np.bool_), np.ones(3, np.bool_)):
        with wording.raises(LocalError):
            way(torch.zeros(1, 4), [ChoiceRow(SamplingParams(temperature=1.0), 0, allowed=allowed)])


@pytest.mark.parametrize("device", DEVICES)
def test_choices_equal_the_reference_on_a_whole_vocabulary(device: str) -> None:
    rows = make_rows(len(MIXED))
    assert_like_the_reference(choose_dense, random_logits(len(rows), 131072, 3.0, device), rows)


@pytest.mark.parametrize("front", [1, 2, 7, 64])
def test_filters_beyond_the_front_sort_everything(front: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "FRONT", front)
    rows = make_rows(4 * len(MIXED))
    for spread in (0.0, 0.5, 4.0):
        logits = random_logits(len(rows), 90, spread)
        assert_like_the_reference(choose_dense, (logits * 2).round() / 2, rows)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(2 * len(MIXED))
    logits = random_logits(len(rows), 50, 2.0)
    whole = choose_dense(logits, rows)
    for chunk in (1, 50, 350):
        monkeypatch.setattr(choice, "CHUNK", chunk)
        parts = choose_dense(logits, rows)
        assert torch.equal(whole[0], parts[0])
        assert torch.equal(whole[1], parts[1])


VALUES = st.sampled_from([0.0, 0.5, 1.0, -2.0, 40.0, 3e38, -3e38, -math.inf])


@settings(deadline=None, max_examples=150)
@given(
    st.lists(VALUES, min_size=7, max_size=40).filter(lambda row: max(row) > -math.inf),
    st.sampled_from(MIXED),
    st.integers(0, 2**31 - 2),
    st.integers(1, 50),
)
def test_ties_and_extremes_equal_the_reference(
    values: list[float], params: SamplingParams, position: int, front: int
) -> None:
    history = (PROMPT, GENERATED) if params.has_penalties else (None, None)
    rows = [ChoiceRow(params, position, *history)] * 2
    logits = torch.tensor([values, values])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "FRONT", front)
        for way in WAYS:
            assert_like_the_reference(way, logits, rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [3, 33, 4097, 131072])
def test_greedy_takes_the_lowest_of_equals(way: Chooser, size: int, device: str) -> None:
    """bfloat16 models tie often. Equal bests all over the row, at its ends, and everywhere."""
    places = [[0, size - 1], [size // 2, size - 1], list(range(size)), [size - 2, size - 1], [size - 1]]
    logits = torch.zeros(len(places), size, device=device)
    for index, tied in enumerate(places):
        logits[index, tied] = 1.0
    tokens, margins = way(logits, [ChoiceRow(SamplingParams(), 0)] * len(places))
    assert tokens.tolist() == [tied[0] for tied in places]
    assert margins.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("way", WAYS)
def test_no_rows_give_no_choices(way: Chooser) -> None:
    tokens, margins = way(torch.empty(0, 5), [])
    assert (tokens.shape, tokens.dtype) == ((0,), torch.int64)
    assert (margins.shape, margins.dtype) == ((0,), torch.float32)


@pytest.mark.parametrize("way", WAYS)
def test_a_vocabulary_of_one_is_ahead_by_infinity(way: Chooser) -> None:
    rows = [ChoiceRow(SamplingParams(), 0), ChoiceRow(SamplingParams(temperature=1.0, top_p=0.5), 0)]
    tokens, margins = way(torch.zeros(2, 1), rows)
    assert tokens.tolist() == [0, 0]
    assert margins.tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("way", WAYS)
def test_padding_changes_nothing(way: Chooser) -> None:
    rows = make_rows(2 * len(MIXED))
    logits = random_logits(len(rows), 60, 2.0)
    padded = torch.cat([logits, torch.full((len(rows), 9), -torch.inf)], dim=1)
    for plain, wide in zip(way(logits, rows), way(padded, rows), strict=True):
        assert torch.equal(plain, wide)


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_wider_tensor_are_chosen_from_in_place(way: Chooser) -> None:
    """An engine slices the model's padding off: the rows are then not contiguous."""
    rows = make_rows(len(MIXED))
    assert_like_the_reference(way, random_logits(len(rows), 64, 2.0)[:, :50], rows)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_broken_logits_are_an_error_that_says_so(way: Chooser, bad: float) -> None:
    """nan and inf anywhere, or a row of nothing but -inf; with bias and without."""
    for params, index in itertools.product((MIXED[0], MIXED[2], MIXED[3], MIXED[6]), range(2)):
        logits = torch.zeros(2, 9)
        logits[index, 4:5] = bad
        logits[index] = logits[index] if bad != -math.inf else torch.full((9,), bad)
        with wording.raises(LocalError):
            way(logits, [ChoiceRow(params, 0)] * 2)


@pytest.mark.parametrize("way", WAYS)
def test_misshapen_logits_are_errors(way: Chooser) -> None:
    row = ChoiceRow(SamplingParams(), 0)
    half = torch.zeros(1, 3, dtype=torch.bfloat16)
    for logits in (torch.zeros(3), torch.zeros(2, 3), torch.zeros(1, 0), half):
        with wording.raises(LocalError):
            way(logits, [row])


@pytest.mark.parametrize("way", WAYS)
def test_penalties_demand_their_tokens(way: Chooser) -> None:
    with wording.raises(LocalError):
        way(torch.zeros(1, 9), [ChoiceRow(SamplingParams(presence_penalty=1.0), 0)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [1e-39, 1e-300, 5e-324])
def test_no_temperature_that_is_allowed_breaks_a_step(way: Chooser, temperature: float) -> None:
    """A margin beyond float32 is infinite; torch would refuse it, and with it the step of all sessions."""
    logits = torch.tensor([[0.0, 2.0, 1.0, -3.0]])
    for params in (SamplingParams(temperature=temperature), SamplingParams(temperature=temperature, top_k=3)):
        choices, margins = way(logits, [ChoiceRow(params, 4)])
        assert choices.tolist() == [1]
        assert not torch.isnan(margins).any()


# torch's noise has numpy's bits, on every device.

CPU = torch.device("cpu")

ROWS = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=4)
TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)


@given(ROWS, TOKENS)
def test_bits_are_equal(rows: list[tuple[int, int]], tokens: list[int]) -> None:
    keys = noise_keys([seed for seed, _ in rows], [position for _, position in rows], CPU)
    bits = noise_bits(keys.unsqueeze(1), torch.tensor(tokens))
    assert bits.shape == (len(rows), len(tokens))
    for row, (seed, position) in zip(bits.numpy().view(np.uint64), rows, strict=True):
        assert row.tolist() == noise.noise_bits(seed, position, np.array(tokens)).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_a_vocabulary_of_noise_is_equal_but_for_the_logarithms(device: str) -> None:
    """Bits exactly; noise to a few units in the last place of the logarithm's argument."""
    seeds, positions, size = [0, 2**64 - 1, 5], [0, 2**31 - 1, 77], 2**17
    keys = noise_keys(seeds, positions, torch.device(device)).unsqueeze(1)
    tokens = torch.arange(size, device=device)
    bits, values = noise_bits(keys, tokens).cpu().numpy(), gumbel(keys, tokens).cpu().numpy()
    for index, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        expected = noise.noise_bits(seed, position, np.arange(size))
        np.testing.assert_array_equal(bits[index].view(np.uint64), expected)
        np.testing.assert_allclose(values[index], noise.gumbel_of_bits(expected), rtol=1e-13, atol=1e-14)


def test_the_arguments_are_left_alone() -> None:
    keys, tokens = noise_keys([1], [2], CPU), torch.arange(5)
    before = keys.clone()
    gumbel(keys, tokens)
    assert torch.equal(keys, before)
    assert tokens.tolist() == [0, 1, 2, 3, 4]


# The engine hands a rule the law of the very logits that its own choices are made of.

HOT = SamplingParams(temperature=1.3, top_p=0.9, seed=5)


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return TorchEngine(target("llama"), 128)


def session(key: int, sampling: SamplingParams = HOT) -> Session:
    return Session(key, Slots(64), sampling)


def tree(acceptance: Acceptance, sampling: SamplingParams = HOT) -> StepItem:
    """A tip with two children, the first of which has one."""
    item = session(1, sampling).item([5, 9, 6, 7], [-1, 0, 0, 1], range(4))
    draft = quantised([6, 7, 9], [0.0, 0.5, 1.0])
    offers = (Offer((9, 6), draft), Offer((7,), draft), Offer(), Offer())
    judge = Judge((0.0,) * 4, (1.0,) * 4, (0.0, 0.0, 0.0, 1.0), -1.0, threshold=0.5)  # rank 1 or 2
    return replace(item, ask=Ask(acceptance, offers, judge))


@pytest.mark.parametrize(
    "rule", [rule for rule in AcceptanceRule if rule.value > 1], ids=lambda rule: rule.title
)
@pytest.mark.parametrize("sampling", [HOT, replace(HOT, presence_penalty=1.0, top_k=40), SamplingParams()])
def test_choices_are_those_of_the_rule_on_the_engines_own_logits(
    engine: TorchEngine, rule: AcceptanceRule, sampling: SamplingParams
) -> None:
    item = tree(Acceptance(rule), sampling)
    if sampling.has_penalties:
        item = replace(item, prompt=ints([]), generated=ints([]))
    coupled = engine.evaluate(StepPlan((replace(item, ask=None),))).choices[0]
    logits = engine.logits(StepPlan((item,))).numpy()
    rows = choice_rows(item)
    expected = decide(item, coupled, lambda row: probabilities(logits[row], rows[row]))
    result = engine.evaluate(StepPlan((item,)))
    assert result.choices[0].tolist() == expected.tolist()
    assert result.choices[0].dtype == np.int32
    assert np.isinf(result.margins[0]).all()


def test_sessions_beside_one_with_a_rule_choose_as_ever(engine: TorchEngine) -> None:
    plain, other = session(2).chunk([1, 2, 3], [0, 2]), session(3).chunk([4, 5])
    alone = engine.evaluate(StepPlan((plain,)))
    asking = replace(tree(Acceptance(AcceptanceRule.BLOCK)), slots=np.array([60, 61, 62, 63], np.int32))
    plain = replace(plain, slots=np.array([70, 71, 72], np.int32))
    other = replace(other, slots=np.array([80, 81], np.int32))
    mixed = engine.evaluate(StepPlan((other, plain, asking)))
    assert mixed.choices[1].tolist() == alone.choices[0].tolist()
    np.testing.assert_allclose(mixed.margins[1], alone.margins[0], rtol=1e-5)
    assert len(mixed.choices[0]) == 0


def test_probabilities_are_those_that_the_grammar_and_the_parameters_leave() -> None:
    logits, allowed = np.array([2.0, 1.0, 0.0], np.float32), np.array([False, True, True])
    law = probabilities(logits, ChoiceRow(SamplingParams(temperature=1.0), 4, allowed=allowed))
    assert law == pytest.approx([0.0, 1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(1.0))])
    law = probabilities(logits, ChoiceRow(SamplingParams(temperature=2.0, top_k=2), 4))
    assert law == pytest.approx([1 / (1 + np.exp(-0.5)), 1 / (1 + np.exp(0.5)), 0.0])


def test_a_judge_reads_the_hidden_state_of_the_draft_token_on_the_text_before_it(engine: TorchEngine) -> None:
    """As transformers alone computes it; the child passes where one number of it is below a threshold."""
    with torch.inference_mode(), engine.model.plain(), last_hidden(engine.model) as found:
        engine.model.plain_logits([5, 9], 1)
    hidden = found[0][0, -1].double().numpy()
    item = tree(Acceptance(AcceptanceRule.JUDGE), SamplingParams())
    assert item.ask is not None
    own = int(engine.evaluate(StepPlan((replace(item, ask=None),))).choices[0][0])
    assert own not in (9, 6), "a mismatch"
    size = len(hidden)
    for place in range(0, size, 7):
        weights = tuple(float(at == 4 + place) for at in range(4 + size))
        for above, taken in ((1e-3, 9), (-1e-3, own)):
            judge = Judge((0.0,) * (4 + size), (1.0,) * (4 + size), weights, -hidden[place] - above, 0.5)
            asked = replace(item, ask=replace(item.ask, offers=(Offer((9,)), *(Offer(),) * 3), judge=judge))
            beside = session(2).item([8], [-1], range(1))  # rows of others come first
            plan = StepPlan((replace(beside, slots=ints([70])), asked))
            assert engine.evaluate(plan).choices[1][0] == taken
