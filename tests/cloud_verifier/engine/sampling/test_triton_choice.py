"""The choice kernels choose what the dense torch way chooses, which equals the reference (`test_choice`)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloud_verifier.core.engine_protocol import FloatArray, IntArray
from cloud_verifier.engine.sampling import triton_kernels
from cloud_verifier.engine.sampling.choice import choose_dense
from cloud_verifier.engine.sampling.device_choice import ChoiceTable, choose_eagerly, finish
from cloud_verifier.engine.sampling.host import ChoiceRow
from common import choice as reference
from common import noise
from common.errors import LocalError
from common.sampling import SamplingParams
from tests import wording
from tests.cloud_verifier.engine.sampling.test_choice import GENERATED, MIXED, PROMPT, random_logits, rows_of
from tests.cloud_verifier.engine.triton_rig import device_for_kernels

pytestmark = pytest.mark.triton

PLAIN = [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.3)]
OTHERS = [params for params in MIXED[:-1] if params not in PLAIN]


def chosen(logits: Tensor, rows: list[ChoiceRow]) -> tuple[IntArray, FloatArray]:
    """Choices and margins as an engine makes them where the logits are."""
    on_device, table = logits.to(device_for_kernels()), ChoiceTable.of(rows)
    return finish(on_device, choose_eagerly(on_device, table), table)


def assert_like_torch(logits: Tensor, rows: list[ChoiceRow]) -> None:
    before = logits.clone()
    tokens, margins = chosen(logits, rows)
    assert [tokens.dtype, margins.dtype] == [np.dtype(np.int32), np.dtype(np.float32)]
    assert logits.equal(before)
    expected_tokens, expected_margins = choose_dense(logits, rows)
    assert tokens.tolist() == expected_tokens.tolist()
    np.testing.assert_allclose(margins, expected_margins.numpy(), rtol=1e-6, atol=1e-11)


@pytest.mark.parametrize(("size", "spread"), [(8, 1.0), (300, 0.0), (2049, 8.0), (5000, 0.2)])
def test_choices_equal_those_of_torch(size: int, spread: float) -> None:
    """Vocabularies within one block and over several, flat and peaked."""
    rows = rows_of([*PLAIN, *OTHERS])
    assert_like_torch(random_logits(len(rows), size, spread), rows)


@pytest.mark.parametrize(("size", "spread"), [(8, 1.0), (2049, 8.0), (5000, 0.2)])
def test_choices_under_grammars_equal_those_of_torch(size: int, spread: float) -> None:
    """Greedy rows too; some masks leave a single token."""
    params = [dataclasses.replace(one, grammar="told by the mask") for one in (*PLAIN, *OTHERS)]
    masks = np.random.default_rng(size).random((len(params), size)) < 0.3
    masks[::3] = False
    masks[:, size // 2] = True
    rows = [
        dataclasses.replace(row, prompt=PROMPT, generated=GENERATED, allowed=mask)
        for row, mask in zip(rows_of(params), masks, strict=True)
    ]
    assert_like_torch(random_logits(len(rows), size, spread), rows)


WHOLE = {
    4.0: [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
        SamplingParams(temperature=0.6, top_p=0.9),
    ],
    0.5: [SamplingParams(temperature=1.5, top_k=140_000, top_p=0.9, min_p=1e-4)],
}


@pytest.mark.parametrize("spread", WHOLE)
def test_a_whole_vocabulary(spread: float) -> None:
    """Of Qwen: nuclei of a few tokens, and one of nearly all."""
    rows = rows_of(WHOLE[spread])
    assert_like_the_reference(random_logits(len(rows), 151_936, spread), rows)


TIED = st.sampled_from([0.0, -0.0, 0.5, 1.0, -2.0, 1e-30, 2e-30, 3e38, -3e38, -math.inf])
FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-3, 0.6, 1.0, 100.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.01, 0.5, 0.75, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-9, 0.3, 1.0]),
)


@pytest.mark.filterwarnings("ignore:overflow")  # numpy's, where differences of float32 are infinite
@settings(deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.lists(TIED, min_size=9, max_size=9), FILTERS), min_size=4, max_size=4))
def test_ties_at_the_edge_of_a_filter_are_kept_by_id(cases: list[tuple[list[float], SamplingParams]]) -> None:
    """Also of logits that differ, while rounding makes their scores equal."""
    kept = [(values, params) for values, params in cases if max(values) > -math.inf]
    if kept:
        logits = torch.tensor([values for values, _ in kept])
        assert_like_the_reference(logits, rows_of([params for _, params in kept]))


@pytest.mark.parametrize("top_k", [1, 100, 2047, 2048, 2049, 5000])
def test_equal_logits_are_kept_from_the_lowest_id(top_k: int) -> None:
    """Over several blocks, of which only the first ones have tokens that are kept."""
    logits = torch.zeros(2, 5000)
    logits[1, 4999] = 1.0  # first of all, and last by id
    rows = rows_of(
        [SamplingParams(temperature=1.0, top_k=top_k), SamplingParams(temperature=9.0, top_k=top_k)]
    )
    assert_like_the_reference(logits, rows)


def assert_like_the_reference(logits: Tensor, rows: list[ChoiceRow]) -> None:
    tokens, margins = chosen(logits, rows)
    for index, row in enumerate(rows):
        expected = reference.choose(logits[index].numpy(), row.params, row.position)
        assert int(tokens[index]) == expected.token
        assert float(margins[index]) == pytest.approx(expected.margin, rel=1e-6, abs=1e-11)


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
    assert np.abs(rough - exact).max() < triton_kernels._DOUBT.value / 2


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
    tl.store(out + at, triton_kernels._rough_noise(tl.load(bits + at)))


def test_rows_of_noise_choose_as_the_reference() -> None:
    """Many rows, so that some blocks have three tokens closer than the bound."""
    rows = [ChoiceRow(SamplingParams(temperature=1.0, seed=seed), seed) for seed in range(200)]
    logits = (random_logits(1, 300, 0.5) * 4).round() / 4
    assert_like_the_reference(logits.expand(200, -1).contiguous(), rows)


def test_where_everything_is_in_doubt_the_choices_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks are then computed in float64."""
    monkeypatch.setattr(triton_kernels, "_DOUBT", tl.constexpr(1e3))
    rows = rows_of([*PLAIN, *OTHERS])
    assert_like_torch(random_logits(len(rows), 2049, 2.0), rows)


