"""What a configuration alone tells against a model, with the reason."""

from types import SimpleNamespace
from typing import Any

import pytest

from cloud_verifier.engine.model.refusals import refuse_architecture, refuse_config, refuse_division
from common.errors import UserError
from tests import wording


def config(**fields: Any) -> Any:
    """A text configuration with these fields."""
    text = SimpleNamespace(**fields)
    text.get_text_config = lambda decoder: text
    return text


@pytest.mark.parametrize(
    "fields",
    [
        {"is_encoder_decoder": True},
        {"layer_types": ["sliding_attention", "chunked_attention"]},
        {"rope_parameters": {"rope_type": "dynamic"}},
        {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
    ],
)
def test_the_reason_is_named(fields: dict[str, Any]) -> None:
    with wording.raises(UserError):
        refuse_config("m", config(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layer_types": ["full_attention", "sliding_attention"], "rope_parameters": None},
        {"layer_types": ["linear_attention", "full_attention", "conv", "mlp"]},
        {"layers_block_type": ["mamba", "attention"]},
        {"layers_block_type": ["attention"], "rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": None}},
    ],
)
def test_static_rope_and_attention_layers_pass(fields: dict[str, Any]) -> None:
    refuse_config("m", config(**fields))


DIVIDED = {"base_model_tp_plan": {"layers.*.q_proj": "colwise"}, "num_attention_heads": 6}


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["conv", "full_attention"]},
        {"num_attention_heads": 6},  # there is no plan
        DIVIDED | {"num_attention_heads": 5},
        DIVIDED | {"base_model_tp_plan": {"layers.*.k_proj": "colwise"}, "num_key_value_heads": 1},
    ],
)
def test_a_model_that_two_processes_cannot_share_is_refused(fields: dict[str, Any]) -> None:
    refuse_division("m", config(**DIVIDED), 2)
    with wording.raises(UserError):
        refuse_division("m", config(**fields), 2)


def test_a_model_whose_states_are_not_found_is_refused() -> None:
    with wording.raises(UserError):
        refuse_architecture("m", SimpleNamespace(_is_stateful=True), ())
    refuse_architecture("m", SimpleNamespace(_is_stateful=True), {0, 2})
    refuse_architecture("m", SimpleNamespace(_is_stateful=False), ())
