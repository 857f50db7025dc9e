"""Compiles the Triton kernels ahead of time and says what they take; needs no GPU, and no interpreter.

Run by `test_triton_compiles` in a process of its own: `python -m tests.cloud_verifier.engine.compiling`.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cloud_verifier.engine.attention.attention_kernels import add_splits, attend_units
from cloud_verifier.engine.attention.attention_units import CUTS, WorkCut
from cloud_verifier.engine.attention.triton_backend import HeadShape, launch_of
from cloud_verifier.engine.sampling.choice_kernels import find_best, find_edge, find_winner, merge, narrow
from cloud_verifier.engine.sampling.device_choice import NUM_TOKENS, SHARE

ROOM = {80: 166_912, 89: 101_376, 90: 232_448}
"""Bytes of shared memory that a program may have, by compute capability (A100, L4, H100 and H200)."""

POINTERS = {
    "bf16": "query kv sinks out",
    "fp32": "partial stats logits block_best block_second margins",
    "fp64": "settings edge_values",
    "i32": "keys units rows positions block_token winner runner_up equal ahead choices",
    "i64": "ancestors states sums edge_counts",
}
"""What the arguments of that name point to."""

FLOATS = ("factor", "cap")
ALIGNED_NUMBERS = ("query_row", "query_head", "kv_slot", "kv_head", "logits_row")
LLAMA = HeadShape(32, 8, 128, 128, torch.bfloat16)
GEMMA = HeadShape(8, 4, 256, 256, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel for one device."""

    kernel: Any
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    capability: int = 90
    longs: tuple[str, ...] = ()  # pointers to int64 that are int32 elsewhere


def attention(shape: HeadShape, cut: WorkCut, capability: int, *, terms: bool = False) -> Job:
    launch = dict(launch_of(shape, cut, ROOM[capability]))
    num_warps, num_stages = launch.pop("num_warps"), launch.pop("num_stages")
    constants = {**launch, "WINDOWED": terms, "CAPPED": terms, "SINKS": terms, "WIDEN": False}
    return Job(attend_units, constants, num_warps, num_stages, capability)


BLOCKS = {"BLOCK": NUM_TOKENS, "BLOCKS": 64}
SHARED = {**BLOCKS, "SHARE": SHARE}
JOBS = {
    "a tree of an 8B Llama on an H200": attention(LLAMA, CUTS.narrow, 90),
    "a chunk of an 8B Llama on an H200": attention(LLAMA, CUTS.wide, 90),
    "a tree of Gemma 2 on an A100": attention(GEMMA, CUTS.narrow, 80, terms=True),
    "adding splits": Job(
        add_splits, {"NUM_HEADS": 32, "VALUE_DEPTH": 128, "VALUE_BLOCK": 128, "SINKS": True}, num_warps=2
    ),
    "the best logits": Job(find_best, {"BLOCK": NUM_TOKENS}, num_warps=8),
    "the best scores": Job(find_winner, {**BLOCKS, "FILTERED": True}, num_warps=8, longs=("keys",)),
    "a first pass of top-k": Job(narrow, {**SHARED, "WEIGHTS": False, "FIRST": True}, num_warps=8),
    "a pass of top-p": Job(narrow, {**SHARED, "WEIGHTS": True, "FIRST": False}, num_warps=8),
    "a first pass of top-p": Job(narrow, {**SHARED, "WEIGHTS": True, "FIRST": True}, num_warps=8),
    "the last token kept": Job(find_edge, SHARED, num_warps=8),
    "choices": Job(merge, {"BLOCKS": 64}, longs=("keys",)),
}


def compiled(job: Job) -> dict[str, Any]:
    """What the kernel takes on the device: bytes of shared memory, of spilled registers, and wide copies."""
    names: list[str] = job.kernel.arg_names
    types = {name: _type(name, job) for name in names}
    constants = {(names.index(name),): value for name, value in job.constants.items()}
    aligned = [name for name in names if types[name].startswith("*") or name in ALIGNED_NUMBERS]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    binary = triton.compile(
        ASTSource(job.kernel, types, constants, attributes),
        target=GPUTarget("cuda", job.capability, 32),
        options={"num_warps": job.num_warps, "num_stages": job.num_stages, "enable_fp_fusion": True},
    )
    return {
        "shared": binary.metadata.shared,
        "room": ROOM[job.capability],
        "spilled": _spilled(binary.asm["cubin"]),
        "wide_copies": len(
            re.findall(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10", binary.asm["ptx"])
        ),
    }


def _type(name: str, job: Job) -> str:
    if name in job.constants:
        return "constexpr"
    if name in job.longs:
        return "*i64"
    for kind, names in POINTERS.items():
        if name in names.split():
            return f"*{kind}"
    return "fp32" if name in FLOATS else "i32"


def _spilled(cubin: bytes) -> int:
    """Bytes of stack of a kernel, by the tool that Triton brings."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"STACK:(\d+)", text)
    assert found is not None, text
    return int(found[1])


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: compiled(job) for name, job in JOBS.items()}) + "\n")
