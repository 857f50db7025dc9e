"""The host and the kernels choose what the reference chooses, row by row."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloud_verifier.core.engine_protocol import FloatArray, IntArray
from cloud_verifier.engine.sampling import choice_kernels, device_rows
from cloud_verifier.engine.sampling.device_choice import ChoiceTable, choose_eagerly, finish
from cloud_verifier.engine.sampling.host_choice import ChoiceRow, choose_on_host
from common import choice as reference
from common import noise
from common.errors import LocalError
from common.sampling import SamplingParams
from tests import wording
from tests.cloud_verifier.engine.sampling.sampling_rig import (
    GENERATED,
    MIXED,
    PROMPT,
    masked,
    random_logits,
    rows_of,
)
from tests.cloud_verifier.engine.triton_rig import device_for_kernels

pytestmark = pytest.mark.triton

Chooser = Callable[[Tensor, Sequence[ChoiceRow]], tuple[IntArray, FloatArray]]


def host(logits: Tensor, rows: Sequence[ChoiceRow]) -> tuple[IntArray, FloatArray]:
    return choose_on_host(logits.numpy(), rows)


def kernels(logits: Tensor, rows: Sequence[ChoiceRow]) -> tuple[IntArray, FloatArray]:
    there, table = logits.to(device_for_kernels()), ChoiceTable.of(rows)
    return finish(there, choose_eagerly(there, table), table)


WAYS = [host, kernels]
USUAL = MIXED[:-1]
"""Without a temperature of 5e-324, which numpy warns of where it interprets kernels."""


def assert_like_the_reference(way: Chooser, logits: Tensor, rows: Sequence[ChoiceRow]) -> None:
    before = logits.clone()
    tokens, margins = way(logits, rows)
    assert [tokens.dtype, margins.dtype] == [np.dtype(np.int32), np.dtype(np.float32)]
    assert torch.equal(before, logits)
    for index, row in enumerate(rows):
        one = logits[index].numpy()
        expected = reference.choose(one, row.params, row.position, row.prompt, row.generated, row.allowed)
        assert (index, int(tokens[index])) == (index, expected.token)
        assert float(margins[index]) == pytest.approx(expected.margin, rel=1e-6, abs=1e-11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("size", "spread"), [(8, 1.0), (2049, 8.0)])
def test_choices_equal_the_reference(way: Chooser, size: int, spread: float) -> None:
    """A vocabulary within one block of the kernels, and one over several, some of whose rows are under
    grammars, together with bias, penalties and filters."""
    rows = rows_of([*USUAL, SamplingParams(temperature=0.3)])
    logits = random_logits(len(rows), size, spread)
    assert_like_the_reference(way, logits, rows if size == 8 else masked(rows, size))


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_session_share_what_its_history_changes(
    way: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of several sessions, with a history kept from earlier steps and without one."""
    monkeypatch.setattr(device_rows, "ENTRIES", 20)  # of the device's table; more come in several parts
    rows = []
    for session, params in enumerate(each for each in USUAL if each.logit_bias or each.has_penalties):
        history = reference.History.of(params, PROMPT, GENERATED[: session % 4])
        for path in ([], [6, 0, 6]):
            generated = np.append(GENERATED, np.array(path, np.int32))
            rows.append(ChoiceRow(params, 9, PROMPT, generated, history=history))
            rows.append(ChoiceRow(params, 9, PROMPT, generated))
    logits = random_logits(len(rows), 60, 2.0)
    logits[1::2] = logits[::2]
    assert_like_the_reference(way, logits, rows)


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_that_allows_nothing_or_has_another_size_is_a_defect(way: Chooser) -> None:
    for allowed in (np.zeros(4, np.bool_), np.ones(3, np.bool_)):
        params = SamplingParams(temperature=1.0, grammar="told by the mask")
        with wording.raises(LocalError):
            way(torch.zeros(1, 4), [ChoiceRow(params, 0, allowed=allowed)])


@pytest.mark.parametrize("way", WAYS)
def test_penalties_demand_their_tokens(way: Chooser) -> None:
    with wording.raises(LocalError):
        way(torch.zeros(1, 9), [ChoiceRow(SamplingParams(presence_penalty=1.0), 0)])


def test_no_temperature_that_is_allowed_breaks_a_step() -> None:
    """A margin beyond float32 is infinite."""
    rows = rows_of([SamplingParams(temperature=heat, top_k=3) for heat in (1e-39, 1e-300, 5e-324)])
    choices, margins = host(torch.tensor([[0.0, 2.0, 1.0, -3.0]] * 3), rows)
    assert choices.tolist() == [1, 1, 1]
    assert not np.isnan(margins).any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("places", [[2047, 2048], [4999]])
def test_greedy_takes_the_lowest_of_equals(way: Chooser, places: list[int]) -> None:
    logits = torch.zeros(1, 5000)
    logits[0, places] = 1.0
    tokens, margins = way(logits, rows_of([SamplingParams()]))
    assert tokens.tolist() == [places[0]]
    assert margins.tolist() == [0.0 if len(places) > 1 else 1.0]


@pytest.mark.parametrize("way", WAYS)
def test_a_vocabulary_of_one_is_ahead_by_infinity(way: Chooser) -> None:
    rows = rows_of([SamplingParams(), SamplingParams(temperature=1.0, top_p=0.5)])
    tokens, margins = way(torch.zeros(2, 1), rows)
    assert tokens.tolist() == [0, 0]
    assert margins.tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("way", WAYS)
