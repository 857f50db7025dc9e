"""Gives a target other decoder layers: for skipped layers, a head, and a look at the middle of a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from cloud_verifier.engine.model.transformers_adapter import TargetModel


def with_layers(
    target: TargetModel, layers: Sequence[torch.nn.Module], final_norm: torch.nn.Module | None = None
) -> TargetModel:
    """Return the target with other decoder layers, and with another norm behind them if one is given. All
    else is shared, but no hooks of modules that hold the layers. Raises `UserError` if they are not found."""
    path = target.layers_path.split(".")
    twin = copy.copy(target)
    replaced = _replaced(target.module, path, torch.nn.ModuleList(layers))
    if final_norm is not None:
        replaced = _replaced(replaced, [*path[:-1], "norm"], final_norm)
    twin.module = cast(PreTrainedModel, replaced)
    return twin


def without_layers(target: TargetModel, skipped: Collection[int]) -> TargetModel:
    """Return the target whose skipped layers, by their numbers from 0, hand on what they get. The others
    keep their places, by which families tell kinds of layers apart. Raises as `with_layers`."""
    layers = enumerate(target.layers)
    return with_layers(
        target, [stand_in(layer, _hand_on) if number in skipped else layer for number, layer in layers]
    )


def stand_in(layer: torch.nn.Module, forward: Callable[..., Any]) -> torch.nn.Module:
    """Return a copy of a layer that computes `forward` instead, without hooks."""
    instead: Any = _without_hooks(layer)
    instead.forward = forward
    return cast(torch.nn.Module, instead)


def _hand_on(hidden: torch.Tensor, *_inputs: Any, **_more: Any) -> torch.Tensor:
    return hidden


def _replaced(module: torch.nn.Module, path: Sequence[str], new: torch.nn.Module) -> torch.nn.Module:
    """Return `module` with `new` in the place of `path`, made of shallow copies without hooks."""
    twin = _without_hooks(module)
    twin._modules = dict(module._modules)
    name, *rest = path
    twin._modules[name] = _replaced(module.get_submodule(name), rest, new) if rest else new
    return twin


def _without_hooks(module: torch.nn.Module) -> torch.nn.Module:
    twin = copy.copy(module)
    for name, table in vars(module).items():
        if "_hooks" in name:
            vars(twin)[name] = type(table)()
    return twin
