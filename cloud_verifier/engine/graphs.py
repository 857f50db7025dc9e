"""Runs steps on a GPU: by replay where possible, else eagerly, with choices made on the logits' device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepItem, StepPlan
from cloud_verifier.engine.attention.attention_units import (
    CUTS,
    ROW_FIELDS,
    UNIT_FIELDS,
    AttentionPlan,
    plan_attention,
)
from cloud_verifier.engine.attention.backend import KVStore, StepContext, current_step
from cloud_verifier.engine.attention.triton_backend import AttentionTables, TritonBackend
from cloud_verifier.engine.packing import PackedStep, StepLimits, item_of, pack
from cloud_verifier.engine.sampling.device_choice import (
    GREEDY,
    SETTINGS,
    ChoiceTable,
    choice_table,
    choose_eagerly,
    choose_plain,
    finish,
)
from cloud_verifier.engine.sampling.host_choice import ChoiceRow, Chosen
from cloud_verifier.engine.sampling.row_logprobs import row_logprobs
from cloud_verifier.engine.torch_engine import StepCounts, TorchEngine, no_choices
from common.errors import LocalError
from common.sampling import SamplingParams


class DeviceRunner:
    """Chooses on the logits' device, a `StepRunner`; `capture` None means no replays. Raises `LocalError`
    for an engine whose steps cannot be replayed."""

    def __init__(self, engine: TorchEngine, capture: Capture | None = None) -> None:
        self._engine = engine
        self.graphs: GraphRunner | None = None
        if capture is not None:
            backend, model = engine.backend, engine.model
            if not isinstance(backend, TritonBackend):
                raise LocalError("steps can only be replayed with the attention of TritonBackend")
            self.graphs = GraphRunner(
                model.forward, engine.kv, backend, model.device, engine.choice_rows, capture
            )
        self.counts = StepCounts() if self.graphs is None else self.graphs.counts

    @property
    def row_buckets(self) -> tuple[int, ...]:
        """Return the numbers of rows that steps are padded to; empty without replays."""
        return ROW_BUCKETS if self.graphs is not None and self.graphs.refusal is None else ()

    def run(self, step: PackedStep) -> Chosen:
        if not step.num_rows:
            return no_choices()
        with self._on_device():
            replayed = self.graphs.run(step) if self.graphs is not None else None
            return self._run_eagerly(step) if replayed is None else replayed

    @torch.inference_mode()
    def warm(self, max_rows: int, tell: Callable[[float], None] = lambda share: None) -> None:
        """Compile the kernels of choices and make the graphs of steps of up to `max_rows` rows, so that no
        session waits for them. `tell` is called with the share that is done."""
        tell(0.0)
        with self._on_device():
            self._warm_choices()
            if self.graphs is not None and max_rows:
                self.graphs.warm(max_rows, tell)

    def _warm_choices(self) -> None:
        """Choose for a filtered row, and for a late one without filters."""
        model = self._engine.model
        logits = torch.zeros((2, model.vocab_size), device=model.device)
        kinds = SamplingParams(temperature=1.0, top_p=0.9), SamplingParams(logit_bias=((0, 1.0),))
        table = ChoiceTable.of([ChoiceRow(params, 0) for params in kinds])
        finish(logits, choose_eagerly(logits, table), table)

    def _on_device(self) -> AbstractContextManager[Any]:
        """Graphs and kernels are launched on the current device, and each thread has its own."""
        device = self._engine.model.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _run_eagerly(self, step: PackedStep) -> Chosen:
        if self.graphs is None:
            self.counts.eager += 1
        logits = self._engine.forward(step)
        if not len(step.outputs):
            return no_choices()
        table = choice_table(step, self._engine.choice_rows)
        return chosen(step, logits, choose_eagerly(logits, table), table)


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
    repeat: Callable[[], Tensor]  # returns logits float32 [rows, V]
    body: Callable[[], Tensor]  # what was recorded
    result: Tensor  # int32 [2, rows] where it leaves the choices
    trusted: bool = False  # whether a replay was compared with an eager run


class Capture(Protocol):
    """Makes a call repeatable: `CudaCapture`, or in tests a plain call."""

    def rehearsal(self) -> AbstractContextManager[Any]:
        """Raise `RuntimeError` where code inside waits for the device. No recording may wait."""
        ...

    def __call__(self, body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record `body`, which has run before with the same shapes. The result repeats it on the same memory
        and returns what it returned, which holds until any recording is repeated."""
        ...