@pytest.mark.parametrize("places", [[0, 4999], [2047, 2048], [4998, 4999], [4999]])
def test_greedy_takes_the_lowest_of_equals(places: list[int]) -> None:
    logits = torch.zeros(1, 5000)
    logits[0, places] = 1.0
    tokens, margins = chosen(logits, rows_of([SamplingParams()]))
    assert tokens.tolist() == [places[0]]
    assert margins.tolist() == [0.0 if len(places) > 1 else 1.0]


def test_a_vocabulary_of_one_is_ahead_by_infinity() -> None:
    rows = rows_of([*PLAIN, SamplingParams(temperature=1.0, top_p=0.5)])
    tokens, margins = chosen(torch.zeros(len(rows), 1), rows)
    assert tokens.tolist() == [0] * len(rows)
    assert margins.tolist() == [math.inf] * len(rows)


def test_forbidden_tokens_are_never_chosen() -> None:
    rows = rows_of([SamplingParams(), SamplingParams(temperature=3.0)] * 3)
    logits = torch.full((len(rows), 2500), -torch.inf)
    logits[:, 2400:2402] = torch.tensor([0.5, -0.5])
    assert_like_torch(logits, rows)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's on inf - inf and nan; a GPU has none
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_broken_logits_are_an_error_that_says_so(bad: float) -> None:
    for params in (
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(logit_bias=((3, 4.0),)),
        SamplingParams(temperature=1.0, top_p=0.9),
    ):
        logits = torch.zeros(2, 9)
        logits[1, 4:5] = bad
        logits[1] = logits[1] if bad != -math.inf else torch.full((9,), bad)
        with wording.raises(LocalError):
            chosen(logits, rows_of([SamplingParams(), params]))
