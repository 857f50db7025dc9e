"""Tensor parallelism: one target over several processes, a part of each layer in each.

torchrun starts the same command once a device. Each process is a rank, loads its part of the weights as
transformers' own plan divides them, and probes it together with the others. Then rank 0 serves: it owns gRPC,
the scheduler and the choices, and tells the others each step before it computes it; they compute their part
of the same forward and wait for the next. Slots have the same numbers everywhere; each rank has its KV heads.

A rank that fails leaves the others inside a collective, and there is no way back into step. So any failure
ends the group: the failed process with its reason, the others as soon as they notice (a closed connection at
once, silence after `patience` seconds), each with a sentence and a non-zero code, for a supervisor to start
them anew. Sessions resume on any verifier, on that one too.

A rank that its supervisor tells to go asks rank 0 to end the group, by the store that they met at: the
sessions go elsewhere first, while all ranks still compute.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from cloud_verifier.core.target import IntArray, StepItem, StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.engine.attention import AttentionBackend, StepAttention
from cloud_verifier.engine.attention_plan import Cuts
from cloud_verifier.engine.grammar import check_grammar, prepare_grammars
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.engine.stats import Stats, stats_of
from cloud_verifier.engine.step_frames import (
    HEAD_LENGTH,
    Kind,
    decode_items,
    encode_items,
    head_of,
    read_head,
)
from cloud_verifier.engine.watchdog import Watchdog
from common.errors import UnavailableError, UserError
from common.messages import Open

logger = logging.getLogger(__name__)

LOAD_PATIENCE = timedelta(minutes=30)
"""For what comes before serving: ranks read their weights at different speeds."""

BEATS_PER_PATIENCE = 3
"""While there is nothing to do, rank 0 says so this often within the others' patience."""

LOOK_TIME = 1.0
"""Seconds between rank 0's looks at whether another one was told to go."""

LEAVING = "forerun/leaving"
"""The store's key for the rank that was told to go."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that serve one target."""

    rank: int
    size: int
    patience: float  # seconds without a word after which the group is given up
    control: dist.ProcessGroup | None = None  # gloo, whatever the model's collectives run on
    store: Any = None  # where they met: a `torch.distributed.Store`, for which there are no types

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def ask_to_leave(self) -> None:
        """Have rank 0 end the group. From any thread; if rank 0 is gone, nothing comes of it."""
        with contextlib.suppress(RuntimeError):
            self.store.set(LEAVING, str(self.rank))

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers. All ranks call it together."""
        found = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(found, op=dist.ReduceOp.MIN, group=self.control)
        return int(found)

    def who_leaves(self) -> str:
        """The rank that asked for it last; empty while none has. Raises `RuntimeError` if the store is gone,
        and waits for it without end if it is only silent."""
        return str(self.store.get(LEAVING), "ascii") if self.store.check([LEAVING]) else ""


def join(device: str, patience: float) -> Ranks:
    """Meet the processes that torchrun started with this one; it tells each its rank in the environment.

    Raises `UserError` if torchrun did not start this process, or on a device that transformers would not use.
    """
    if not dist.is_torchelastic_launched():
        raise UserError(
            "--tensor-parallel needs to be started by torchrun, for example: torchrun --nproc-per-node 2 "
            "-m forerun verify --tensor-parallel --model ..."
        )
    kind = torch.device(device).type
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    accelerator = "cpu" if found is None else found.type
    if accelerator != kind:
        raise UserError(
            f"--device is {device}, and transformers divides a model over {accelerator} here; say --device "
            f"{accelerator}, or hide the accelerators (CUDA_VISIBLE_DEVICES= )"
        )
    if kind != "cpu":
        torch.accelerator.set_device_index(dist.get_node_local_rank())
    backend = "nccl" if kind == "cuda" else "gloo"
    store, rank, size = next(iter(rendezvous("env://", timeout=LOAD_PATIENCE)))
    if rank == 0:
        store.delete_key(LEAVING)  # of an attempt before this one: torchrun keeps the store
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=LOAD_PATIENCE)
    control = dist.new_group(backend="gloo", timeout=LOAD_PATIENCE)
    return Ranks(rank, size, patience, control, store)


def leave() -> None:
    """Close the connections to the other ranks."""
    dist.destroy_process_group()


class LeadingBackend:
    """The attention backend of a rank. On rank 0, once it leads, it tells the others what comes.

    `prepare` is called once for every forward, right before it, with all that they need to know.
    """

    def __init__(self, inner: AttentionBackend) -> None:
        self.inner = inner
        self.rows_per_read: int = getattr(inner, "rows_per_read", 1)  # as in `TargetInfo`
        self.cuts: Cuts | None = getattr(inner, "cuts", None)  # as in `TritonBackend`
        self.tell: Callable[[Sequence[StepItem]], None] | None = None

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        if self.tell is not None:
            self.tell(step.items)
        return self.inner.prepare(step, device)


class Leader:
    """Rank 0's end of the control group. Whoever calls `tell` or `lose` holds `lock`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._on_over: Callable[[], object] | None = None
        self.lost: UnavailableError | None = None  # why the group can no longer compute
        self.leaving = ""  # the rank that was told to go
        self.in_step = False  # the others were told of a step that is not done yet
        self.lock = threading.Lock()
        self._over = threading.Event()
        self._spoken = False  # since the last beat
        words = f"no answer from the other ranks within {ranks.patience:g} s; this group of {ranks.size} ends"
        self.watchdog = Watchdog(ranks.patience, words)
        self._pulse = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._pulse.start()
        if ranks.store is not None:  # by a thread of its own: the store may be silent, and beats must go on
            threading.Thread(target=self._listen, name="ear", daemon=True).start()

    def when_over(self, call: Callable[[], object]) -> None:
        """Have `call` called when the group is lost, and when another rank was told to go, from whichever
        thread notices; now, if it is so already."""
        with self.lock:
            self._on_over = call
            if self.lost is not None or self.leaving:
                call()

    def tell(self, items: Sequence[StepItem]) -> None:
        """Have the other ranks compute this step."""
        self.in_step = self._spoken = True
        line = encode_items(items)
        self._send(head_of(Kind.STEP, len(line)))
        self._send(line)

    def lose(self, error: BaseException) -> UnavailableError:
        """The group is of no use any more. Returns what to raise."""
        if self.lost is None:
            self.lost = UnavailableError(f"the group of {self._ranks.size} ranks is lost: {_cause(error)}")
            if self._on_over is not None:
                self._on_over()
        return self.lost

    def end(self) -> None:
        """Let the other ranks go, unless they are lost."""
        self._over.set()
        self._pulse.join()
        with self.lock:
            self._say(Kind.END)
        self.watchdog.stop()

    def _beat(self) -> None:
        """Until `end`. A broken connection is noticed here when no step notices it."""
        while not self._over.wait(self._ranks.patience / BEATS_PER_PATIENCE):
            with self.lock:
                if not self._spoken:
                    self._say(Kind.BEAT)
                self._spoken = False

    def _listen(self) -> None:
        """Until another rank was told to go, or `end`."""
        while not self._over.wait(LOOK_TIME):
            try:
                leaving = self._ranks.who_leaves()
            except RuntimeError as error:
                words = (
                    "! torchrun's store is gone (%s): a further rank can no longer say that it was told to go"
                )
                logger.warning(words, _cause(error))
                return
            if leaving:
                with self.lock:
                    self.leaving = leaving
                    if self._on_over is not None:
                        self._on_over()
                return

    def _say(self, word: Kind) -> None:
        """A frame that is no step."""
        if self.lost is not None:
            return
        self.watchdog.feed()
        try:
            self._send(head_of(word))
        except RuntimeError as error:  # gloo's, when a connection is closed
            self.lose(error)
        self.watchdog.rest()

    def _send(self, numbers: NDArray[Any]) -> None:
        dist.broadcast(torch.from_numpy(numbers), src=0, group=self._ranks.control)