class CudaCapture:
    """Records CUDA graphs that share one pool of memory, as only one graph runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Rehearse a recording. A capture that fails leaves torch's allocator in a state of its own."""
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


def _borrowed(result: Tensor) -> Tensor:
    """Return the same float32 memory without owning it: the next graph may use it, as logits are read at
    once. Owned, the logits of all graphs would add up to gigabytes."""
    lent = result.contiguous()
    interface = {
        "shape": tuple(lent.shape),
        "typestr": "<f4",
        "data": (lent.data_ptr(), False),
        "strides": None,
        "version": 2,
    }
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device=lent.device)


def most_partial_bytes(num_heads: int, value_depth: int) -> int:
    """Return the bytes of one layer's partial results in the largest graph, maxima and sums included."""
    return 4 * MOST_UNITS * CUTS.narrow.rows * num_heads * (value_depth + 2)


class GraphRunner:
    """Runs steps by replay where possible; `counts` says how often, and why steps were not replayed.

    A bucket's first step runs eagerly and is recorded. Its second is replayed and run eagerly, and logits
    are compared, as the conformance probe sees eager steps only. From the third on, steps are replayed. For a
    bucket that is recorded ahead (`warm`) both steps are made up. No plan names the last slot of `kv`.
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
        self.refusal: str | None = None  # why nothing is replayed any more
        self._recordings: dict[SizeBucket, _Recording] = {}
        self._too_large = set[SizeBucket]()  # there was no memory to record them
        self._buffers = StepBuffers(
            device,
            max_units=MOST_UNITS,
            max_keys=MOST_READERS * kv.num_slots,
            rows_per_unit=backend.cuts.narrow.rows,
            spare_slot=kv.num_slots - 1,
        )

    @torch.inference_mode()
    def run(self, step: PackedStep) -> Chosen | None:
        """Return the choices of a step, or None if the step must run eagerly."""
        reason = self.refusal or self._reason_at_sight(step)
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
    def warm(self, max_rows: int, tell: Callable[[float], None] = lambda share: None) -> None:
        """Record the buckets of steps of up to `max_rows` rows, largest first, so that no session waits. Each
        recording is compared with an eager run. This writes to slots, so it comes before all sessions. `tell`
        is called with the share that is done."""
        buckets = sorted(self._buckets(max_rows), reverse=True)
        for done, bucket in enumerate(buckets):
            tell(done / len(buckets))
            if self.refusal is not None or bucket in self._recordings:
                continue
            step = _made_up(min(bucket.rows, self._kv.num_slots - 1), self._kv.num_slots)
            table = choice_table(step, self._rows_of)
            self._buffers.send(bucket, step, plan_attention(step, self._backend.cuts), table)
            try:
                self._record(bucket)
                if (recording := self._recordings.get(bucket)) is not None:
                    self._check(recording, len(step.outputs))
            except torch.OutOfMemoryError:  # of an eager run; a smaller bucket may have room
                self._recordings.pop(bucket, None)
                self._note_too_large(bucket)

    def _buckets(self, max_rows: int) -> Iterator[SizeBucket]:
        """Buckets that steps can need: each unit has at most so many rows, and the store so many slots."""
        cut = self._backend.cuts.narrow
        most_units = min(MOST_UNITS, max_rows + 2 * self._kv.num_slots // cut.split)
        for rows in ROW_BUCKETS[: 1 + sum(size < max_rows for size in ROW_BUCKETS)]:
            units = LEAST_UNITS
            while units < 2 * most_units:
                if 2 * units * cut.rows > rows:
                    yield SizeBucket(rows, units)
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

    def _record(
        self, bucket: SizeBucket, asked: tuple[PackedStep, ChoiceTable] | None = None
    ) -> Chosen | None:
        """Run the bucket's body, and record it. As `run` of the step that asks, None if none does."""
        body, result = self._body(bucket)
        try:
            with self._capture.rehearsal():
                logits = body()
        except RuntimeError as error:  # what it waited for, in torch's words
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self._refuse(f"the model cannot be recorded: {error}")
            if asked is not None:
                self._count_eager(str(self.refusal))
            return None
        choices = None
        if asked is not None:
            step, table = asked
            choices = chosen(step, logits, result, table)
            self._count_eager(FIRST)
        del logits  # its memory may be wanted for the recording
        try:
            self._recordings[bucket] = _Recording(self._capture(body), body, result)
            self.counts.captures += 1
        except torch.OutOfMemoryError:
            self._note_too_large(bucket)
        except RuntimeError as error:  # torch's own for anything that a capture does not allow
            self._refuse(f"the model cannot be recorded: {error}")
        return choices

    def _note_too_large(self, bucket: SizeBucket) -> None:
        logger.warning("no memory to record steps of %d rows, %d units", bucket.rows, bucket.units)
        self._too_large.add(bucket)

    def _body(self, bucket: SizeBucket) -> tuple[Callable[[], Tensor], Tensor]:
        """Return what a replay of the bucket does, from the tables on the device to logits float32 [rows, V];
        and where it leaves the choices, int32 [2, rows]."""
        step, tables = self._buffers.on_device(bucket)
        result = torch.empty((2, bucket.rows), dtype=torch.int32, device=self._device)

        def body() -> Tensor:
            context = StepContext(self._kv, step["slots"], self._backend.attach(tables))
            with current_step(context):
                logits = self._forward(step["tokens"][None], step["positions"][None], step["outputs"])
            choose_plain(logits, step["settings"], step["keys"], result, filtered=True)
            return logits

        return body, result

    def _check(self, recording: _Recording, num_outputs: int) -> bool:
        """Tell whether a replay gives the logits of an eager run of the same tables, up to rounding."""
        expected = recording.body()[:num_outputs]
        replayed = recording.repeat()[:num_outputs]
        error = ((replayed - expected).square().mean(dim=1).sqrt() / expected.std(dim=1)).max()
        recording.trusted = bool(error <= MOST_DIFFERENCE)  # False for nan, too
        if not recording.trusted:
            self._refuse(f"a replay differs from an eager run by {float(error):.2g} of the logits' spread")
        return recording.trusted

    def _refuse(self, reason: str) -> None:
        self.refusal = reason.strip().splitlines()[0]
        logger.warning("no CUDA graphs any more: %s", self.refusal)
        self._recordings.clear()


