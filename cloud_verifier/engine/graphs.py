"""CUDA graphs of whole steps, from token ids to choices, replayed by size bucket.

A model of 32 layers is some 1,300 kernels a step, which Python starts in 5 ms and more; a replay starts them
all at once. What cannot be replayed runs eagerly and is counted with its reason: prefill chunks, models whose
forward asks the host, steps beyond the largest bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.target import IntArray, StepItem, StepPlan
from cloud_verifier.engine.attention import StepContext, current_step
from cloud_verifier.engine.attention_plan import CUTS, plan_attention
from cloud_verifier.engine.choice import ChoiceRow
from cloud_verifier.engine.counts import StepCounts
from cloud_verifier.engine.device_choice import ChoiceTable, choice_table, choose_plain, finish
from cloud_verifier.engine.kv import KVStore
from cloud_verifier.engine.logprobs import Chosen, row_logprobs
from cloud_verifier.engine.packing import PackedStep, StepLimits, pack
from cloud_verifier.engine.step_buffers import LEAST_UNITS, ROW_BUCKETS, Bucket, StepBuffers
from cloud_verifier.engine.triton_attention import TritonBackend
from common.sampling import SamplingParams

logger = logging.getLogger(__name__)

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
"""tokens int64 [1, T], positions int64 [1, T], outputs int64 [O] to logits float32 [O, V], inside a step."""


MOST_UNITS = 4096
"""Units of attention of a replay: contexts of 2 million tokens. Each takes memory for partial results."""
MOST_READERS = 4
"""Keys of a replay, in multiples of the store's slots: sessions with a common prefix read the same ones."""
MOST_DIFFERENCE = 0.05
"""Of a replay's logits from an eager run's, root mean square, relative to their spread. The same kernels
run on the same numbers, so it is 0, or rounding where a library adds in another order; a wrong table gives
0.1 to 1."""

PREFILL = "a prefill chunk"
TOO_LARGE = "larger than the largest graph"
FIRST = "the first of its size"
DIFFERS = "a replay differed"


@dataclass(slots=True)
class _Recording:
    """One bucket's recording."""

    repeat: Callable[[], Tensor]  # returns logits float32 [rows, V]
    body: Callable[[], Tensor]  # what was recorded
    result: Tensor  # int32 [2, rows] where it leaves the choices
    trusted: bool = False  # whether a replay was compared with an eager run


class Capture(Protocol):
    """A way to make something repeatable: `CudaCapture`, or in tests a plain call."""

    def rehearsal(self) -> AbstractContextManager[Any]:
        """Code inside raises `RuntimeError` where it waits for the device. No recording may wait."""
        ...

    def __call__(self, body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record `body`, which has run before with the same shapes. The result repeats it on the same memory
        and returns what it returned, which holds until any recording is repeated."""
        ...


class CudaCapture:
    """Recordings as CUDA graphs that share one pool of memory, as only one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """See `Capture.rehearsal`. A capture that fails leaves torch's allocator in a state of its own."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def __call__(self, body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            # thread_local: what other threads do with CUDA meanwhile is none of this capture's business.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = body()
        finally:
            torch.cuda.set_stream(stream)  # torch leaves the capture's own in place where it fails
        kept = _borrowed(result)

        def replay() -> Tensor:
            graph.replay()
            return kept

        return replay


class _Borrowed:
    """Memory of a graph's pool, by the interface that `torch.as_tensor` reads."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 2,
        }


def _borrowed(result: Tensor) -> Tensor:
    """The same float32 memory without owning it: the next graph may use it, as logits are read at once.
    Owned, the logits of all graphs would add up to gigabytes."""
    return torch.as_tensor(_Borrowed(result.contiguous()), device=result.device)


def most_partial_bytes(num_heads: int, value_depth: int) -> int:
    """What one layer's partial results take in the largest graph, maxima and sums included."""
    return 4 * MOST_UNITS * CUTS.narrow.rows * num_heads * (value_depth + 2)


