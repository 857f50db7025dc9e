"""Measures vLLM's plain decode of a model, in a process of its own, which prints one JSON object a line.

python -m lab.benchmarks.gpu_step.vllm_decode FOLDER CONTEXT SESSIONS [SESSIONS ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TOKENS = 64
"""Tokens of a text beyond its first. Their time is that of a text less that of its first token."""

FIRST = 1000
"""The lowest token id of prompts; any will do."""


def missing() -> str:
    """Return why vLLM cannot run here; empty if it may."""
    return "" if find_spec("vllm") is not None else "vllm is not installed"


def measure(folder: Path, context: int, sessions: Sequence[int], patience: float) -> Iterator[dict[str, Any]]:
    """Run this module and yield what it finds. Raises `RuntimeError` with its last words if it fails."""
    command = [
        sys.executable,
        "-m",
        "lab.benchmarks.gpu_step.vllm_decode",
        str(folder),
        str(context),
        *map(str, sessions),
    ]
    root = Path(__file__).resolve().parents[3]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=patience, cwd=root, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"vLLM took more than {patience:.0f} s") from error
    if run.returncode:
        raise RuntimeError(" / ".join(run.stderr.strip().splitlines()[-3:]))
    yield from (json.loads(line) for line in run.stdout.splitlines() if line.startswith("{"))


def main(arguments: Sequence[str]) -> int:
    """Time texts of so many sessions at once, each after `CONTEXT` tokens."""
    from vllm import LLM, SamplingParams

    folder, context, *sessions = arguments
    llm = LLM(
        model=folder,
        max_model_len=int(context) + TOKENS + 2,
        max_num_seqs=max(map(int, sessions)),
        enable_prefix_caching=False,
    )

    def seconds(num_sessions: int, num_tokens: int) -> float:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        starts = range(FIRST, FIRST + num_sessions)
        prompts = [{"prompt_token_ids": [start, *range(FIRST, FIRST + int(context) - 1)]} for start in starts]
        begun_at = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - begun_at

    for count in map(int, sessions):
        seconds(count, 2)
        least = min(seconds(count, 1 + TOKENS) for _ in range(2)) - min(seconds(count, 1) for _ in range(2))
        print(json.dumps({"sessions": count, "context": int(context), "step_ms": least / TOKENS * 1e3}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
