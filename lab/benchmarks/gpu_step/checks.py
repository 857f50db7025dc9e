"""Checks the engine on a GPU: kernels beside the reference backend, choices beside the reference, graphs
beside eager steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepPlan, StepResult
from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms, LayerKV
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.attention.triton_backend import TritonBackend
from cloud_verifier.engine.conformance_probe import probe
from cloud_verifier.engine.graphs import Capture, DeviceRunner
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import PackedStep, StepLimits, pack
from cloud_verifier.engine.sampling.device_choice import ChoiceTable, choose_eagerly, finish
from cloud_verifier.engine.sampling.host_choice import ChoiceRow, choose_on_host
from cloud_verifier.engine.torch_engine import TorchEngine
from cloud_verifier.engine.torch_loading import release, take_memory
from common.sampling import SamplingParams
from lab.benchmarks.gpu_step.plans import Book, random_tree


@dataclass(frozen=True, slots=True)
class Case:
    """Describes a kind of attention."""

    name: str
    heads: tuple[int, int, int, int]  # Hq, Hkv, Dk, Dv
    dtype: torch.dtype
    terms: bool = False  # a window, a softcap and sinks

    @property
    def label(self) -> str:
        terms = ", window, softcap, sinks" if self.terms else ""
        return f"{self.name}{terms}"


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = (
    Case("Llama 8B", (32, 8, 128, 128), BF16),
    Case("Llama 8B", (32, 8, 128, 128), BF16, terms=True),
    Case("Llama 8B", (32, 8, 128, 128), FP16, terms=True),
    Case("Qwen 2, 7 heads share one", (28, 4, 128, 128), BF16),
    Case("Gemma 2", (8, 4, 256, 256), BF16, terms=True),
    Case("Phi, depth 80", (32, 32, 80, 80), BF16),
    Case("depth 96", (32, 32, 96, 96), FP16),
    Case("one head for all", (20, 1, 64, 64), BF16),
    Case("expanded latent", (16, 16, 192, 128), BF16),
    Case("small heads", (4, 2, 64, 64), FP32, terms=True),
)
"""Each compiles two kernels, which takes seconds; float32, which has no matrix units, many."""
QUICK_CASES = (Case("small heads", (2, 1, 16, 16), FP32, terms=True),)

MOST_ERROR = {BF16: 1e-2, FP16: 2e-3, FP32: 1e-5}
"""Of an attention's result, norm of the difference over the norm: rounding of inputs, weights and results."""

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5, top_k=40),
    SamplingParams(temperature=1.2, top_p=0.9),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(logit_bias=((5, 3.0),)),
)

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "gemma2": ("Gemma2Config", {"sliding_window": 48, "query_pre_attn_scalar": 16}),
    "gpt_oss": ("GptOssConfig", {"sliding_window": 48, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


def kernel_errors(device: torch.device, seeds: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Compare the kernel's attention over random steps with the reference's in float32."""
    for case in QUICK_CASES if quick else CASES:
        worst = max(_kernel_error(device, case, seed, quick) for seed in range(seeds))
        dtype = str(case.dtype).removeprefix("torch.")
        right = worst <= MOST_ERROR[case.dtype]
        yield {"attention": case.label, "dtype": dtype, "worst_error": worst, "right": right}


def _kernel_error(device: torch.device, case: Case, seed: int, quick: bool) -> float:
    num_heads, num_kv_heads, key_depth, value_depth = case.heads
    step, num_slots = _random_step(seed, quick)
    generator = torch.Generator().manual_seed(seed)
    stored = torch.randn(num_slots, num_kv_heads, key_depth + value_depth, generator=generator)
    rows = stored.to(device, case.dtype)
    query = torch.randn(1, step.num_rows, num_heads, key_depth, generator=generator).to(device, case.dtype)
    query = query.transpose(1, 2)
    terms = AttentionTerms(key_depth**-0.5)
    if case.terms:
        sinks = torch.randn(num_heads, generator=generator).to(device, case.dtype)
        terms = AttentionTerms(key_depth**-0.5, window=64, softcap=30.0, sinks=sinks)
    attended = TritonBackend().prepare(step, device).attend(query, _kv(rows, key_depth), terms).float()
    wide = dataclasses.replace(terms, sinks=None if terms.sinks is None else terms.sinks.float())
    reference = TorchRefBackend().prepare(step, device)
    expected = reference.attend(query.float(), _kv(rows.float(), key_depth), wide)
    return float((attended - expected).norm() / expected.norm())


def _kv(rows: Tensor, key_depth: int) -> LayerKV:
    return LayerKV(rows, rows[..., :key_depth], rows[..., key_depth:])


def _random_step(seed: int, quick: bool) -> tuple[PackedStep, int]:
    """Trees below short and long contexts, tips and a prefill chunk; the second number is of slots."""
    random = np.random.default_rng(seed)
    scale, num_slots = (1, 200) if quick else (40, 8000)
    book = Book(num_slots, random)
    shapes = (
        [(60, 5), (3, 3), (20, 1)] if quick else [(int(random.integers(60)), 1 + n % 16) for n in range(10)]
    )
    items = []
    for session, (context, count) in enumerate(shapes):
        book.held[session] = [book.free.pop() for _ in range(context * scale)]
        items.append(book.item(session, [0] * count, random_tree(count, random)))
    chunk = 3 if quick else 150
    items.append(book.item(len(shapes), [0] * chunk, range(-1, chunk - 1)))
    return pack(StepPlan(tuple(items)), StepLimits(10, 1 << 20, num_slots)), num_slots


def choice_errors(device: torch.device, num_rows: int, vocab_size: int) -> dict[str, Any]:
    """Compare choices of random logits by the kernels with those of the reference on the host."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3.0
    kinds = [SAMPLINGS[index % len(SAMPLINGS)] for index in range(num_rows)]
    rows = [ChoiceRow(dataclasses.replace(kind, seed=7 * n), n) for n, kind in enumerate(kinds)]
    there, table = logits.to(device), ChoiceTable.of(rows)
    choices, margins = finish(there, choose_eagerly(there, table), table)
    expected, expected_margins = choose_on_host(logits.numpy(), rows)
    return {
        "rows": num_rows,
        "different": int((choices != expected).sum()),
        "margin_error": float(np.abs(margins - expected_margins).max()),
        "right": bool((choices == expected).all()),
    }


LITTLE = 16 << 10
"""Bytes; the tiny model's head takes more in float32."""


def load_errors(device: torch.device, backend: AttentionBackend) -> Iterator[dict[str, Any]]:
    """Check a load in half precision: its probe keeps no memory, it takes all KV, and a step of only
    a prompt's beginning wants no logits."""
    probe(tiny_model("llama", device, BF16), backend=backend)  # libraries allocate their own memory once
    model = tiny_model("llama", device, BF16)
    release()
    kept = -_allocated(device)
    report = probe(model, backend=backend)
    release()
    kept += _allocated(device)
    yield {"load": "memory that the probe keeps", "bytes": kept, "right": kept < LITTLE}
    engine = TorchEngine(model, 600, backend=backend)
    take_memory(engine)
    kv_bytes_held = sum(kv.rows.nbytes for kv in engine.kv.layers.values())
    yield {"load": "KV", "bytes": kv_bytes_held, "right": kv_bytes_held == 601 * report.kv_bytes}
    book = Book(600, np.random.default_rng(0))
    item = dataclasses.replace(book.item(0, [5] * 300, range(-1, 299)), outputs=np.zeros(0, np.int32))
    chosen = engine.evaluate(StepPlan((item,)))
    right = [len(choices) for choices in chosen.choices] == [0]
    yield {"load": "a step without outputs", "rows": 300, "right": right}


def _allocated(device: torch.device) -> int:
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


RECORDABLE = ("llama", "gemma2")
"""Families whose steps must be replayed. Experts may look at their routing on the host, which cannot be."""

NEAR_TIE = {FP32: 1e-3, BF16: 0.1}
"""A choice whose margin is smaller may be another one after other rounding: padding changes how products
sum."""


def graph_errors(
    device: torch.device, capture: Capture, *, num_steps: int, cases: Sequence[tuple[str, torch.dtype]]
) -> list[dict[str, Any]]:
    """Compare tiny models' choices by graphs with eager steps; sessions grow, whatever is chosen."""
    return [_graph_error(family, device, dtype, capture, num_steps) for family, dtype in cases]


def _graph_error(
    family: str, device: torch.device, dtype: torch.dtype, capture: Capture, num_steps: int
) -> dict[str, Any]:
    eager, replayed = (
        TorchEngine(tiny_model(family, device, dtype), 600, backend=TritonBackend()) for _ in range(2)
    )
    eager.runner, replayed.runner = DeviceRunner(eager), DeviceRunner(replayed, capture)
    random = np.random.default_rng(0)
    book = Book(600, random)
    different, worst, choices = 0, 0.0, 0
    for step in range(num_steps):
        plan = _next_plan(book, random, step, variety=2 if num_steps < 10 else 9)
        one, other = eager.evaluate(plan), replayed.evaluate(plan)
        different += _num_different(one, other, NEAR_TIE[dtype])
        worst = max(worst, _margin_error(one, other))
        choices += plan.num_outputs
        for item in plan.items:
            book.keep(item, range(len(item.tokens)) if step == 0 else [0])
    counts = replayed.runner.counts
    return {
        "family": family,
        "dtype": str(dtype).removeprefix("torch."),
        "steps": num_steps,
        "choices": choices,
        "different": different,
        "margin_error": worst,
        "graph_steps": counts.graph,
        "eager_steps": counts.eager,
        "reasons": dict(counts.reasons),
        "right": different == 0 and (counts.graph > 0 or family not in RECORDABLE),
    }


def _next_plan(book: Book, random: np.random.Generator, step: int, variety: int) -> StepPlan:
    """Prompts first, then trees of two sessions, of `variety` sizes, greedy and sampled."""
    items = []
    for session, sampling in enumerate((SAMPLINGS[0], SAMPLINGS[1])):
        count = 9 + session if step == 0 else 3 + (step + session) % variety
        parents = range(-1, count - 1) if step == 0 else random_tree(count, random)
        items.append(book.item(session, random.integers(90, size=count).tolist(), list(parents), sampling))
    return StepPlan(tuple(items))


def tiny_model(family: str, device: torch.device, dtype: torch.dtype) -> TargetModel:
    """Return a random model with two layers."""
    kind, extras = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(hf, kind)(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        **extras,
    )
    model = hf.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return TargetModel(family, model.to(device))


def _num_different(one: StepResult, other: StepResult, near_tie: float) -> int:
    """Choices that differ by more than rounding explains."""
    different = np.concatenate(one.choices) != np.concatenate(other.choices)
    return int((different & (np.concatenate(one.margins) > near_tie)).sum())


def _margin_error(one: StepResult, other: StepResult) -> float:
    pairs = zip(one.margins, other.margins, strict=True)
    return max((float(np.abs(a - b).max()) for a, b in pairs if len(a)), default=0.0)
