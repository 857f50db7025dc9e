"""The rewriting of a file: a reference reaches the figure that is asked for, on both ways of measuring."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.rewriting import EVERY, NUM_LINES, Task, main

MOST_STEPS = 0.15  # target steps a token


def test_a_task_is_a_function_of_its_seed_and_changes_a_tenth_of_the_lines() -> None:
    task = Task.of(1)
    assert task == Task.of(1) != Task.of(2)
    old, new = task.old.splitlines(), task.new.splitlines()
    assert len(old) == NUM_LINES
    kept = sum(line in set(new) for line in old)
    assert 0.05 < 1 - kept / len(old) < 1 / EVERY + 0.01


def simulated(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["simulate", "--json", "--tasks", "1", *options]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("options", [("--server-recall", "--without-file"), ()])
def test_a_reference_takes_few_target_steps(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    found = simulated(capsys, *options)
    steps = {name: each["target_steps_per_token"] for name, each in found.items()}
    assert steps["streaming"] == 1.0
    assert steps["reference"] <= MOST_STEPS
    assert found["reference"]["ms_per_token"] <= 1.1 * 30.0 * MOST_STEPS
    if "--without-file" in options:
        assert steps["recall"] > 2 * steps["reference"]
    assert found["reference"]["draft_steps_per_token"] < found["recall"]["draft_steps_per_token"]


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.api
@pytest.mark.grpc
def test_a_daemon_takes_few_target_steps_for_a_prediction() -> None:
    command = [sys.executable, "-m", "benchmarks.rewriting", "serve", "--json"]
    small = ["--tasks", "1", "--server-recall", "--without-file"]
    found = subprocess.run([*command, *small], capture_output=True, text=True, timeout=300, check=True)
    report = json.loads(found.stdout)
    assert all(each["identical"] for each in report.values())
    assert report["reference"]["target_steps_per_token"] <= 1.2 * MOST_STEPS
