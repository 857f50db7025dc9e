"""The Triton kernels attend as the reference backend does, for any mix of sessions, heads, terms and
types."""

import numpy as np
import pytest
import torch

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.attention.attention_units import CUTS
from cloud_verifier.engine.attention.backend import AttentionTerms, LayerKV
from cloud_verifier.engine.attention.triton_backend import HeadShape, TritonBackend, launch_of
from cloud_verifier.engine.conformance_probe import probe
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import pack
from common.errors import UserError
from tests import wording
from tests.cloud_verifier.engine.attention_rig import LIMITS, TERMS, layer, packed, random_plan, terms_of
from tests.cloud_verifier.engine.tiny import from_config, plain_model
from tests.cloud_verifier.engine.triton_rig import Uncut, both, device_for_kernels, small_cuts

pytestmark = pytest.mark.triton

MIXED = [(9, 5, "tree"), (0, 2, "chain"), (150, 3, "tree"), (67, 1, "chain"), (5, 14, "chain")]
"""One split and several, a bare tip, no prefix, a chunk that is wide by the tests' cuts."""

HEADS = {
    # name: Hq, Hkv, Dk, Dv
    "one head": (1, 1, 16, 16),
    "three share one": (6, 2, 8, 8),
    "seven share one": (7, 1, 32, 16),
    "more than a program takes": (20, 1, 16, 16),
    "depth 80": (2, 2, 80, 80),
    "depth 96": (2, 1, 96, 96),
    "expanded latent": (2, 2, 192, 128),
}


def terms_for(name: str, num_heads: int) -> AttentionTerms:
    return terms_of(name, num_heads, device_for_kernels())


@pytest.mark.parametrize("terms", TERMS)
def test_every_term_equals_the_reference(terms: str) -> None:
    found, expected = both(packed(MIXED), (4, 2, 16, 16), terms_for(terms, 4), torch.float32, small_cuts())
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
def test_every_head_shape_equals_the_reference(heads: str) -> None:
    step = packed([(70, 3, "tree"), (0, 1, "chain")])
    found, expected = both(step, HEADS[heads], terms_for("all", HEADS[heads][0]), torch.float32, small_cuts())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.02), ("float16", 0.002)])
def test_half_precision_rounds_and_no_more(dtype: str, most: float) -> None:
    """Inputs have 8 or 11 bits, and so have the weights and the result; sums have 24."""
    kind = getattr(torch, dtype)
    found, expected = both(packed(MIXED), (4, 2, 16, 16), terms_for("all", 4), kind, small_cuts())
    assert found.dtype is kind
    error = (found.float() - expected).norm() / expected.norm()
    assert 0.0 < float(error) < most


@pytest.mark.parametrize("seed", range(2))
def test_random_trees_equal_the_reference_with_the_cuts_that_serve(seed: int) -> None:
    random = np.random.default_rng(seed)
    shapes = [(int(random.integers(90)), int(random.integers(1, 20)), "tree") for _ in range(2)]
    found, expected = both(packed(shapes, seed), (4, 2, 16, 16), terms_for("window", 4), torch.float32, CUTS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_tree_of_several_words_equals_the_reference() -> None:
    step = packed([(3, 70, "tree")])
    found, expected = both(step, (1, 1, 16, 16), terms_for("plain", 1), torch.float32, CUTS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def layer_on(device: torch.device, num_kv_heads: int) -> LayerKV:
    rows = layer(num_kv_heads, 16, 16).rows.to(device)
    return LayerKV(rows, rows[..., :16], rows[..., 16:])


def test_a_session_gets_the_same_bits_in_any_company() -> None:
    device = device_for_kernels()
    plan, kv = random_plan([(150, 3, "tree"), (5, 14, "chain")]), layer_on(device, 2)
    query = torch.randn(1, 4, plan.num_rows, 16).to(device)
    backend, terms = TritonBackend(small_cuts()), terms_for("all", 4)
    mixed = backend.prepare(pack(plan, LIMITS), device).attend(query, kv, terms)
    first = pack(StepPlan(plan.items[:1]), LIMITS)
    alone = backend.prepare(first, device).attend(query[:, :, :3], kv, terms)
    assert torch.equal(mixed[:, :3], alone)


def test_a_query_in_any_layout_is_read() -> None:
    device, step = device_for_kernels(), packed([(3, 2, "chain")])
    kv, query = layer_on(device, 1), torch.randn(1, 2, 2, 16).to(device)
    attention = TritonBackend().prepare(step, device)
    expected = attention.attend(query, kv, terms_for("plain", 2))
    turned = query.transpose(2, 3).contiguous().transpose(2, 3)  # the depth is not what lies side by side
    assert torch.equal(attention.attend(turned, kv, terms_for("plain", 2)), expected)


def test_a_whole_model_passes_the_conformance_probe() -> None:
    config = plain_model("mistral").config
    config.num_hidden_layers = 1
    model = TargetModel("mistral", from_config(config).to(device_for_kernels()))
    report = probe(model, backend=Uncut())
    assert report.num_rows > 60
    assert report.worst < 1e-5


def test_heads_that_no_gpu_has_room_for_are_refused() -> None:
    with wording.raises(UserError):
        launch_of(HeadShape(1, 1, 2048, 2048, torch.bfloat16), CUTS.wide, 100_000)
