"""Damaged model files give a sentence; `python -m tests.fuzz.model_files` runs thousands."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.corrupt import GGUF, SAFETENSORS, damaged, spots, whole_safetensors
from tests.fuzz.model_files import PART, parts

ROOT = Path(__file__).resolve().parents[2]
CASES = 120


@pytest.mark.llama
@pytest.mark.torch
def test_no_damaged_file_ends_a_process_that_trusts_its_trial() -> None:
    """In a process of its own, as it forks."""
    words = [sys.executable, "-m", "tests.fuzz.model_files", "--cases", str(CASES), "--workers", "1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every law held" in done.stdout
    counts = dict(re.findall(r"^(.+?) +(\d+)$", done.stdout, re.MULTILINE))
    assert int(counts["gguf: refused by our reader"]) > CASES / 8
    assert int(counts["gguf: loads"]) > 0, "else nothing was seen of those that pass"
    assert int(counts["safetensors: refused by our reader"]) > CASES / 4
    assert int(counts["gguf: asked of Trials, too"]) > 0


def test_parts_are_all_cases_once() -> None:
    found = parts(1100, 7, ("gguf", "safetensors"))
    for kind in ("gguf", "safetensors"):
        seeds = [
            n for part in found if part.kind == kind for n in range(part.first, part.first + part.num_cases)
        ]
        assert seeds == list(range(7, 557))
    assert max(part.num_cases for part in found) == PART


@pytest.mark.llama
def test_spots_are_all_of_a_header(tmp_path: Path) -> None:
    from edge_client.llama.header import check_header
    from tests.edge_client.llama.tiny_gguf import write_tiny_gguf

    path = write_tiny_gguf(tmp_path / "m.gguf")
    found = spots(path.read_bytes())
    places = [spot.at for spot in found]
    assert places[0] == 4
    for before, after in itertools.pairwise(found):
        assert before.at + before.width == after.at, "nothing is left out"
    header = check_header(path)
    assert header.data_at - 32 < found[-1].at + found[-1].width <= header.data_at
    assert sum(spot.kind == "place" for spot in found) == len(header.tensors)


@pytest.mark.llama
def test_every_damage_changes_the_file(tmp_path: Path) -> None:
    from tests.edge_client.llama.tiny_gguf import write_tiny_gguf

    for whole, damages in (
        (write_tiny_gguf(tmp_path / "m.gguf").read_bytes(), GGUF),
        (whole_safetensors(), SAFETENSORS),
    ):
        for name, damage in damages.items():
            changed = [damage(whole, random.Random(seed)) != whole for seed in range(12)]
            assert sum(changed) >= 6, name
        again = [damaged(whole, damages, 5) for _ in range(2)]
        assert again[0] == again[1], "one seed is one file"
