"""The fixed places of a step that is replayed: buckets of sizes, and one array that holds all its numbers.

A CUDA graph reads the same memory at every replay. So steps are padded to a bucket, written into one array on
the host and brought to the device in one transfer. Padding rows hold token 0 at position 0, write their KV to
the store's spare slot, belong to no unit of attention, and their choices are read by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.engine.attention_plan import ROW_FIELDS, UNIT_FIELDS, AttentionPlan, TableArray, WordArray
from cloud_verifier.engine.device_choice import ChoiceTable
from cloud_verifier.engine.packing import IndexArray, PackedStep
from cloud_verifier.engine.triton_attention import AttentionTables

ROW_BUCKETS = (8, 16, 32, 64, 128, 256, 512)
"""Rows of a replay. Up to some 200 a GPU reads the weights all the same, so few buckets waste little."""
LEAST_UNITS = 16
"""Units of a replay are powers of two from here on; one that does nothing costs some nanoseconds."""

_COUNT = UNIT_FIELDS.index("count")
_SPLITS = ROW_FIELDS.index("splits")
_NUM_LONG = 7  # arrays of 8-byte numbers, one per row: the first seven of `HostStep`


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Sizes that one replay serves."""

    rows: int  # and output rows
    units: int

    @classmethod
    def of(cls, num_rows: int, num_units: int) -> Bucket | None:
        """The smallest bucket for so many rows and units; None if there is none."""
        rows = next((size for size in ROW_BUCKETS if size >= num_rows), None)
        return None if rows is None else cls(rows, max(LEAST_UNITS, 1 << (num_units - 1).bit_length()))

    @property
    def num_words(self) -> int:
        """8-byte words of its places, but for the slot table, whose length varies."""
        return _NUM_LONG * self.rows + -(-sum(self.sizes) // 2)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """4-byte numbers of units, rows and places."""
        return len(UNIT_FIELDS) * self.units, len(ROW_FIELDS) * self.rows, self.rows


@dataclass(frozen=True, slots=True)
class HostStep:
    """A bucket's places on the host, views of one array."""

    tokens: IndexArray  # [rows], as the next six
    positions: IndexArray
    slots: IndexArray
    outputs: IndexArray
    keys: IndexArray
    temperatures: NDArray[np.float64]
    bits: WordArray  # a word for a row, as trees of more than 64 rows are never replayed
    units: TableArray  # [units, 11]
    rows: TableArray  # [rows, 2]
    places: TableArray  # [rows], the positions once more
    slot_table: TableArray  # what is left


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A bucket's places on the device, views of one array; what a replay reads."""

    tokens: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows]
    slots: Tensor  # int64 [rows]
    outputs: Tensor  # int64 [rows]
    keys: Tensor  # int64 [rows]
    temperatures: Tensor  # float64 [rows]
    tables: AttentionTables


class StepBuffers:
    """The two arrays, and their views by bucket.

    Args: device, where steps run; max_units and max_keys, the most of a step; rows_per_unit, of narrow units;
    spare_slot, where padding rows write.
    """

    def __init__(
        self, device: torch.device, max_units: int, max_keys: int, rows_per_unit: int, spare_slot: int
    ) -> None:
        self._max_units, self._max_keys = max_units, max_keys
        self._rows_per_unit = rows_per_unit
        self._spare_slot = spare_slot
        size = Bucket(ROW_BUCKETS[-1], max_units).num_words + -(-max_keys // 2)
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._host_steps: dict[Bucket, HostStep] = {}

    def bucket(self, plan: AttentionPlan) -> Bucket | None:
        """The bucket of a step, None if it fits into none; wide units fit into none."""
        if plan.num_wide or len(plan.units) > self._max_units or len(plan.keys) > self._max_keys:
            return None
        return Bucket.of(len(plan.rows), len(plan.units))

    def send(self, bucket: Bucket, step: PackedStep, plan: AttentionPlan, table: ChoiceTable) -> None:
        """Write a step into its bucket's places and start it on its way to the device.

        The step before must be done: its way may still have been open until then.
        """
        host = self._host_step(bucket)
        _fill(host, step, plan, table)
        self._pad(host, step.num_rows, len(step.outputs), len(plan.units))
        used = bucket.num_words + -(-len(plan.keys) // 2)
        self._device[:used].copy_(self._host[:used], non_blocking=True)

    def device_step(self, bucket: Bucket) -> DeviceStep:
        """The bucket's places on the device."""
        long, small = self._device.tensor_split([_NUM_LONG * bucket.rows])
        tokens, positions, slots, outputs, keys, temperatures, bits = long.view(_NUM_LONG, bucket.rows)
        ends = np.cumsum(bucket.sizes).tolist()
        units, rows, places, slot_table = small.view(torch.int32).tensor_split(ends)
        tables = AttentionTables(
            units=units.view(bucket.units, -1),
            num_narrow=bucket.units,
            rows=rows.view(bucket.rows, -1),
            num_partials=bucket.units * self._rows_per_unit,
            positions=places,
            keys=slot_table,
            bits=bits,
        )
        return DeviceStep(tokens, positions, slots, outputs, keys, temperatures.view(torch.float64), tables)

    def _host_step(self, bucket: Bucket) -> HostStep:
        found = self._host_steps.get(bucket)
        if found is None:
            long, small = np.split(self._host.numpy(), [_NUM_LONG * bucket.rows])
            tokens, positions, slots, outputs, keys, temperatures, bits = long.reshape(_NUM_LONG, bucket.rows)
            units, rows, places, slot_table = np.split(small.view(np.int32), np.cumsum(bucket.sizes))
            found = self._host_steps[bucket] = HostStep(
                tokens, positions, slots, outputs, keys, temperatures.view(np.float64), bits,
                units.reshape(bucket.units, -1), rows.reshape(bucket.rows, -1), places, slot_table,
            )  # fmt: skip
        return found

    def _pad(self, host: HostStep, num_rows: int, num_outputs: int, num_units: int) -> None:
        host.tokens[num_rows:] = 0
        host.positions[num_rows:] = 0
        host.slots[num_rows:] = self._spare_slot
        host.outputs[num_outputs:] = 0
        host.temperatures[num_outputs:] = 0.0
        host.units[num_units:, _COUNT] = 0
        host.rows[num_rows:, _SPLITS] = 0


def _fill(host: HostStep, step: PackedStep, plan: AttentionPlan, table: ChoiceTable) -> None:
    num_rows, num_outputs = step.num_rows, len(step.outputs)
    host.tokens[:num_rows] = step.tokens
    host.positions[:num_rows] = step.positions
    host.slots[:num_rows] = step.slots
    host.outputs[:num_outputs] = step.outputs
    host.keys[:num_outputs] = table.keys
    host.temperatures[:num_outputs] = table.temperatures
    host.bits[: len(plan.bits)] = plan.bits
    host.units[: len(plan.units)] = plan.units
    host.rows[:num_rows] = plan.rows
    host.places[:num_rows] = plan.positions
    host.slot_table[: len(plan.keys)] = plan.keys
