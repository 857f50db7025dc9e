"""The engine chooses what the reference chooses, row by row, by either of its ways."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloud_verifier.engine import choice
from cloud_verifier.engine.choice import ChoiceRow, choose, choose_dense
from common import choice as reference
from common.errors import LocalError
from common.sampling import SamplingParams

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


def make_rows(count: int) -> list[ChoiceRow]:
    """All of `MIXED` in turn, each row with its own seed and position."""
    rows = []
    for index in range(count):
        params = MIXED[index % len(MIXED)]
        keyed = dataclasses.replace(params, seed=2**63 + 7 * index)
        history = (PROMPT, GENERATED) if params.has_penalties else (None, None)
        rows.append(ChoiceRow(keyed, 100 * index, *history))
    return rows


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
    """Flat and peaked rows; vocabularies smaller and larger than the front that filters sort first."""
    rows = make_rows(3 * len(MIXED))
    assert_like_the_reference(way, random_logits(len(rows), size, spread, device), rows)


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
        found.append(dataclasses.replace(row, allowed=allowed))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("size", "spread"), [(8, 1.0), (300, 3.0), (5000, 0.2), (5000, 8.0)])
def test_choices_under_grammars_equal_the_reference(
    way: Chooser, size: int, spread: float, device: str
) -> None:
    """Beside rows without one, and together with bias, penalties and filters."""
    rows = masked(make_rows(4 * len(MIXED)), size)
    assert_like_the_reference(way, random_logits(len(rows), size, spread, device), rows)


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_that_allows_nothing_or_has_another_size_is_a_defect(way: Chooser) -> None:
    for allowed in (np.zeros(4, np.bool_), np.ones(3, np.bool_)):
        with pytest.raises(LocalError, match="mask of a row"):
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
    assert (tokens.shape, tokens.dtype, margins.shape, margins.dtype) == (
        (0,),
        torch.int64,
        (0,),
        torch.float32,
    )


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
        with pytest.raises(LocalError, match="weights or its arithmetic"):
            way(logits, [ChoiceRow(params, 0)] * 2)


@pytest.mark.parametrize("way", WAYS)
def test_misshapen_logits_are_errors(way: Chooser) -> None:
    row = ChoiceRow(SamplingParams(), 0)
    for logits in (
        torch.zeros(3),
        torch.zeros(2, 3),
        torch.zeros(1, 0),
        torch.zeros(1, 3, dtype=torch.bfloat16),
    ):
        with pytest.raises(LocalError, match=r"shape \[1, V\]"):
            way(logits, [row])


@pytest.mark.parametrize("way", WAYS)
def test_penalties_demand_their_tokens(way: Chooser) -> None:
    with pytest.raises(LocalError, match="prompt and generated"):
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
