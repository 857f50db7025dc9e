"""Implements the Triton backend: a step's tables on the device, and kernel launches in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
import triton
from torch import Tensor

from cloud_verifier.engine.attention.attention_kernels import LOG2_E, add_splits, attend_units
from cloud_verifier.engine.attention.attention_units import (
    CUTS,
    ROW_FIELDS,
    UNIT_FIELDS,
    AttentionPlan,
    Cuts,
    WorkCut,
    plan_attention,
)
from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms, LayerKV, StepAttention
from cloud_verifier.engine.packing import PackedStep
from common.errors import UserError

INTERPRETED = not isinstance(attend_units, triton.runtime.JITFunction)
"""Whether numpy runs the kernels: TRITON_INTERPRET=1 was set when triton was imported."""

MOST_LANES = 128
"""Rows of a tile times query heads of a KV head in one program; more would not fit into registers."""
LEAST_SIDE = 16
"""The matrix units multiply nothing smaller."""
MOST_BLOCK = 64 * 256
"""Numbers in a block of keys and values; in blocks of more, tiles of 128 lanes spill registers."""
SMALL_PARTS = 4096
"""Bytes of shared memory for what is not a tile: slots, sums over lanes."""
BLOCKS: tuple[tuple[int, int], ...] = ((64, 5), (32, 5), (16, 5), (16, 3))
"""Keys in a block, and stages of the pipeline: with 5, two blocks are under way while one is computed."""
_BLOCKS_FLOAT32 = ((16, 3),)
"""Without matrix units every product is code; more keys would take minutes to compile."""


@dataclass(frozen=True, slots=True)
class AttentionTables:
    """Holds an `AttentionPlan` on a device."""

    units: Tensor  # int32 [U, 11]
    num_narrow: int
    rows: Tensor  # int32 [T, 2]
    num_partials: int
    positions: Tensor  # int32 [T]
    keys: Tensor  # int32 [K]
    ancestors: Tensor  # int64 [B]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Describes the heads of a layer's attention."""

    num_heads: int  # Hq
    num_kv_heads: int  # Hkv
    key_depth: int  # Dk
    value_depth: int  # Dv
    dtype: torch.dtype

    @property
    def share(self) -> int:
        """Return the number of query heads of a KV head."""
        return self.num_heads // self.num_kv_heads


class TritonBackend(AttentionBackend):
    """Computes attention by `triton_kernels`: on CUDA, or on a CPU under Triton's interpreter."""

    cuts: Cuts

    def __init__(self, cuts: Cuts = CUTS) -> None:
        self.cuts = cuts
        self.rows_per_read = cuts.narrow.rows

    def prepare(self, step: PackedStep, device: torch.device) -> TritonStep:
        """Bring the step's tables to the device, in one transfer for all layers."""
        return self.attach(tables_of(plan_attention(step, self.cuts), device))

    def attach(self, tables: AttentionTables) -> TritonStep:
        """Return the attention of the step in `tables`, now and after the tables are written anew."""
        return TritonStep(tables, self.cuts)