class LeadingEngine:
    """A `TargetEngine` on rank 0. Raises `UnavailableError` from the first failed step on."""

    def __init__(self, engine: TargetEngine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader

    @property
    def info(self) -> TargetInfo:
        return self._engine.info

    def stats(self) -> Stats:
        """See `ReportsStats`: those of this rank's part."""
        return stats_of(self._engine)

    def check_grammar(self, request: Open) -> None:
        """See `ChecksGrammars`; only this rank chooses."""
        check_grammar(self._engine, request)

    def prepare_grammars(self) -> None:
        """See `PreparesGrammars`."""
        prepare_grammars(self._engine)

    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step. A plan that breaks a rule is refused before the others hear of it."""
        leader = self._leader
        with leader.lock:
            if leader.lost is not None:
                raise leader.lost
            leader.watchdog.feed()
            try:
                return self._engine.evaluate(plan)
            except Exception as error:
                if leader.in_step:
                    raise leader.lose(error) from error
                raise
            finally:
                leader.in_step = False
                leader.watchdog.rest()


def follow(compute: Callable[[StepPlan], Tensor], ranks: Ranks) -> None:
    """Compute what rank 0 tells, until it says that it is over. `compute` is `TorchEngine.logits`.

    Raises `UnavailableError` if rank 0 is gone, or if this rank cannot compute a step.
    """
    words = f"no word from rank 0 within {ranks.patience:g} s; rank {ranks.rank} ends"
    watchdog = Watchdog(ranks.patience, words)
    try:
        while True:
            watchdog.feed()
            plan = _receive_step(ranks)
            if plan is None:
                return
            watchdog.feed()
            _compute(compute, plan, ranks)
    finally:
        watchdog.stop()


def _receive_step(ranks: Ranks) -> StepPlan | None:
    """The next step, None at the end; an empty one for a beat."""
    try:
        head = _receive(torch.empty(HEAD_LENGTH, dtype=torch.int64), ranks).tolist()
        kind, length = read_head(head)
        if kind is Kind.END:
            return None
        if kind is Kind.BEAT:
            return StepPlan(())
        line: IntArray = _receive(torch.empty(length, dtype=torch.int32), ranks).numpy()
    except RuntimeError as error:  # gloo's, when a connection is closed
        words = f"rank 0 is gone, and rank {ranks.rank} ends with it: {_cause(error)}"
        raise UnavailableError(words) from error
    return decode_items(line)


def _compute(compute: Callable[[StepPlan], Tensor], plan: StepPlan, ranks: Ranks) -> None:
    if not plan.items:
        return
    try:
        compute(plan)
    except Exception as error:
        words = f"rank {ranks.rank} could not compute a step, and the group ends: {_cause(error)}"
        raise UnavailableError(words) from error


def _cause(error: BaseException) -> str:
    """gloo's messages begin with a place in its sources and end with advice."""
    words = str(error) or type(error).__name__
    return re.sub(r"^\[[^]]*\] ", "", words).split(". ")[0]


def _receive(buffer: Tensor, ranks: Ranks) -> Tensor:
    dist.broadcast(buffer, src=0, group=ranks.control)
    return buffer
