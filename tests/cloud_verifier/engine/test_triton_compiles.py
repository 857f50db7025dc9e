"""The kernels compile for the GPUs that they are meant for, and fit into them; no GPU is needed for that.

Numpy runs the kernels in the other tests, and takes what Triton's compiler does not.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.triton

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `compiling` says of each, from a process of its own: where Triton interprets, it cannot
    compile."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "-W", "ignore", "-m", "tests.cloud_verifier.engine.compiling"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_all_fit_into_shared_memory(kernels: dict[str, dict[str, Any]]) -> None:
    assert len(kernels) == 11
    assert {name: one["shared"] for name, one in kernels.items() if one["shared"] > one["room"]} == {}


def test_none_spills_more_than_a_few_registers(kernels: dict[str, dict[str, Any]]) -> None:
    assert {name: one["spilled"] for name, one in kernels.items() if one["spilled"] > 64} == {}


def test_attention_reads_keys_ahead_and_16_bytes_at_a_time(kernels: dict[str, dict[str, Any]]) -> None:
    reading = [name for name, one in kernels.items() if one["wide_copies"]]
    assert reading == [
        "a tree of an 8B Llama on an H200",
        "a chunk of an 8B Llama on an H200",
        "a tree of Gemma 2 on an A100",
    ]