class TritonStep(StepAttention):
    """Computes one step's attention; only the pointers of its launches differ from layer to layer."""

    def __init__(self, tables: AttentionTables, cuts: Cuts) -> None:
        self._tables = tables
        self._cuts = cuts

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        # Triton launches on the current device, which may be another GPU.
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
            return self._attend(query, kv, terms)

    def _attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        tables = self._tables
        _, num_heads, num_rows, key_depth = query.shape
        num_kv_heads, value_depth = kv.values.shape[1:]
        shape = HeadShape(num_heads, num_kv_heads, key_depth, value_depth, query.dtype)
        query = query if query.stride(3) == 1 else query.contiguous()
        out = query.new_empty(num_rows, num_heads, value_depth)
        places = max(1, tables.num_partials), num_heads
        partial = torch.empty((*places, value_depth), dtype=torch.float32, device=query.device)
        stats = torch.empty((*places, 2), dtype=torch.float32, device=query.device)
        sinks = query if terms.sinks is None else terms.sinks
        factor, cap = _scales(terms)
        narrow, wide = tables.units[: tables.num_narrow], tables.units[tables.num_narrow :]
        for units, cut in ((narrow, self._cuts.narrow), (wide, self._cuts.wide)):
            if not len(units):
                continue
            launch = launch_of(shape, cut, shared_memory(query.device))
            groups = -(-shape.share // launch["HEADS"])
            attend_units[num_kv_heads * groups, len(units)](
                query, query.stride(2), query.stride(1),
                kv.rows, kv.rows.stride(0), kv.rows.stride(1),
                units, tables.rows, tables.positions, tables.keys, tables.ancestors,
                sinks, out, partial, stats, factor, cap, terms.window or 0,
                **launch,
                WINDOWED=terms.window is not None,
                CAPPED=terms.softcap is not None,
                SINKS=terms.sinks is not None,
                WIDEN=INTERPRETED and query.dtype is torch.bfloat16,
                enable_fp_fusion=True,
            )  # fmt: skip
        if tables.num_partials:
            add_splits[num_heads, num_rows](
                tables.rows, partial, stats, sinks, out,
                NUM_HEADS=num_heads,
                VALUE_DEPTH=value_depth,
                VALUE_BLOCK=triton.next_power_of_2(value_depth),
                SINKS=terms.sinks is not None,
                num_warps=2,
                enable_fp_fusion=True,
            )  # fmt: skip
        return out.unsqueeze(0)


@lru_cache(maxsize=64)
def launch_of(shape: HeadShape, cut: WorkCut, room: int) -> Mapping[str, int]:
    """Return the compile parameters of `attend_units` for these heads, with `room` bytes to share.

    Nothing of a step enters, so a row's sums always have the same order. The figures follow the compiler's
    reports for compute capabilities 8.0 to 9.0: few or no registers spilled, and of
    programs with small tiles at least two per multiprocessor. Raises `UserError` for heads that do not fit.
    """
    depth_1 = max(LEAST_SIDE, 1 << (shape.key_depth.bit_length() - 1))
    rest = shape.key_depth - depth_1
    depth_2 = max(LEAST_SIDE, triton.next_power_of_2(rest)) if rest > 0 else 0
    value_block = max(LEAST_SIDE, triton.next_power_of_2(shape.value_depth))
    depths = (depth_1, depth_2, value_block)
    heads = min(triton.next_power_of_2(shape.share), max(1, MOST_LANES // cut.rows))
    while heads:
        lanes = max(LEAST_SIDE, cut.rows * heads)
        for block, num_stages in BLOCKS if shape.dtype.itemsize == 2 else _BLOCKS_FLOAT32:
            if _fits(lanes, block, num_stages, depths, shape.dtype.itemsize, room):
                return {
                    "NUM_HEADS": shape.num_heads,
                    "SHARE": shape.share,
                    "HEADS": heads,
                    "LANES": lanes,
                    "BLOCK": block,
                    "KEY_DEPTH": shape.key_depth,
                    "VALUE_DEPTH": shape.value_depth,
                    "DEPTH_1": depth_1,
                    "DEPTH_2": depth_2,
                    "VALUE_BLOCK": value_block,
                    "num_warps": 8 if lanes > 32 else 4,
                    "num_stages": num_stages,
                }
        heads //= 2
    raise UserError(
        f"heads of {shape.key_depth} + {shape.value_depth} numbers in {shape.dtype} do not fit into "
        f"the shared memory of this GPU ({room} bytes for a program); serve with --attention torch_ref"
    )


def _fits(
    lanes: int, block: int, num_stages: int, depths: tuple[int, int, int], itemsize: int, room: int
) -> bool:
    """Tell whether a query tile and the pipeline's blocks of keys and values fit into `room` bytes."""
    num_buffers = num_stages // 2 + (1 if lanes >= 64 else 0)  # one more where products run asynchronously
    tile = lanes * (depths[0] + depths[1]) + num_buffers * block * sum(depths)
    return block * sum(depths) <= MOST_BLOCK and itemsize * tile + SMALL_PARTS <= room


@cache
def shared_memory(device: torch.device) -> int:
    """Return the shared memory in bytes of one program on `device`; an interpreting CPU has plenty."""
    if device.type != "cuda":
        return 1 << 20
    number: int | None = device.index
    number = torch.cuda.current_device() if number is None else number
    return int(triton.runtime.driver.active.utils.get_device_properties(number)["max_shared_mem"])


def _scales(terms: AttentionTerms) -> tuple[float, float]:
    """`factor` and `cap` of the kernel, whose scores carry log2(e)."""
    if terms.softcap is None:
        return terms.scaling * LOG2_E, 0.0
    return 2.0 * terms.scaling / terms.softcap * LOG2_E, terms.softcap * LOG2_E


def tables_of(plan: AttentionPlan, device: torch.device) -> AttentionTables:
    """Bring a plan to the device, in one transfer."""
    words = plan.ancestors.view(np.int32)  # first, as they want 8-byte places
    parts = (words, plan.units.reshape(-1), plan.rows.reshape(-1), plan.positions, plan.keys)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    on_device = torch.from_numpy(np.concatenate(parts)).to(device)
    ancestors, units, rows, positions, keys = on_device.tensor_split(ends[:-1])
    return AttentionTables(
        units=units.view(-1, len(UNIT_FIELDS)),
        num_narrow=plan.num_narrow,
        rows=rows.view(-1, len(ROW_FIELDS)),
        num_partials=plan.num_partials,
        positions=positions,
        keys=keys,
        ancestors=ancestors.view(torch.int64),
    )