def test_forbidden_tokens_are_never_chosen(way: Chooser) -> None:
    rows = rows_of([SamplingParams(), SamplingParams(temperature=3.0)] * 3)
    logits = torch.full((len(rows), 2500), -torch.inf)
    logits[:, 2400:2402] = torch.tensor([0.5, -0.5])
    assert_like_the_reference(way, logits, rows)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's on inf - inf and nan; a GPU has none
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_broken_logits_are_errors(way: Chooser, bad: float) -> None:
    """nan and inf anywhere, or a row of nothing but -inf; with bias and without."""
    for params in (MIXED[0], MIXED[2], MIXED[3], MIXED[6]):
        logits = torch.zeros(2, 9)
        logits[1, 4:5] = bad
        logits[1] = logits[1] if bad != -math.inf else torch.full((9,), bad)
        with wording.raises(LocalError):
            way(logits, rows_of([SamplingParams(), params]))


# The kernels' own edges.

WHOLE = {
    4.0: [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
        SamplingParams(temperature=0.6, top_p=0.9),
    ],
    0.5: [SamplingParams(temperature=1.5, top_k=6_000, top_p=0.9, min_p=1e-4)],
}


@pytest.mark.parametrize("spread", WHOLE)
def test_a_vocabulary_of_many_blocks(spread: float) -> None:
    """Nuclei of a few tokens, and one of nearly all."""
    rows = rows_of(WHOLE[spread])
    assert_like_the_reference(kernels, random_logits(len(rows), 7_000, spread), rows)


TIED = st.sampled_from([0.0, -0.0, 0.5, 1.0, -2.0, 1e-30, 2e-30, 3e38, -3e38, -math.inf])
FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-3, 0.6, 1.0, 100.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.01, 0.5, 0.75, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-9, 0.3, 1.0]),
)


@pytest.mark.filterwarnings("ignore:overflow")  # numpy's, where differences of float32 are infinite
@settings(deadline=None, max_examples=2)
@given(st.lists(st.tuples(st.lists(TIED, min_size=9, max_size=9), FILTERS), min_size=4, max_size=4))
def test_ties_at_the_edge_of_a_filter_are_kept_by_id(cases: list[tuple[list[float], SamplingParams]]) -> None:
    """Also of logits that differ, while rounding makes their scores equal."""
    kept = [(values, params) for values, params in cases if max(values) > -math.inf]
    if kept:
        logits = torch.tensor([values for values, _ in kept])
        assert_like_the_reference(kernels, logits, rows_of([params for _, params in kept]))


@pytest.mark.parametrize("top_k", [2047, 2049])
def test_equal_logits_are_kept_from_the_lowest_id(top_k: int) -> None:
    """Over several blocks, of which only the first ones have tokens that are kept."""
    logits = torch.zeros(2, 5000)
    logits[1, 4999] = 1.0  # first of all, and last by id
    rows = rows_of([SamplingParams(temperature=heat, top_k=top_k) for heat in (1.0, 9.0)])
    assert_like_the_reference(kernels, logits, rows)


# Noise in float32 decides nothing that float64 decides otherwise.


def test_the_bound_of_rough_scores_holds_for_all_noise() -> None:
    """Over the whole range of noise, dense where its formula changes, and at its ends."""
    cells = 2**noise.UNIFORM_BITS
    chance = np.random.default_rng(1)
    bits = np.concatenate([
        np.arange(3000), cells - 1 - np.arange(3000), (2.0 ** (52 * chance.random(6000))).astype(np.int64),
        cells - 1 - (2.0 ** (52 * chance.random(6000))).astype(np.int64),
        (cells * (1 - 1 / 32) + chance.integers(-(2**30), 2**30, 3000)).astype(np.int64),
    ])  # fmt: skip
    rough = rough_noise(bits)
    exact = noise.gumbel_of_bits(bits.astype(np.uint64) << np.uint64(64 - noise.UNIFORM_BITS))
    assert np.abs(rough - exact).max() < choice_kernels._DOUBT.value / 2


def rough_noise(bits: IntArray) -> FloatArray:
    """The noise of `_rough_scores`, of these upper bits."""
    device, size = device_for_kernels(), 1 << (len(bits) - 1).bit_length()
    given = torch.from_numpy(np.resize(bits, size)).to(device)
    out = torch.empty(size, dtype=torch.float32, device=device)
    noise_alone[(1,)](given, out, SIZE=size)
    return out.cpu().numpy()[: len(bits)].astype(np.float64)


@triton.jit  # type: ignore[untyped-decorator]
def noise_alone(bits: Tensor, out: Tensor, SIZE: tl.constexpr) -> None:
    at = tl.arange(0, SIZE)
    tl.store(out + at, choice_kernels._rough_noise(tl.load(bits + at)))


def test_rows_of_noise_choose_as_the_reference() -> None:
    """Many rows, so that some blocks have three tokens closer than the bound."""
    rows = [ChoiceRow(SamplingParams(temperature=1.0, seed=seed), seed) for seed in range(60)]
    logits = (random_logits(1, 300, 0.5) * 4).round() / 4
    assert_like_the_reference(kernels, logits.expand(60, -1).contiguous(), rows)


def test_where_everything_is_in_doubt_the_choices_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks are then computed in float64."""
    monkeypatch.setattr(choice_kernels, "_DOUBT", tl.constexpr(1e3))
    rows = rows_of(USUAL[3:7])
    assert_like_the_reference(kernels, random_logits(len(rows), 2049, 2.0), rows)
