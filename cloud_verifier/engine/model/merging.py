"""Merges projections of one input: queries, keys and values, and the two of a gated MLP.

A GPU computes one large product in less time than its parts, of which keys and values alone fill a few
multiprocessors. Each module keeps its place, and its weight, now a slice of the merged one. The first of a
group computes the product, and each hands out its slice. A module that gets another input computes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""How transformers names projections of one input, in the order in which its modules call them."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class MergedProjections:
    """Holds all merged groups of a model, which it merges in place."""

    def __init__(self, model: nn.Module) -> None:
        self.is_on = True
        self.groups: list[_Group] = []
        for module in list(model.modules()):
            if groups := list(_groups(module)):
                self._merge(module, groups)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let each module compute alone until the block ends."""
        before, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = before

    @torch.no_grad()
    def _merge(self, module: nn.Module, groups: Sequence[Sequence[nn.Linear]]) -> None:
        """Merge the groups of one module. Its weights lie on the host meanwhile, so that the merged ones take
        their memory. Otherwise a GPU would keep holes between others."""
        linear = [each for each in module.children() if type(each) is nn.Linear and _is_plain(each)]
        device = linear[0].weight.device
        aside = {id(each): each.weight.data.cpu() for each in linear}
        for each in linear:
            each.weight.data = each.weight.data.new_empty(0)
        for layers in groups:
            whole = torch.cat([aside.pop(id(layer)) for layer in layers]).to(device)
            self.groups.append(_Group(layers, whole, self))
        for each in linear:
            if id(each) in aside:
                each.weight.data = aside[id(each)].to(device)


def _groups(module: nn.Module) -> Iterator[list[nn.Linear]]:
    """Yield the groups of a module's own projections that can be merged: plain ones, all alike."""
    for names in GROUPS:
        modules = [getattr(module, name, None) for name in names]
        layers = [each for each in modules if type(each) is nn.Linear and _is_plain(each)]
        if len(layers) == len(names) and len({_kind(layer) for layer in layers}) == 1:
            yield layers


def _is_plain(layer: nn.Linear) -> bool:
    """Tell whether nothing computes in its place, as quantizations and adapters do."""
    weight = getattr(layer, "weight", None)  # some quantizations keep packed ones under other names
    return type(weight) is nn.Parameter and weight.dtype in DTYPES and "forward" not in vars(layer)


def _kind(layer: nn.Linear) -> tuple[object, ...]:
    return layer.in_features, layer.weight.dtype, layer.weight.device, layer.bias is None


class _Group:
    """Computes the projections of one input together."""

    def __init__(self, layers: Sequence[nn.Linear], weight: Tensor, switch: MergedProjections) -> None:
        self._layers, self._weight, self._switch = layers, weight, switch
        self._sizes = [layer.out_features for layer in layers]
        self._bias: Tensor | None = None
        if layers[0].bias is not None:
            self._bias = torch.cat([layer.bias for layer in layers])
        self._input: Tensor | None = None  # of the product that is handed out now
        self._parts: tuple[Tensor, ...] = ()
        for index, (layer, own) in enumerate(zip(layers, weight.split_with_sizes(self._sizes), strict=True)):
            layer.weight.data = own
            layer.forward = partial(self._project, index)  # type: ignore[method-assign]  # on the instance

    def _project(self, index: int, states: Tensor) -> Tensor:
        layer = self._layers[index]
        if index == 0 and self._switch.is_on:
            product = functional.linear(states, self._weight, self._bias)
            self._input, self._parts = states, tuple(product.split_with_sizes(self._sizes, dim=-1))
        elif self._input is not states:
            return functional.linear(states, layer.weight, layer.bias)
        part = self._parts[index]
        if index == len(self._layers) - 1:
            self._input, self._parts = None, ()
        return part
