"""The backends of torch equal the definition of attention, for any mix of sessions, trees and terms."""

import pytest
import torch

from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms
from cloud_verifier.engine.attention.torch_ref import (
    PADDING_FACTOR,
    PADDING_SLACK,
    TorchRefBackend,
    make_spans,
    partition,
)
from cloud_verifier.engine.deterministic.exact_engine import ExactBackend
from tests.cloud_verifier.engine.attention_definition import attention_by_definition
from tests.cloud_verifier.engine.attention_rig import SHAPES, TERMS, layer, packed, query_for, terms_of

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("backend", [TorchRefBackend(), ExactBackend()], ids=["reference", "exact"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("terms", TERMS)
def test_equals_the_definition(shape: str, terms: str, backend: AttentionBackend) -> None:
    step, kv, asked = packed(SHAPES[shape]), layer(2, 4, 5), terms_of(terms, 6)
    query = query_for(step.num_rows, 6, 4)
    attention = backend.prepare(step, torch.device("cpu"))
    expected = attention_by_definition(step, query, kv, asked)
    for _ in range(2):  # the second layer uses what the first one built
        result = attention.attend(query, kv, asked)
        assert result.shape == (1, step.num_rows, 6, 5)
        torch.testing.assert_close(result[0], expected, rtol=1e-4, atol=1e-5)


def test_a_window_shows_the_nearest_positions_and_sinks_take_their_share() -> None:
    """What the definition says of one head, by hand."""
    step, kv = packed([(3, 2, "chain")]), layer(1, 4, 4)
    query = query_for(step.num_rows, 1, 4)
    asked = AttentionTerms(0.5, window=2, softcap=1.5, sinks=torch.tensor([0.25]))
    slots = [*step.items[0].prefix_slots.tolist(), *step.items[0].slots.tolist()]
    for row, seen in enumerate((slots[2:4], slots[3:5])):
        scores = 1.5 * torch.tanh(kv.keys[seen, 0] @ query[0, 0, row] * 0.5 / 1.5)
        weights = scores.exp() / (scores.exp().sum() + torch.tensor(0.25).exp())
        found = attention_by_definition(step, query, kv, asked)[row, 0]
        torch.testing.assert_close(found, weights @ kv.values[seen, 0])


def test_padding_stays_within_its_bound() -> None:
    shapes = [(length, 1 + length % 7, "tree") for length in range(0, 36, 3)]
    groups = partition(make_spans(packed(shapes), window=None))
    assert 1 <= len(groups) < 12
    for group in groups:
        needed = sum(span.num_rows * span.num_keys for span in group)
        padded = len(group) * max(s.num_rows for s in group) * max(s.num_keys for s in group)
        assert padded <= PADDING_FACTOR * needed + PADDING_SLACK
