"""KV in token slots: per layer one tensor, indexed by slot, that holds a token's keys beside its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.errors import CapacityError


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's store. Page size 1: a slot is one token's keys and values over all KV heads.

    Keys and values lie side by side, so that a gather of both is one pass over memory.
    """

    rows: Tensor  # [num_slots, Hkv, Dk + Dv]
    keys: Tensor  # [num_slots, Hkv, Dk], a view of rows
    values: Tensor  # [num_slots, Hkv, Dv], a view of rows

    @property
    def key_depth(self) -> int:
        """Dk: where in a row the values begin."""
        return self.keys.shape[2]


class KVStore:
    """The slots of all layers, allocated when a layer first writes.

    Shapes, dtype and device are those of the first call, so that nothing is read from a model's
    configuration: head sizes per layer, expanded latent attention and sharded heads all fit.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._layers: dict[int, LayerKV] = {}

    @property
    def num_layers(self) -> int:
        """Layers that have written so far."""
        return len(self._layers)

    @property
    def num_bytes(self) -> int:
        """Memory held, over all layers."""
        return sum(kv.rows.nbytes for kv in self._layers.values())

    def layer(self, layer: int) -> LayerKV:
        """The store of a layer that has written."""
        return self._layers[layer]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> LayerKV:
        """Store `key` [1, Hkv, T, Dk] and `value` [1, Hkv, T, Dv] at `slots` int64 [T].

        Returns the layer's store. Raises `CapacityError` if the device has no memory for this layer's slots.
        """
        kv = self._layers.get(layer)
        if kv is None:
            kv = self._layers[layer] = self._allocate(key, value.shape[3])
        kv.keys.index_copy_(0, slots, key[0].transpose(0, 1))
        kv.values.index_copy_(0, slots, value[0].transpose(0, 1))
        return kv

    def _allocate(self, key: Tensor, value_depth: int) -> LayerKV:
        """Zeros, not empty memory: a masked key still takes part in a product, and 0 * NaN is NaN."""
        _, heads, _, depth = key.shape
        try:
            rows = torch.zeros(
                (self.num_slots, heads, depth + value_depth), dtype=key.dtype, device=key.device
            )
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"no memory on {key.device} for {self.num_slots} KV slots; configure fewer slots"
            ) from error
        return LayerKV(rows, rows[..., :depth], rows[..., depth:])
