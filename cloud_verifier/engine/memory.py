"""How much memory a device has for KV, and how many slots that makes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from cloud_verifier.core.target import IntArray, StepItem, StepPlan
from common.errors import UserError
from common.sampling import SamplingParams

if TYPE_CHECKING:
    from cloud_verifier.engine.engine import TorchEngine

CPU_SLOTS = 16384
"""What `auto` means on a CPU, whose memory others use, too; fewer where the memory holds fewer."""

SHARE = 0.9
"""Share of the free memory that KV may take. The rest is for fragments and for the libraries' own buffers."""

GRAPHS = 512 << 20
"""Bytes of CUDA graphs beside the tensors that they hold: some 50 graphs of 1,300 kernels each."""

NODES = 8
"""Rows of a session in `largest_step`, beside its prompt's chunk."""

_MEMINFO = Path("/proc/meminfo")
_MEMINFO_SIZE = 8192  # its third line is what is read


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for KV, in bytes."""

    free: int | None  # beside what steps and graphs take; None where the system does not tell
    slot: int  # one token's keys and values over all layers

    @property
    def slots(self) -> int | None:
        """How many fit with a margin; None if unknown. One more is kept for rows that pad a step."""
        return None if self.free is None else max(0, int(SHARE * self.free) // self.slot - 1)

    def holds(self, slots: int) -> bool:
        """Whether so many fit, without a margin."""
        return self.free is None or (slots + 1) * self.slot <= self.free


def choose_slots(asked: int | None, room: Room, device: torch.device) -> int:
    """The number of slots: `asked`, or for None what fits. Raises `UserError` if that does not fit."""
    fit = room.slots
    if asked is None:
        slots = CPU_SLOTS if fit is None else fit
        slots = slots if device.type == "cuda" else min(CPU_SLOTS, slots)
        if slots < 1:
            raise UserError(
                f"--slots auto finds {_gib(room.free)} free on {device} beside the model and its steps, and "
                f"one slot takes {room.slot} bytes; use a smaller model, or lower --max-rows and "
                "--prefill-chunk"
            )
        return slots
    if not room.holds(asked):
        at_most = f" or at most {fit}" if fit else ""
        raise UserError(
            f"--slots {asked} needs {_gib((asked + 1) * room.slot)} of KV memory on {device} and "
            f"{_gib(room.free)} are free; use --slots auto{at_most}"
        )
    return asked


def take_memory(engine: TorchEngine) -> None:
    """Run a step of one row, so that all KV is there before anybody is served. Every rank calls it alike."""
    engine.logits(StepPlan((_item(0, 1, 0, 0, SamplingParams()),)))


def largest_step(max_rows: int, prefill_chunk: int, max_positions: int) -> StepPlan:
    """A prompt's chunk beside `max_rows` nodes, sampled with a filter, as that takes most memory."""
    sampling = SamplingParams(temperature=1.0, top_p=0.9)
    items = [_item(0, min(prefill_chunk, max_positions), 0, 0, sampling)]
    while (left := max_rows + len(items[0].tokens) - sum(len(item.tokens) for item in items)) > 0:
        rows = min(left, NODES, max_positions)
        items.append(_item(len(items), rows, sum(len(item.tokens) for item in items), rows, sampling))
    return StepPlan(tuple(items))


def _item(session: int, rows: int, first_slot: int, num_outputs: int, sampling: SamplingParams) -> StepItem:
    """A session's first rows, a chain."""
    numbers: IntArray = np.arange(rows, dtype=np.int32)
    none, zeros = numbers[:0], np.zeros(rows, dtype=np.int32)
    outputs = numbers[rows - num_outputs :]
    return StepItem(session, none, zeros, numbers, numbers - 1, numbers + first_slot, outputs, sampling)


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on `device` now; None where the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return _available() if device.type == "cpu" else None


def release() -> None:
    """Give memory that nobody refers to any more back to the device, so that `free_memory` counts it."""
    gc.collect()  # an engine and its runner know each other
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use


def peak_of(run: Callable[[], object], device: torch.device) -> int:
    """Bytes that `run` takes on a CUDA device at its peak, beyond what is held before it. Runs it twice: the
    first run also allocates what later ones find."""
    run()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - before


def _available() -> int | None:
    """What Linux says can be had without swapping."""
    try:
        with _MEMINFO.open(encoding="ascii") as file:
            text = file.read(_MEMINFO_SIZE)
    except OSError:
        return None
    found = [line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _gib(number: int | None) -> str:
    return f"{max(0, number or 0) / 2**30:,.3g} GiB"