class GraphRunner:
    """Runs steps by replay where it can; `counts` says how often, and why not.

    A bucket's first step runs eagerly and is recorded. Its second is replayed and run eagerly, and the logits
    are compared, as the conformance probe sees eager steps only. From the third on steps are replayed. For a
    bucket that is recorded ahead (`warm`) both steps are made up.

    Args: forward, the model; kv, its store, whose last slot no plan names; backend, the attention; device;
    rows_of, `engine.choice_rows`; capture, how to record.
    """

    def __init__(
        self,
        forward: Forward,
        kv: KVStore,
        backend: TritonBackend,
        device: torch.device,
        rows_of: Callable[[StepItem], list[ChoiceRow]],
        capture: Capture,
    ) -> None:
        self.counts = StepCounts()
        self._forward = forward
        self._kv = kv
        self._backend = backend
        self._device = device
        self._rows_of = rows_of
        self._capture = capture
        self._refusal: str | None = None  # why nothing is replayed any more
        self._recordings: dict[Bucket, _Recording] = {}
        self._too_large = set[Bucket]()  # there was no memory to record them
        self._buffers = StepBuffers(
            device,
            max_units=MOST_UNITS,
            max_keys=MOST_READERS * kv.num_slots,
            rows_per_unit=backend.cuts.narrow.rows,
            spare_slot=kv.num_slots - 1,
        )

    @torch.inference_mode()
    def run(self, step: PackedStep) -> Chosen | None:
        """What a step chooses; None if it must run eagerly."""
        reason = self._refusal or self._reason_at_sight(step)
        if reason is not None:
            self._count_eager(reason)
            return None
        plan = plan_attention(step, self._backend.cuts)
        bucket = self._buffers.bucket(plan)
        if bucket is None or bucket in self._too_large:
            self._count_eager(TOO_LARGE)
            return None
        table = choice_table(step, self._rows_of)
        self._buffers.send(bucket, step, plan, table)
        recording = self._recordings.get(bucket)
        if recording is None:
            return self._record(bucket, (step, table))
        if not recording.trusted and not self._check(recording, len(step.outputs)):
            self._count_eager(DIFFERS)
            return None
        self.counts.graph += 1
        return chosen(step, recording.repeat(), recording.result, table)

    @torch.inference_mode()
    def warm(self, max_rows: int) -> None:
        """Record the buckets of steps of up to `max_rows` rows, largest first, so that no session waits. Each
        recording is compared with an eager run. This writes to slots, so it comes before all sessions."""
        for bucket in sorted(self._buckets(max_rows), reverse=True):
            if self._refusal is not None or bucket in self._recordings:
                continue
            step = _made_up(min(bucket.rows, self._kv.num_slots - 1), self._kv.num_slots)
            table = choice_table(step, self._rows_of)
            self._buffers.send(bucket, step, plan_attention(step, self._backend.cuts), table)
            try:
                self._record(bucket, None)
                if (recording := self._recordings.get(bucket)) is not None:
                    self._check(recording, len(step.outputs))
            except torch.OutOfMemoryError:  # of an eager run; a smaller bucket may have room
                self._recordings.pop(bucket, None)
                self._note_too_large(bucket)

    def _buckets(self, max_rows: int) -> Iterator[Bucket]:
        """Buckets that steps can need: each unit has at most so many rows, and the store so many slots."""
        cut = self._backend.cuts.narrow
        most_units = min(MOST_UNITS, max_rows + 2 * self._kv.num_slots // cut.split)
        for rows in ROW_BUCKETS[: 1 + sum(size < max_rows for size in ROW_BUCKETS)]:
            units = LEAST_UNITS
            while units < 2 * most_units:
                if 2 * units * cut.rows > rows:
                    yield Bucket(rows, units)
                units *= 2

    def _reason_at_sight(self, step: PackedStep) -> str | None:
        if not len(step.outputs):
            return PREFILL
        if step.num_rows > ROW_BUCKETS[-1]:
            return TOO_LARGE
        longest = max(len(item.tokens) for item in step.items)
        return PREFILL if longest > self._backend.cuts.most_narrow else None

    def _count_eager(self, reason: str) -> None:
        self.counts.eager += 1
        self.counts.reasons[reason] += 1

    def _record(self, bucket: Bucket, asked: tuple[PackedStep, ChoiceTable] | None) -> Chosen | None:
        """Run the bucket's body, and record it. As `run` of the step that asks, None if none does."""
        body, result = self._body(bucket)
        try:
            with self._capture.rehearsal():
                logits = body()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # what it waited for, in torch's words
            self._refuse(f"the model cannot be recorded: {error}")
            if asked is not None:
                self._count_eager(str(self._refusal))
            return None
        found = None
        if asked is not None:
            step, table = asked
            found = chosen(step, logits, result, table)
            self._count_eager(FIRST)
        del logits  # its memory may be wanted for the recording
        try:
            self._recordings[bucket] = _Recording(self._capture(body), body, result)
            self.counts.captures += 1
        except torch.OutOfMemoryError:
            self._note_too_large(bucket)
        except RuntimeError as error:  # torch's own for anything that a capture does not allow
            self._refuse(f"the model cannot be recorded: {error}")
        return found

    def _note_too_large(self, bucket: Bucket) -> None:
        logger.warning("no memory to record steps of %d rows, %d units", bucket.rows, bucket.units)
        self._too_large.add(bucket)

    def _body(self, bucket: Bucket) -> tuple[Callable[[], Tensor], Tensor]:
        """What a replay of the bucket does, from the tables on the device to logits float32 [rows, V]; and
        where it leaves the choices, int32 [2, rows]."""
        step = self._buffers.device_step(bucket)
        result = torch.empty((2, bucket.rows), dtype=torch.int32, device=self._device)

        def body() -> Tensor:
            context = StepContext(self._kv, step.slots, self._backend.attach(step.tables))
            with current_step(context):
                logits = self._forward(step.tokens[None], step.positions[None], step.outputs)
            choose_plain(logits, step.temperatures, step.keys, result)
            return logits

        return body, result

    def _check(self, recording: _Recording, num_outputs: int) -> bool:
        """Whether a replay gives the logits that an eager run of the same tables gives, up to rounding."""
        expected = recording.body()[:num_outputs]
        found = recording.repeat()[:num_outputs]
        error = ((found - expected).square().mean(dim=1).sqrt() / expected.std(dim=1)).max()
        recording.trusted = bool(error <= MOST_DIFFERENCE)  # False for nan, too
        if not recording.trusted:
            self._refuse(f"a replay differs from an eager run by {float(error):.2g} of the logits' spread")
        return recording.trusted

    def _refuse(self, reason: str) -> None:
        logger.warning("no CUDA graphs any more: %s", reason.strip().splitlines()[0])
        self._refusal = reason.strip().splitlines()[0]
        self._recordings.clear()


def _made_up(num_rows: int, num_slots: int) -> PackedStep:
    """A step of so many rows in sessions of eight."""
    items = []
    for first in range(0, num_rows, 8):
        rows: IntArray = np.arange(min(8, num_rows - first), dtype=np.int32)
        items.append(
            StepItem(first, rows[:0], rows * 0, rows, rows - 1, rows + first, rows, SamplingParams())
        )
    return pack(StepPlan(tuple(items)), StepLimits(1, 8, num_slots))


def chosen(step: PackedStep, logits: Tensor, plain: Tensor, table: ChoiceTable) -> Chosen:
    """`device_choice.finish`, with what sessions ask to be told."""
    choices, margins = finish(logits, plain, table)
    return Chosen(choices, margins, row_logprobs(step.items, logits, choices))