def _made_up(num_rows: int, num_slots: int) -> PackedStep:
    """Return a step of so many rows in sessions of eight."""
    items = []
    for first in range(0, num_rows, 8):
        count = min(8, num_rows - first)
        slots = np.arange(first, first + count, dtype=np.int32)
        items.append(item_of(range(-1, count - 1), slots, outputs=range(count), session=first))
    return pack(StepPlan(tuple(items)), StepLimits(1, 8, num_slots))


def chosen(step: PackedStep, logits: Tensor, plain: Tensor, table: ChoiceTable) -> Chosen:
    """Call `device_choice.finish`, and add the figures that sessions ask for."""
    choices, margins = finish(logits, plain, table)
    return Chosen(choices, margins, row_logprobs(step.items, logits, choices))


ROW_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""Rows of a replay. Beyond some 180 rows on an H200, by its rates, products are bound by arithmetic. Then a
row of padding costs what a node costs, and from 128 rows on it is a fifth of the rows at most."""
LEAST_UNITS = 16
"""Units of a replay are powers of two from here on; one that does nothing costs some nanoseconds."""

_LONG = ("tokens", "positions", "slots", "outputs", "keys", "ancestors")
"""Arrays of 8-byte numbers, one per row. Ancestors take one word a row: larger trees are never replayed."""
_NUM_LONG = len(_LONG) + SETTINGS
_PADDING = np.array(GREEDY)[:, None]
_COUNT = UNIT_FIELDS.index("count")
_SPLITS = ROW_FIELDS.index("splits")


@dataclass(frozen=True, slots=True, order=True)
class SizeBucket:
    """Holds the sizes that one replay serves."""

    rows: int  # and output rows
    units: int

    @classmethod
    def of(cls, num_rows: int, num_units: int) -> SizeBucket | None:
        """Return the smallest bucket for so many rows and units, or None if there is none."""
        rows = next((size for size in ROW_BUCKETS if size >= num_rows), None)
        return None if rows is None else cls(rows, max(LEAST_UNITS, 1 << (num_units - 1).bit_length()))

    @property
    def num_words(self) -> int:
        """Return the number of 8-byte words of the places, without the slot table, whose length varies."""
        return _NUM_LONG * self.rows + -(-sum(self.sizes) // 2)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return the number of 4-byte numbers of units, rows and places."""
        return len(UNIT_FIELDS) * self.units, len(ROW_FIELDS) * self.rows, self.rows

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Name the places in `flat` int64: settings [4, rows], `_LONG` [rows], units [units, 11], rows
        [rows, 2], places [rows] (the positions once more), and in the rest the slot table."""
        long, small = flat.tensor_split([_NUM_LONG * self.rows])
        settings, *arrays = long.view(_NUM_LONG, self.rows).tensor_split([SETTINGS])
        views = dict(zip(_LONG, arrays[0].unbind(), strict=True))
        views["settings"] = settings.view(torch.float64)
        parts = small.view(torch.int32).tensor_split(np.cumsum(self.sizes).tolist())
        views["units"], views["rows"] = parts[0].view(self.units, -1), parts[1].view(self.rows, -1)
        views["places"], views["slot_table"] = parts[2:]
        return views


class StepBuffers:
    """Holds the two arrays, and their views by bucket.

    Args: device, where steps run; max_units and max_keys, the most of a step; rows_per_unit, of narrow units;
    spare_slot, where padding rows write.
    """

    def __init__(
        self, device: torch.device, max_units: int, max_keys: int, rows_per_unit: int, spare_slot: int
    ) -> None:
        self._max_units, self._max_keys = max_units, max_keys
        self._rows_per_unit = rows_per_unit
        self._padding = {"tokens": 0, "positions": 0, "slots": spare_slot, "outputs": 0}
        size = SizeBucket(ROW_BUCKETS[-1], max_units).num_words + -(-max_keys // 2)
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._host_views: dict[SizeBucket, dict[str, NDArray[Any]]] = {}

    def bucket(self, plan: AttentionPlan) -> SizeBucket | None:
        """Return the bucket of a step, or None if the step fits none; wide units fit none."""
        if plan.num_wide or len(plan.units) > self._max_units or plan.num_keys > self._max_keys:
            return None
        return SizeBucket.of(len(plan.rows), len(plan.units))

    @torch.inference_mode()
    def send(self, bucket: SizeBucket, step: PackedStep, plan: AttentionPlan, table: ChoiceTable) -> None:
        """Write a step into its bucket's places and start its transfer to the device.

        The previous step must be done: its transfer may have been open until then.
        """
        host = self._host_views.get(bucket)
        if host is None:
            views = bucket.views(self._host).items()
            host = self._host_views[bucket] = {name: view.numpy() for name, view in views}
        given: dict[str, NDArray[Any]] = {
            "tokens": step.tokens,
            "positions": step.positions,
            "slots": step.slots,
            "outputs": step.outputs,
            "keys": table.keys,
            "ancestors": plan.ancestors,
            "units": plan.units,
            "rows": plan.rows,
            "places": plan.positions,
        }
        for name, numbers in given.items():
            host[name][: len(numbers)] = numbers
        for name, number in self._padding.items():
            host[name][len(given[name]) :] = number
        host["settings"][:, : table.num_rows] = table.settings
        host["settings"][:, table.num_rows :] = _PADDING
        host["units"][len(plan.units) :, _COUNT] = 0
        host["rows"][step.num_rows :, _SPLITS] = 0
        num_keys = plan.num_keys
        np.concatenate(plan.slots, out=host["slot_table"][:num_keys])
        used = bucket.num_words + -(-num_keys // 2)
        self._device[:used].copy_(self._host[:used], non_blocking=True)

    def on_device(self, bucket: SizeBucket) -> tuple[dict[str, Tensor], AttentionTables]:
        """Return the bucket's places on the device, and those places that attention reads, for a replay."""
        views = bucket.views(self._device)
        tables = AttentionTables(
            units=views["units"],
            num_narrow=bucket.units,
            rows=views["rows"],
            num_partials=bucket.units * self._rows_per_unit,
            positions=views["places"],
            keys=views["slot_table"],
            ancestors=views["ancestors"],
        )
        return views, tables
