"""The probe lets right models pass, and refuses wrong attention and families whose state it cannot see."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.conformance_probe import _compare, probe
from cloud_verifier.engine.model import transformers_adapter
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.errors import LocalError, UserError
from tests import wording
from tests.cloud_verifier.engine.mistakes import Mistaken, Nothing, OnlyInHalf, mix_neighbours, shift_windows
from tests.cloud_verifier.engine.packed_linear import pack_linear
from tests.cloud_verifier.engine.tiny import from_config, plain_model, target

pytestmark = pytest.mark.torch


def test_windows_are_restored_and_long_ones_do_not_make_it_long() -> None:
    config = plain_model("mistral").config
    config.sliding_window, config.max_position_embeddings = 4096, 8192
    model = TargetModel("wide", from_config(config))
    report = probe(model)
    assert report.num_rows < 100
    assert model.sliding_window == 4096
    assert [shape.terms.window for shape in report.shapes] == [4096]


MISTAKES = (
    "no window",
    "one too many in the window",
    "leak",
    "tree as chain",
    "blind to ancestors",
    "lost slot",
)
DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_attention_is_found_and_is_the_backends(kind: str, dtype: str) -> None:
    family = "mistral" if "window" in kind else "llama"
    with wording.raises(LocalError):
        probe(target(family, getattr(torch, dtype)), backend=Mistaken(kind))


def test_a_mistake_that_only_half_precision_has_is_found() -> None:
    backend = OnlyInHalf("one too few in the window")
    probe(target("mistral"), backend=backend)
    with wording.raises(LocalError):
        probe(target("mistral", torch.bfloat16), backend=backend)


def test_attention_that_gives_no_numbers_is_found() -> None:
    with wording.raises(LocalError):
        probe(target("llama"), backend=Nothing())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", [1, -1])
def test_a_window_other_than_the_masks_is_found(by: int, dtype: str) -> None:
    model = in_precision("gemma3_text", dtype, lambda plain: shift_windows(plain, by), sliding_window=64)
    with wording.raises(UserError):
        probe(model)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_takes_a_little_of_its_neighbour_is_found(dtype: str) -> None:
    """In bfloat16 that moves the logits by 0.009 of their spread, and rounding alone by 0.007."""
    model = in_precision("llama", dtype, lambda plain: mix_neighbours(plain.model.layers[1].mlp, 0.05))
    with wording.raises(UserError):
        probe(model)


def in_precision(family: str, dtype: str, spoil: Callable[[Any], None], **settings: int) -> TargetModel:
    """A model of `family` with these settings and what `spoil` does to it."""
    config = plain_model(family).config
    for name, value in settings.items():
        setattr(config, name, value)
    plain = from_config(config, getattr(torch, dtype))
    spoil(plain)
    return TargetModel("spoilt", plain)


def test_a_model_that_overflows_in_float16_is_told_what_to_do() -> None:
    def enlarge(plain: Any) -> None:
        mlp = plain.model.layers[0].mlp
        for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            layer.weight.data *= 1e4

    with wording.raises(UserError):
        probe(in_precision("llama", "float16", enlarge))


def test_few_rows_of_experts_may_differ_and_no_others() -> None:
    torch.manual_seed(0)
    plain = {tuple(range(length)): torch.randn(97) for length in range(1, 41)}

    def with_others(count: int) -> dict[tuple[int, ...], Any]:
        return {path: row + (0.5 if len(path) <= count else 1e-6) for path, row in plain.items()}

    routed, dense = target("qwen3_moe"), target("llama")
    assert (routed.routes_tokens, dense.routes_tokens) == (True, False)
    assert _compare(routed, with_others(4), plain) < 1e-5
    for model, count in ((routed, 5), (dense, 1)):
        with wording.raises(UserError):
            _compare(model, with_others(count), plain)


def test_a_row_without_spread_is_compared_too() -> None:
    """The padding token alone: transformers makes its embedding zero, and so all its logits."""
    torch.manual_seed(0)
    plain = {(0,): torch.zeros(97), (5,): torch.randn(97), (5, 6): torch.randn(97)}
    assert _compare(target("llama"), plain, plain) == 0.0
    with wording.raises(UserError):
        _compare(target("llama"), {**plain, (0,): torch.full((97,), 0.1)}, plain)


def test_weights_that_do_not_tell_their_values_are_compared_coarsely() -> None:
    report = probe(in_precision("llama", "bfloat16", pack_linear))
    assert report.tolerance == 0.15
    assert report.exactness is None

    def leak(plain: Any) -> None:
        pack_linear(plain)
        mix_neighbours(plain.model.layers[1], 1.0)

    with wording.raises(UserError):
        probe(in_precision("llama", "bfloat16", leak))


@pytest.mark.parametrize("family", ["jamba", "llama4_text"])
def test_other_state_is_found_even_if_the_configuration_tells_nothing(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_adapter, "refuse_config", lambda name, config: None)
    monkeypatch.setattr(transformers_adapter, "refuse_architecture", lambda *_: None)
    monkeypatch.setattr(transformers_adapter, "take_over", lambda model: frozenset())
    with wording.raises(UserError):
        probe(target(family))


def test_a_model_too_short_for_the_probe_is_refused() -> None:
    config = plain_model("llama").config
    config.max_position_embeddings = 20
    with wording.raises(UserError):
        probe(TargetModel("short", from_config(config)))


def test_float32_products_are_not_rounded_to_tf32_meanwhile() -> None:
    switch: Any = torch.backends.cuda.matmul
    seen: set[str] = set()

    class Noting(TorchRefBackend):
        def prepare(self, *given: Any) -> Any:
            seen.add(switch.fp32_precision)
            return super().prepare(*given)

    before = switch.fp32_precision
    switch.fp32_precision = "tf32"
    try:
        probe(target("llama"), backend=Noting())
        assert (seen, switch.fp32_precision) == ({"ieee"}, "tf32")
    finally:
        switch.fp32_precision = before
