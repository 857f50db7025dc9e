"""The rewriting of a file: a reference reaches the figure that is asked for, on both ways of measuring."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from lab.benchmarks.rewriting import EVERY, NUM_LINES, Task, main
from simulator.drafts import BetaDraft
from simulator.link import LinkSpec
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World

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


SLOW = ("--draft-step", "60", "--mean", "0.65", "--without-file")
"""A device whose draft model is slower than the verifier."""


def test_a_slow_device_with_an_index_is_faster_where_half_of_the_text_repeats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = simulated(capsys, *SLOW, "--every", "2")
    ms = {name: each["ms_per_token"] for name, each in found.items()}
    assert ms["draft"] == pytest.approx(ms["streaming"], rel=0.01), "the draft model alone helps nothing"
    assert ms["index"] < 0.6 * ms["streaming"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slow_device_with_an_index_is_never_slower_where_nothing_repeats(seed: int) -> None:
    """The tokens are drawn, so two that stood side by side foretell nothing."""
    slow = DeviceSpec(draft_time=0.060, recall=True)
    verifier = VerifierSpec().with_product_limits()
    world = World(LinkSpec(rtt=0.060), slow, verifier, BetaDraft(0.65), tokens=400, seed=seed)
    (helped,) = run_scheme("adaptive", world)
    (alone,) = run_scheme("off", world)
    assert helped.arrivals[-1] <= alone.arrivals[-1] + 0.001


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.api
@pytest.mark.grpc
def test_a_daemon_takes_few_target_steps_for_a_prediction() -> None:
    command = [sys.executable, "-m", "lab.benchmarks.rewriting", "serve", "--json"]
    small = ["--tasks", "1", "--server-recall", "--without-file"]
    found = subprocess.run([*command, *small], capture_output=True, text=True, timeout=300, check=True)
    report = json.loads(found.stdout)
    assert all(each["identical"] for each in report.values())
    assert report["reference"]["target_steps_per_token"] <= 1.2 * MOST_STEPS
