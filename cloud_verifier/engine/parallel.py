"""Implements tensor parallelism: one target over several processes, a part of each layer in each.

torchrun starts the same command once a device. Each process is a rank, loads its part of the weights as
transformers' own plan divides them, and probes it together with the others. Then rank 0 serves: it owns gRPC,
the scheduler and the choices, and sends the others each step before computing it; they compute their part
of the same forward and wait for the next. Slots have the same numbers everywhere; each rank has its KV heads.

A rank that fails leaves the others inside a collective, and there is no way back into step. So any failure
ends the group. The failed process ends with its reason. The others end when they notice: a closed connection
at once, silence after `patience` seconds. Each says why and exits with a non-zero code, for a supervisor to
restart it. Sessions resume on any verifier, on that one too.

A supervisor ends a group by a signal to rank 0, which drains first. The other ranks ignore the signal, since
rank 0 needs them until its sessions have left.
"""

from __future__ import annotations

import faulthandler
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.engine_protocol import IntArray, StepItem, StepPlan, StepResult, TargetEngine
from cloud_verifier.engine.around import EngineAround
from cloud_verifier.engine.attention.backend import AttentionBackend, StepAttention
from cloud_verifier.engine.packing import PackedStep
from common.errors import LocalError, UnavailableError, UserError
from common.sampling import SamplingParams

LOAD_PATIENCE = timedelta(minutes=30)
"""For what comes before serving: ranks read their weights at different speeds."""

PATIENCE = 60.0
"""Seconds without a word after which a rank gives the group up: several times the longest step."""

BEATS_PER_PATIENCE = 3
"""While there is nothing to do, rank 0 says so this often within the others' patience."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Holds this process's place among the processes that serve one target."""

    rank: int
    size: int
    patience: float  # seconds without a word after which the group is given up
    control: dist.ProcessGroup | None = None  # gloo, whatever the model's collectives run on

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def least(self, number: int) -> int:
        """Return the smallest of the ranks' numbers. All ranks call it together."""
        least = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self.control)
        return int(least)


def join(device: str, patience: float = PATIENCE) -> Ranks:
    """Meet the other processes that torchrun started; torchrun gives each its rank in the environment.

    Raises `UserError` if torchrun did not start this process, or on a device that transformers would not use.
    """
    if not dist.is_torchelastic_launched():
        raise UserError(
            "--tensor-parallel needs to be started by torchrun, for example: torchrun --nproc-per-node 2 "
            "-m forerun verify --tensor-parallel --model ..."
        )
    kind = torch.device(device).type
    default = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    accelerator = "cpu" if default is None else default.type
    if accelerator != kind:
        raise UserError(
            f"--device is {device}, and transformers divides a model over {accelerator} here; say --device "
            f"{accelerator}, or hide the accelerators (CUDA_VISIBLE_DEVICES= )"
        )
    if kind != "cpu":
        torch.accelerator.set_device_index(dist.get_node_local_rank())
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=LOAD_PATIENCE)
    control = dist.new_group(backend="gloo", timeout=LOAD_PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size(), patience, control)


def leave() -> None:
    """Close the connections to the other ranks."""
    dist.destroy_process_group()


class LeadingBackend(AttentionBackend):
    """Wraps a rank's attention backend. On rank 0, once it leads, it announces each step to the others.

    The engine calls `prepare` once for every forward, right before it, with all that the ranks need.
    """

    leads = True

    def __init__(self, inner: AttentionBackend) -> None:
        self.inner = inner
        self.rows_per_read, self.cuts = inner.rows_per_read, inner.cuts
        self.tell: Callable[[Sequence[StepItem]], None] | None = None

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        if self.tell is not None:
            self.tell(step.items)
        return self.inner.prepare(step, device)


class Leader:
    """Leads the control group from rank 0. Callers of `tell` and `lose` hold `lock`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.patience = ranks.patience
        self._on_lost: Callable[[], object] | None = None
        self.lost: UnavailableError | None = None  # why the group can no longer compute
        self.in_step = False  # the others were told of a step that is not done yet
        self.lock = threading.Lock()
        self._over = threading.Event()
        self._spoken = False  # since the last beat
        self._pulse = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._pulse.start()

    def when_lost(self, call: Callable[[], object]) -> None:
        """Have `call` called when the group is lost, by the thread that notices; now, if it is already."""
        with self.lock:
            self._on_lost = call
            if self.lost is not None:
                call()

    def tell(self, items: Sequence[StepItem]) -> None:
        """Have the other ranks compute this step."""
        self.in_step = self._spoken = True
        line = encode_items(items)
        self._send(np.array([len(line)], dtype=np.int64))
        self._send(line)

    def lose(self, error: BaseException) -> UnavailableError:
        """Mark the group as lost. Returns the error to raise."""
        if self.lost is None:
            self.lost = UnavailableError(f"the group of {self._ranks.size} ranks is lost: {_cause(error)}")
            if self._on_lost is not None:
                self._on_lost()
        return self.lost

    def end(self) -> None:
        """Let the other ranks go, unless the group is lost."""
        self._over.set()
        self._pulse.join()
        with self.lock:
            self._say(END)

    def _beat(self) -> None:
        """Send beats until `end`, to notice a broken connection when no step notices it."""
        while not self._over.wait(self.patience / BEATS_PER_PATIENCE):
            with self.lock:
                if not self._spoken:
                    self._say(BEAT)
                self._spoken = False

    def _say(self, word: int) -> None:
        """Send `BEAT` or `END`."""
        if self.lost is not None:
            return
        end_unless_fed(self.patience)
        try:
            self._send(np.array([word], dtype=np.int64))
        except RuntimeError as error:  # gloo's, when a connection is closed
            self.lose(error)
        rest()

    def _send(self, numbers: NDArray[Any]) -> None:
        dist.broadcast(torch.from_numpy(numbers), src=0, group=self._ranks.control)


class LeadingEngine(EngineAround):
    """Runs the engine of rank 0, which alone chooses. After a failed step it raises `UnavailableError`."""

    def __init__(self, engine: TargetEngine, leader: Leader) -> None:
        super().__init__(engine)
        self._leader = leader

    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step. A plan that breaks a rule is refused before it is announced."""
        leader = self._leader
        with leader.lock:
            if leader.lost is not None:
                raise leader.lost
            end_unless_fed(leader.patience)
            try:
                return self._engine.evaluate(plan)
            except Exception as error:
                if leader.in_step:
                    raise leader.lose(error) from error
                raise
            finally:
                leader.in_step = False
                rest()


