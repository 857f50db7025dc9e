"""Measures a step's time beside its floor, by graphs and eagerly, by either attention; and where the time
goes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.attention import triton_backend as triton_attention
from cloud_verifier.engine.attention.attention_units import Cuts, WorkCut, plan_attention
from cloud_verifier.engine.attention.backend import AttentionTerms, LayerKV
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.attention.triton_backend import TritonBackend
from cloud_verifier.engine.graphs import DeviceRunner, StepBuffers
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import PrefixMarks, StepLimits, pack
from cloud_verifier.engine.sampling.device_choice import choice_table
from cloud_verifier.engine.sampling.host_choice import choice_rows
from cloud_verifier.engine.torch_engine import TorchEngine
from common.sampling import SamplingParams
from lab.benchmarks.gpu_step.clock import TimeBudget, TimedCapture, device_times_of, times_of
from lab.benchmarks.gpu_step.plans import load_plan, slots_of
from lab.benchmarks.gpu_step.settings import GpuSettings, Load, kv_bytes, weights_of
from lab.benchmarks.plans import GREEDY

SAMPLED = SamplingParams(temperature=0.8)
NUCLEUS = SamplingParams(temperature=0.8, top_p=0.95)

SPLITS = (256, 512, 1024)
BLOCKS = ((64, 5), (64, 3), (32, 5), (128, 3))
"""Keys in a block, and stages; what the kernel's own choice is held against."""


