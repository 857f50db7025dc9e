"""The choice kernels choose what the dense torch way chooses, which equals the reference (`test_choice`)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cloud_verifier.core.nouns import FloatArray, IntArray
from cloud_verifier.engine.sampling import choice
from cloud_verifier.engine.sampling.choice import choose_dense
from cloud_verifier.engine.sampling.device_choice import (
    ChoiceTable,
    best_of,
    choose_plain,
    finish,
    needs_more,
    total_weights,
)
from cloud_verifier.engine.sampling.host import ChoiceRow
from common.choice import WEIGHT_UNIT
from common.errors import LocalError
from common.noise import noise_keys
from common.sampling import SamplingParams
from tests import wording
from tests.cloud_verifier.engine.sampling.test_choice import GENERATED, MIXED, PROMPT, random_logits, rows_of
from tests.cloud_verifier.engine.triton_rig import device_for_kernels

pytestmark = pytest.mark.triton

PLAIN = [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.3)]
LATE = [params for params in MIXED[:-1] if needs_more(params)]


def chosen(logits: Tensor, rows: list[ChoiceRow]) -> tuple[IntArray, FloatArray]:
    """Choices and margins as an engine makes them where the logits are."""
    device = device_for_kernels()
    late = tuple(index for index, row in enumerate(rows) if needs_more(row.params))
    temperatures = np.array([0.0 if i in late else row.params.temperature for i, row in enumerate(rows)])
    seeds = np.array([row.params.seed for row in rows], np.uint64)
    keys = noise_keys(seeds, np.array([row.position + 1 for row in rows])).view(np.int64)
    table = ChoiceTable(temperatures, keys, late, tuple(rows[index] for index in late))
    out = torch.empty((2, len(rows)), dtype=torch.int32, device=device)
    on_device = logits.to(device)
    choose_plain(on_device, torch.from_numpy(temperatures).to(device), torch.from_numpy(keys).to(device), out)
    return finish(on_device, out, table)


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
    rows = rows_of([*PLAIN, *LATE])
    assert_like_torch(random_logits(len(rows), size, spread), rows)


@pytest.mark.parametrize(("size", "spread"), [(8, 1.0), (2049, 8.0), (5000, 0.2)])
def test_choices_under_grammars_equal_those_of_torch(size: int, spread: float) -> None:
    """Greedy rows too; some masks leave a single token."""
    params = [dataclasses.replace(one, grammar="told by the mask") for one in (*PLAIN, *LATE)]
    masks = np.random.default_rng(size).random((len(params), size)) < 0.3
    masks[::3] = False
    masks[:, size // 2] = True
    rows = [
        dataclasses.replace(row, prompt=PROMPT, generated=GENERATED, allowed=mask)
        for row, mask in zip(rows_of(params), masks, strict=True)
    ]
    assert_like_torch(random_logits(len(rows), size, spread), rows)


@pytest.mark.parametrize("front", [1, 7])
def test_filters_beyond_the_front_are_settled(front: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "FRONT", front)
    rows = rows_of([*LATE, *PLAIN])
    assert_like_torch((random_logits(len(rows), 90, 4.0) * 2).round() / 2, rows)


def test_a_whole_vocabulary() -> None:
    rows = rows_of([SamplingParams(temperature=0.7), SamplingParams(temperature=1.0, top_p=0.95)])
    assert_like_torch(random_logits(2, 40_000, 3.0), rows)


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


def test_weights_sum_to_the_same_integer_in_any_order() -> None:
    device = device_for_kernels()
    logits = random_logits(3, 5000, 2.0)
    temperatures = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    scaled = (logits.double() - logits.double().amax(1, keepdim=True)) / temperatures[:, None]
    expected = (scaled.exp() * WEIGHT_UNIT).round().long().sum(1)
    on_device = logits.to(device)
    found = total_weights(on_device, temperatures.to(device), best_of(on_device)[0])[:, 0].cpu()
    assert (found - expected).abs().max() <= (0 if device.type == "cpu" else 5000)  # exp may differ by a bit
