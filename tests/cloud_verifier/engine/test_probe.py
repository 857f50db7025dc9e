"""The probe lets right models pass, and refuses wrong attention and families whose state it cannot see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from common.errors import LocalError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloud_verifier.engine.transformers_adapter import TargetModel

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2", "stablelm", "qwen3_moe", "phi3", "opt"]
)
def test_a_right_model_passes(family: str) -> None:
    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.tiny import target

    report = probe(target(family))
    assert report.num_rows > 60
    assert report.worst < 1e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "qwen3_moe"])
def test_half_precision_is_held_against_float32(family: str, dtype: str) -> None:
    import torch

    from cloud_verifier.engine.probe import LESS_EXACT, probe
    from tests.cloud_verifier.engine.tiny import target

    model = target(family, getattr(torch, dtype))
    report = probe(model)
    assert report.worst < 1e-5
    assert report.attention < 1.0
    assert report.exactness is not None
    assert 1 / LESS_EXACT < report.exactness < LESS_EXACT
    assert model.dtype_name == dtype


def test_windows_are_restored_and_long_ones_do_not_make_it_long() -> None:
    from cloud_verifier.engine.probe import probe

    model = windowed(4096)
    report = probe(model)
    assert report.num_rows < 100
    assert model.sliding_windows == (4096,)
    assert [shape.terms.window for shape in report.shapes] == [4096]


def test_real_lengths_pass_real_windows_in_chunks() -> None:
    from cloud_verifier.engine.probe import _packed_rows, probe
    from cloud_verifier.engine.probe_script import REAL
    from cloud_verifier.engine.torch_ref import TorchRefBackend

    model = windowed(700)
    assert probe(model, lengths=REAL).worst < 1e-5
    rows, recorder = _packed_rows(model, TorchRefBackend(), 0, REAL)
    assert recorder.windows == {700}
    assert max(map(len, rows)) > 711
    assert {235, 491, 707} <= set(map(len, rows))  # the last rows of its chunks: a third of it, 256, the rest


def windowed(width: int) -> TargetModel:
    """A Mistral whose window is this wide."""
    from cloud_verifier.engine.transformers_adapter import TargetModel
    from tests.cloud_verifier.engine.tiny import from_config, plain_model

    config = plain_model("mistral").config
    config.sliding_window, config.max_position_embeddings = width, 8192
    return TargetModel("wide", from_config(config))


MISTAKES = (
    "no window",
    "one too many in the window",
    "leak",
    "tree as chain",
    "blind to ancestors",
    "lost slot",
)
DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_attention_is_found_and_is_the_backends(kind: str, dtype: str) -> None:
    import torch

    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.mistakes import Mistaken
    from tests.cloud_verifier.engine.tiny import target

    family = "mistral" if "window" in kind else "llama"
    with pytest.raises(LocalError, match=f"the attention backend Mistaken is wrong for model '{family}'"):
        probe(target(family, getattr(torch, dtype)), backend=Mistaken(kind))


def test_a_mistake_that_only_half_precision_has_is_found() -> None:
    import torch

    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.mistakes import OnlyInHalf
    from tests.cloud_verifier.engine.tiny import target

    backend = OnlyInHalf("one too few in the window")
    probe(target("mistral"), backend=backend)
    with pytest.raises(LocalError, match=r"OnlyInHalf is wrong .* a window of 8, bfloat16"):
        probe(target("mistral", torch.bfloat16), backend=backend)


def test_attention_that_gives_no_numbers_is_found() -> None:
    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.mistakes import Nothing
    from tests.cloud_verifier.engine.tiny import target

    with pytest.raises(LocalError, match="its error is nan times what rounding explains"):
        probe(target("llama"), backend=Nothing())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", [1, -1])
def test_a_window_other_than_the_masks_is_found(by: int, dtype: str) -> None:
    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.mistakes import shift_windows

    model = in_precision("gemma3", dtype, lambda plain: shift_windows(plain, by), sliding_window=64)
    with pytest.raises(
        UserError, match="model 'spoilt' cannot be served: its packed path differs from plain"
    ):
        probe(model)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_takes_a_little_of_its_neighbour_is_found(dtype: str) -> None:
    """In bfloat16 that moves the logits by 0.009 of their spread, and rounding alone by 0.007."""
    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.mistakes import mix_neighbours

    model = in_precision("llama", dtype, lambda plain: mix_neighbours(plain.model.layers[1].mlp, 0.05))
    with pytest.raises(
        UserError, match="model 'spoilt' cannot be served: its packed path differs from plain"
    ):
        probe(model)


def in_precision(family: str, dtype: str, spoil: Callable[[Any], None], **settings: int) -> TargetModel:
    """A model of `family` with these settings and what `spoil` does to it."""
    import torch

    from cloud_verifier.engine.transformers_adapter import TargetModel
    from tests.cloud_verifier.engine.tiny import from_config, plain_model

    config = plain_model(family).config
    for name, value in settings.items():
        setattr(config, name, value)
    plain = from_config(config, getattr(torch, dtype))
    spoil(plain)
    return TargetModel("spoilt", plain)


def test_a_model_that_overflows_in_float16_is_told_what_to_do() -> None:
    from cloud_verifier.engine.probe import probe

    def enlarge(plain: Any) -> None:
        mlp = plain.model.layers[0].mlp
        for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            layer.weight.data *= 1e4

    with pytest.raises(UserError, match=r"overflows in float16: .* Serve it in bfloat16 or float32"):
        probe(in_precision("llama", "float16", enlarge))


def test_few_rows_of_experts_may_differ_and_no_others() -> None:
    import torch

    from cloud_verifier.engine.probe import _compare
    from tests.cloud_verifier.engine.tiny import target

    torch.manual_seed(0)
    plain = {tuple(range(length)): torch.randn(97) for length in range(1, 41)}

    def with_others(count: int) -> dict[tuple[int, ...], Any]:
        return {path: row + (0.5 if len(path) <= count else 1e-6) for path, row in plain.items()}

    routed, dense = target("qwen3_moe"), target("llama")
    assert (routed.routes_tokens, dense.routes_tokens) == (True, False)
    assert _compare(routed, with_others(4), plain) < 1e-5
    for model, count in ((routed, 5), (dense, 1)):
        with pytest.raises(UserError, match="packed path differs"):
            _compare(model, with_others(count), plain)


def test_a_row_without_spread_is_compared_too() -> None:
    """The padding token alone: transformers makes its embedding zero, and so all its logits."""
    import torch

    from cloud_verifier.engine.probe import _compare
    from tests.cloud_verifier.engine.tiny import target

    torch.manual_seed(0)
    plain = {(0,): torch.zeros(97), (5,): torch.randn(97), (5, 6): torch.randn(97)}
    assert _compare(target("llama"), plain, plain) == 0.0
    with pytest.raises(UserError, match="packed path differs"):
        _compare(target("llama"), {**plain, (0,): torch.full((97,), 0.1)}, plain)


def test_weights_that_do_not_tell_their_values_are_compared_coarsely() -> None:
    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.mistakes import mix_neighbours
    from tests.cloud_verifier.engine.packed_linear import pack_linear

    report = probe(in_precision("llama", "bfloat16", pack_linear))
    assert report.tolerance == 0.15
    assert report.exactness is None

    def leak(plain: Any) -> None:
        pack_linear(plain)
        mix_neighbours(plain.model.layers[1], 1.0)

    with pytest.raises(UserError, match=r"packed path differs .* \(0.15 is the most"):
        probe(in_precision("llama", "bfloat16", leak))


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mamba", "layers of kind linear_attention"),
        ("jamba", "layers of kind linear_attention, mamba"),
        ("llama4", "layers of kind chunked_attention"),
        ("falcon_alibi", "does not use transformers' attention interface"),
        ("phi3_long", "RoPE is of type longrope"),
        ("diffllama", "packed path differs"),
        ("doge", "attention mask or position bias of its own"),
    ],
)
def test_families_with_other_state_are_refused(family: str, reason: str) -> None:
    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.tiny import target

    with pytest.raises(UserError, match=rf"model '{family}' cannot be served: .*{reason}"):
        probe(target(family))


@pytest.mark.parametrize(
    ("family", "reason"),
    [("jamba", "1 of its 2 layers attend"), ("llama4", "packed path differs")],
)
def test_they_are_found_even_if_their_configuration_tells_nothing(
    family: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloud_verifier.engine import transformers_adapter
    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.tiny import target

    monkeypatch.setattr(transformers_adapter, "refuse_config", lambda name, config: None)
    monkeypatch.setattr(transformers_adapter, "refuse_architecture", lambda name, model: None)
    with pytest.raises(UserError, match=reason):
        probe(target(family))


def test_a_model_too_short_for_the_probe_is_refused() -> None:
    from cloud_verifier.engine.probe import probe
    from cloud_verifier.engine.transformers_adapter import TargetModel
    from tests.cloud_verifier.engine.tiny import from_config, plain_model

    config = plain_model("llama").config
    config.max_position_embeddings = 20
    with pytest.raises(UserError, match="last position is 12 too early"):
        probe(TargetModel("short", from_config(config)))


def test_float32_products_are_not_rounded_to_tf32_meanwhile() -> None:
    import torch

    from cloud_verifier.engine.probe import probe
    from cloud_verifier.engine.torch_ref import TorchRefBackend
    from tests.cloud_verifier.engine.tiny import target

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
