"""The Triton kernels attend as the reference backend does, for any mix of sessions, heads, terms and
types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cloud_verifier.engine.attention import AttentionTerms

pytestmark = pytest.mark.triton

MIXED = [(9, 5, "tree"), (0, 2, "chain"), (150, 3, "tree"), (67, 1, "chain"), (5, 14, "chain")]
"""One split and several, a bare tip, no prefix, a chunk that is wide by the tests' cuts."""

TERMS = {
    "plain": (None, None, False),
    "window": (7, None, False),
    "wide window": (70, None, False),
    "softcap": (None, 1.5, False),
    "sinks": (None, None, True),
    "all": (20, 1.5, True),
}
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


def terms_of(name: str, num_heads: int) -> AttentionTerms:
    import torch

    from cloud_verifier.engine.attention import AttentionTerms
    from tests.cloud_verifier.engine.triton_rig import device_for_kernels

    window, softcap, with_sinks = TERMS[name]
    torch.manual_seed(2)
    sinks = torch.randn(num_heads).to(device_for_kernels()) if with_sinks else None
    return AttentionTerms(0.4, window, softcap, sinks)


@pytest.mark.parametrize("terms", TERMS)
def test_every_term_equals_the_reference(terms: str) -> None:
    import torch

    from tests.cloud_verifier.engine.triton_rig import both, packed, small_cuts

    found, expected = both(packed(MIXED), (4, 2, 16, 16), terms_of(terms, 4), torch.float32, small_cuts())
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
def test_every_head_shape_equals_the_reference(heads: str) -> None:
    import torch

    from tests.cloud_verifier.engine.triton_rig import both, packed, small_cuts

    step = packed([(70, 3, "tree"), (0, 1, "chain")])
    found, expected = both(step, HEADS[heads], terms_of("all", HEADS[heads][0]), torch.float32, small_cuts())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.02), ("float16", 0.002)])
def test_half_precision_rounds_and_no_more(dtype: str, most: float) -> None:
    """Inputs have 8 or 11 bits, and so have the weights and the result; sums have 24."""
    import torch

    from tests.cloud_verifier.engine.triton_rig import both, packed, small_cuts

    kind = getattr(torch, dtype)
    found, expected = both(packed(MIXED), (4, 2, 16, 16), terms_of("all", 4), kind, small_cuts())
    assert found.dtype is kind
    error = (found.float() - expected).norm() / expected.norm()
    assert 0.0 < float(error) < most


@pytest.mark.parametrize("seed", range(4))
def test_random_trees_equal_the_reference_with_the_cuts_that_serve(seed: int) -> None:
    import numpy as np
    import torch

    from cloud_verifier.engine.attention_plan import CUTS
    from tests.cloud_verifier.engine.triton_rig import both, packed

    random = np.random.default_rng(seed)
    shapes = [(int(random.integers(90)), int(random.integers(1, 20)), "tree") for _ in range(2)]
    found, expected = both(packed(shapes, seed), (4, 2, 16, 16), terms_of("window", 4), torch.float32, CUTS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_tree_of_several_words_equals_the_reference() -> None:
    import torch

    from cloud_verifier.engine.attention_plan import CUTS
    from tests.cloud_verifier.engine.triton_rig import both, packed

    step = packed([(3, 70, "tree")])
    found, expected = both(step, (1, 1, 16, 16), terms_of("plain", 1), torch.float32, CUTS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_session_gets_the_same_bits_in_any_company() -> None:
    import torch

    from cloud_verifier.core.target import StepPlan
    from cloud_verifier.engine.kv import LayerKV
    from cloud_verifier.engine.packing import StepLimits, pack
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.triton_rig import NUM_SLOTS, device_for_kernels, random_plan, small_cuts

    device = device_for_kernels()
    plan = random_plan([(150, 3, "tree"), (5, 14, "chain")])
    limits = StepLimits(10, 1000, NUM_SLOTS)
    torch.manual_seed(1)
    rows = torch.randn(NUM_SLOTS, 2, 32).to(device)
    kv = LayerKV(rows, rows[..., :16], rows[..., 16:])
    query = torch.randn(1, 4, plan.num_rows, 16).to(device)
    backend, terms = TritonBackend(small_cuts()), terms_of("all", 4)
    mixed = backend.prepare(pack(plan, limits), device).attend(query, kv, terms)
    first = pack(StepPlan(plan.items[:1]), limits)
    alone = backend.prepare(first, device).attend(query[:, :, :3], kv, terms)
    assert torch.equal(mixed[:, :3], alone)


def test_a_query_in_any_layout_is_read() -> None:
    import torch

    from cloud_verifier.engine.kv import LayerKV
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.triton_rig import NUM_SLOTS, device_for_kernels, packed

    device, step = device_for_kernels(), packed([(3, 2, "chain")])
    rows = torch.randn(NUM_SLOTS, 1, 32).to(device)
    kv = LayerKV(rows, rows[..., :16], rows[..., 16:])
    query = torch.randn(1, 2, 2, 16).to(device)
    attention = TritonBackend().prepare(step, device)
    expected = attention.attend(query, kv, terms_of("plain", 2))
    turned = query.transpose(2, 3).contiguous().transpose(2, 3)  # the depth is not what lies side by side
    assert torch.equal(attention.attend(turned, kv, terms_of("plain", 2)), expected)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_whole_models_pass_the_conformance_probe(family: str) -> None:
    from cloud_verifier.engine.probe import probe
    from cloud_verifier.engine.transformers_adapter import TargetModel
    from tests.cloud_verifier.engine.tiny import plain_model
    from tests.cloud_verifier.engine.triton_rig import Uncut, device_for_kernels

    model = TargetModel(family, plain_model(family).to(device_for_kernels()))
    report = probe(model, backend=Uncut())
    assert report.num_rows > 60
    assert report.worst < 1e-5


def test_the_kernels_pass_the_long_step_of_the_attention_check() -> None:
    import torch

    from cloud_verifier.engine.attention_check import LayerShape, attention_error
    from cloud_verifier.engine.attention_plan import Cut, Cuts
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.triton_rig import device_for_kernels

    cuts = Cuts(narrow=Cut(rows=8, split=128), wide=Cut(rows=32, split=192), most_narrow=16)
    shape = LayerShape(torch.bfloat16, 2, 1, 16, 16, terms_of("plain", 2))
    assert attention_error(TritonBackend(cuts), shape, device_for_kernels()) < 1.0


def test_heads_that_no_gpu_has_room_for_are_refused() -> None:
    import torch

    from cloud_verifier.engine.attention_plan import CUTS
    from cloud_verifier.engine.triton_attention import HeadShape, launch_of
    from common.errors import UserError

    with pytest.raises(UserError, match="--attention torch_ref"):
        launch_of(HeadShape(1, 1, 2048, 2048, torch.bfloat16), CUTS.wide, 100_000)
