"""The probe lets right models pass, and refuses wrong attention and families whose state it cannot see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from common.errors import UserError

if TYPE_CHECKING:
    from cloud_verifier.engine.packing import PackedStep

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


def test_half_precision_passes_within_its_tolerance() -> None:
    import torch

    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.tiny import target

    report = probe(target("llama", torch.bfloat16))
    assert 1e-5 < report.worst < report.tolerance


def test_windows_are_restored_and_long_ones_do_not_make_it_long() -> None:
    from cloud_verifier.engine.probe import probe
    from cloud_verifier.engine.transformers_adapter import TargetModel
    from tests.cloud_verifier.engine.tiny import from_config, plain_model

    config = plain_model("mistral").config
    config.sliding_window, config.max_position_embeddings = 4096, 8192
    model = TargetModel("wide", from_config(config))
    report = probe(model)
    assert report.num_rows < 100
    assert model.sliding_windows == (4096,)


def broken(kind: str) -> Any:
    """A backend that makes one classic mistake."""
    from cloud_verifier.engine.torch_ref import TorchRefBackend

    right = TorchRefBackend()

    class Backend:
        def prepare(self, step: PackedStep, device: Any) -> Any:
            return (
                NoWindow(right.prepare(step, device))
                if kind == "window"
                else right.prepare(spoilt(step), device)
            )

    class NoWindow:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def attend(self, query: Any, kv: Any, terms: Any) -> Any:
            return self.inner.attend(query, kv, replace(terms, window=None))

    def spoilt(step: PackedStep) -> PackedStep:
        items = list(step.items)
        if kind == "leak":  # a session also sees the slots of the one before it
            donor = items[0]
            items[1:] = [
                replace(item, prefix_slots=np.concatenate((donor.slots[:1], item.prefix_slots)))
                for item in items[1:]
            ]
        elif kind == "tree as chain":
            items = [
                replace(item, parents=np.arange(-1, len(item.tokens) - 1, dtype=np.int32)) for item in items
            ]
        elif kind == "blind to ancestors":
            items = [replace(item, parents=np.full_like(item.parents, -1)) for item in items]
        elif kind == "lost slot":  # one token of the context is missing
            items = [replace(item, prefix_slots=item.prefix_slots[1:]) for item in items]
        return replace(step, items=tuple(items))

    return Backend()


@pytest.mark.parametrize("kind", ["window", "leak", "tree as chain", "blind to ancestors", "lost slot"])
def test_a_mistake_in_attention_is_found(kind: str) -> None:
    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.tiny import target

    with pytest.raises(
        UserError, match="cannot be served: its packed path differs from plain transformers by"
    ):
        probe(target("mistral" if kind == "window" else "llama"), backend=broken(kind))


def test_attention_that_gives_no_numbers_is_found() -> None:
    import torch

    from cloud_verifier.engine.probe import probe
    from tests.cloud_verifier.engine.tiny import target

    class Nothing:
        def prepare(self, step: PackedStep, device: Any) -> Any:
            return self

        def attend(self, query: Any, kv: Any, terms: Any) -> Any:
            return torch.full_like(query.transpose(1, 2), float("nan"))

    with pytest.raises(UserError, match="differs from plain transformers by nan"):
        probe(target("llama"), backend=Nothing())


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