def follow(compute: Callable[[StepPlan], Tensor], ranks: Ranks) -> None:
    """Compute the steps that rank 0 sends, until the end. `compute` is `TorchEngine.logits`.

    Raises `UnavailableError` if rank 0 is gone, or if this rank cannot compute a step.
    """
    try:
        while True:
            end_unless_fed(ranks.patience)
            plan = _receive_step(ranks)
            if plan is None:
                return
            end_unless_fed(ranks.patience)
            _compute(compute, plan, ranks)
    finally:
        rest()


def _receive_step(ranks: Ranks) -> StepPlan | None:
    """Return the next step: None at the end, an empty one for a beat."""
    try:
        length = int(_receive(torch.empty(1, dtype=torch.int64), ranks))
        if length == END:
            return None
        if length == BEAT:
            return StepPlan(())
        if not 0 < length <= MAX_LENGTH:
            raise LocalError(f"rank 0 sent a step of length {length}, which is none")
        line: IntArray = _receive(torch.empty(length, dtype=torch.int32), ranks).numpy()
    except RuntimeError as error:  # gloo's, when a connection is closed
        reason = f"rank 0 is gone, and rank {ranks.rank} ends with it: {_cause(error)}"
        raise UnavailableError(reason) from error
    return decode_items(line)


def _compute(compute: Callable[[StepPlan], Tensor], plan: StepPlan, ranks: Ranks) -> None:
    if not plan.items:
        return
    try:
        compute(plan)
    except Exception as error:
        reason = f"rank {ranks.rank} could not compute a step, and the group ends: {_cause(error)}"
        raise UnavailableError(reason) from error


def _cause(error: BaseException) -> str:
    """Return the cause alone: gloo's messages begin with a source location and end with advice."""
    reason = str(error) or type(error).__name__
    return re.sub(r"^\[[^]]*\] ", "", reason).split(". ")[0]


def _receive(buffer: Tensor, ranks: Ranks) -> Tensor:
    dist.broadcast(buffer, src=0, group=ranks.control)
    return buffer


# Frames. Rank 0 sends the length of a step, and then that many int32; or `BEAT` or `END` in its place. No
# pickle travels: whoever could reach the port could otherwise run code here.

BEAT, END = 0, -1
"""In place of a length: rank 0 is alive and has nothing to do; go."""

MAX_LENGTH = 2**28
"""Integers of a step at most (1 GiB): a length above it is garbage."""

_COUNTS = 3  # of an item: prefix slots, rows, outputs
_GREEDY = SamplingParams()


def encode_items(items: Sequence[StepItem]) -> IntArray:
    """Encode a step's items as int32 [N], without sampling: only rank 0 chooses."""
    parts: list[IntArray] = [np.array([len(items)], dtype=np.int32)]
    for item in items:
        counts = (len(item.prefix_slots), len(item.tokens), len(item.outputs))
        parts.append(np.array((item.session, *counts), dtype=np.int32))
        parts += [item.prefix_slots, item.tokens, item.positions, item.parents, item.slots, item.outputs]
    return np.concatenate(parts, dtype=np.int32)


def decode_items(line: IntArray) -> StepPlan:
    """Return the plan that `encode_items` wrote. Raises `LocalError` if the counts do not fit the line."""
    at = 0

    def take(count: int) -> IntArray:
        nonlocal at
        if not 0 <= count <= len(line) - at:
            raise LocalError(f"a step of {len(line)} integers ends before {at + count}")
        at += count
        return line[at - count : at]

    items = []
    for _ in range(int(take(1)[0])):
        session, prefix, rows, outputs = take(1 + _COUNTS).tolist()
        before, *own = (take(count) for count in (prefix, rows, rows, rows, rows))
        items.append(StepItem(session, before, own[0], own[1], own[2], own[3], take(outputs), _GREEDY))
    if at != len(line):
        raise LocalError(f"a step of {len(line)} integers goes on after {at}")
    return StepPlan(tuple(items))


# A collective cannot be cancelled from Python: a rank whose peer hangs, or whose peer's machine has lost its
# power, waits in native code. What is left is to end the process and let whoever supervises it start anew.


def end_unless_fed(patience: float) -> None:
    """End the process with code 1, and print where it stands, unless this is called again or `rest` is within
    `patience` seconds."""
    faulthandler.dump_traceback_later(patience, exit=True)


def rest() -> None:
    """Let the process wait as long as it likes, until the next `end_unless_fed`."""
    faulthandler.cancel_dump_traceback_later()