def bandwidth(num_bytes: int, device: torch.device) -> dict[str, float]:
    """Measure a copy on the device in bytes a second, reads and writes counted, and a bfloat16 product."""
    source = torch.randn(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy_time = device_times_of(lambda: target.copy_(source), 10, device, inner=3).median
    size = 8192 if device.type == "cuda" else 128
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_time = device_times_of(lambda: left @ right, 5, device, inner=5).median
    return {
        "bytes_per_second": 2 * source.nbytes / copy_time,
        "flops_per_second": 2 * size**3 / product_time,
    }


def host_times(settings: GpuSettings) -> list[dict[str, Any]]:
    """Measure each load's cost before it reaches the device: seconds of the four parts, and their
    sum."""
    rows_timed = []
    for load in settings.loads:
        plan = load_plan(load, settings.shape.vocab_size, SAMPLED)
        num_slots = 4 * slots_of(load)
        limits = StepLimits(settings.shape.vocab_size, 1 << 20, num_slots)
        items = (replace(item, prefix_slots=item.prefix_slots[:]) for item in plan.items)
        plan, marks = StepPlan(tuple(items)), PrefixMarks(num_slots)  # parts of arrays that grow in place
        step = pack(plan, limits, marks)
        attention, table = plan_attention(step), choice_table(step, choice_rows)
        buffers = StepBuffers(torch.device("cpu"), 4096, 4 * num_slots, 8, num_slots)
        bucket = buffers.bucket(attention)
        assert bucket is not None, "the loads are no prefill chunks"
        parts: dict[str, Callable[[], object]] = {
            "pack": partial(pack, plan, limits, marks),
            "cut": partial(plan_attention, step),
            "choices": partial(choice_table, step, choice_rows),
            "fill": partial(buffers.send, bucket, step, attention, table),
        }
        cpu = torch.device("cpu")
        repeats = 10 * settings.repeats
        least = {name: times_of(part, repeats, cpu, settings.warm_up).least for name, part in parts.items()}
        rows_timed.append({"load": str(load), **least, "sum": sum(least.values())})
    return rows_timed


@dataclass(frozen=True, slots=True)
class Way:
    """Describes a way to run a step."""

    name: str
    attention: str  # triton or torch_ref
    graphs: bool = False
    sampling: SamplingParams = GREEDY


WAYS = (
    Way("graph", "triton", graphs=True),
    Way("eager", "triton"),
    Way("torch_ref", "torch_ref"),
    Way("graph, sampled", "triton", graphs=True, sampling=SAMPLED),
    Way("graph, top-p", "triton", graphs=True, sampling=NUCLEUS),
)


class StepTimer:
    """Times steps of engines over one model and one KV store of random numbers."""

    def __init__(
        self, model: TargetModel, settings: GpuSettings, rates: Mapping[str, float], budget: TimeBudget
    ) -> None:
        self._model = model
        self._settings = settings
        self._rates = rates  # as `bandwidth` finds them
        self._budget = budget
        self._num_slots = max(map(slots_of, settings.loads))

    def measure(self) -> Iterator[dict[str, Any]]:
        """Time each load by each way."""
        for way in WAYS:
            gc.collect()  # an engine and its runner know each other
            engine, capture = self._engine(way)
            for load in self._settings.loads:
                if self._budget.left < 30.0:
                    yield {"load": str(load), "way": way.name, "skipped": "no time was left"}
                    continue
                yield self._time(engine, capture, load, way)

    def _engine(self, way: Way) -> tuple[TorchEngine, TimedCapture | None]:
        triton = way.attention == "triton"
        backend = TritonBackend() if triton else TorchRefBackend()
        engine = TorchEngine(self._model, self._num_slots, backend=backend)
        capture = TimedCapture(self._model.device) if way.graphs else None
        if triton:
            engine.runner = DeviceRunner(engine, capture)
        engine.evaluate(load_plan(Load(1, 1, 0), self._settings.shape.vocab_size))  # which makes the KV store
        with torch.inference_mode():
            for layer in range(self._model.num_layers):
                engine.kv.layers[layer].rows.normal_()  # zeros would be read faster
        return engine, capture

    def _time(
        self, engine: TorchEngine, capture: TimedCapture | None, load: Load, way: Way
    ) -> dict[str, Any]:
        plan = load_plan(load, self._settings.shape.vocab_size, way.sampling)
        if capture is not None:
            capture.take()
        run, settings = partial(engine.evaluate, plan), self._settings
        times = times_of(run, settings.repeats, self._model.device, settings.warm_up)
        on_device = capture.take() if capture is not None else None
        floor = self.floor(load)
        result: dict[str, Any] = {
            "load": str(load),
            "way": way.name,
            **times.as_ms(),
            "floor_ms": round(floor * 1e3, 4),
            "times_floor": round(times.median / floor, 3),
            "graph_steps": engine.runner.counts.graph,
        }
        if on_device is not None:
            result["device_ms"] = round(on_device.median * 1e3, 4)
        if load.bound is not None and way.graphs and way.sampling is GREEDY:
            result |= {"bound": load.bound, "within": result["times_floor"] <= load.bound}
        return result

    def floor(self, load: Load) -> float:
        """Return the seconds of each product, by its weights' bytes or by its operations, whichever takes
        longer, and of reading the KV; at the rates of a copy and of a large product."""
        bytes_per_second, flops_per_second = self._rates["bytes_per_second"], self._rates["flops_per_second"]
        num_rows = load.sessions * load.nodes
        products = sum(
            max(weight.nbytes / bytes_per_second, 2 * num_rows * weight.numel() / flops_per_second)
            for weight in weights_of(self._model)
        )
        token = kv_bytes(self._settings.shape, self._model.dtype)
        return products + load.sessions * (load.context + load.nodes) * token / bytes_per_second


def where_time_goes(model: TargetModel, settings: GpuSettings, num_kernels: int = 25) -> list[dict[str, Any]]:
    """Return the kernels of an eager step of the largest load, by their time on the device."""
    load = settings.loads[-1]
    engine = TorchEngine(model, slots_of(load), backend=TritonBackend())
    engine.runner = DeviceRunner(engine)
    plan = load_plan(load, settings.shape.vocab_size)
    engine.evaluate(plan)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if model.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        engine.evaluate(plan)
    events: list[Any] = list(profile.key_averages())
    spent = "self_device_time_total" if model.device.type == "cuda" else "self_cpu_time_total"
    events.sort(key=lambda event: -getattr(event, spent, 0.0))
    return [
        {"kernel": event.key[:120], "calls": event.count, "ms": round(getattr(event, spent, 0.0) / 1e3, 4)}
        for event in events[:num_kernels]
    ]


def attention_times(
    model: TargetModel, settings: GpuSettings, copy_rate: float, budget: TimeBudget
) -> Iterator[dict[str, Any]]:
    """Time one layer's attention by its cuts and compile options, beside reading its KV by a copy."""
    shape = settings.shape
    longest = Load(1, settings.loads[-1].nodes, 8 * settings.loads[-1].context)
    loads = (*settings.loads, longest)
    num_slots = max(map(slots_of, loads))
    sizes = (num_slots, shape.num_kv_heads, 2 * shape.head_dim)
    rows = torch.randn(sizes, device=model.device, dtype=model.dtype)
    kv = LayerKV(rows, rows[..., : shape.head_dim], rows[..., shape.head_dim :])
    for load in loads:
        plan = load_plan(load, shape.vocab_size)
        read = load.sessions * (load.context + load.nodes) * kv_bytes(shape, model.dtype) / shape.num_layers
        for split, block in _launches():
            if budget.left < 30.0:
                return
            cuts = Cuts(narrow=WorkCut(rows=8, split=split))
            with _compiled_with(block):
                seconds = _attention_time(plan, kv, cuts, model, settings)
            yield {
                "load": str(load),
                "split": split,
                "block": block[0],
                "stages": block[1],
                "us": round(seconds * 1e6, 2),
                "of_copy_rate": round(read / seconds / copy_rate, 3),
            }


def _launches() -> Iterator[tuple[int, tuple[int, int]]]:
    """The kernel's own choice of blocks with every split, then other blocks with its own split."""
    for split in SPLITS:
        yield split, BLOCKS[0]
    for block in BLOCKS[1:]:
        yield SPLITS[1], block


@contextmanager
def _compiled_with(block: tuple[int, int]) -> Iterator[None]:
    """Let `launch_of` choose this block first."""
    before = triton_attention.BLOCKS
    triton_attention.BLOCKS = (block, *before)
    triton_attention.launch_of.cache_clear()
    try:
        yield
    finally:
        triton_attention.BLOCKS = before
        triton_attention.launch_of.cache_clear()


@torch.inference_mode()
def _attention_time(
    plan: StepPlan, kv: LayerKV, cuts: Cuts, model: TargetModel, settings: GpuSettings
) -> float:
    shape, num_rows = settings.shape, plan.num_rows
    step = pack(plan, StepLimits(shape.vocab_size, 1 << 20, len(kv.rows)))
    attention = TritonBackend(cuts).prepare(step, model.device)
    sizes = (1, num_rows, shape.num_heads, shape.head_dim)
    query = torch.randn(sizes, device=model.device, dtype=model.dtype).transpose(1, 2)
    terms = AttentionTerms(shape.head_dim**-0.5)
    run = partial(attention.attend, query, kv, terms)
    run()
    return device_times_of(run, settings.repeats, model.device, inner=20).median
