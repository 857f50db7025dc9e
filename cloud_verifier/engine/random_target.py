"""Tiny models with random weights, of any kind that transformers knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as hf_logging

from cloud_verifier.engine.refusals import refuse_config
from cloud_verifier.engine.transformers_adapter import TargetModel, torch_dtype

SPREAD = 0.2
"""Of biases around 0 and norms around 1. transformers makes them 0 and 1, and a lost one would not show."""


def random_target(name: str, model_type: str, settings: Mapping[str, Any], *, dtype: str) -> TargetModel:
    """A model of transformers' `model_type`, the same one each time; `dtype` is a key of `DTYPES`.

    Raises `Refusal` if it cannot be served.
    """
    with _silent(), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **settings)
        refuse_config(name, config)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch_dtype(dtype), attn_implementation="eager"
        )
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += SPREAD * torch.randn_like(parameter)
        return TargetModel(name, model)


@contextmanager
def _silent() -> Iterator[None]:
    """Without transformers' remarks on settings that nobody chose."""
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
