"""The overhead's parts: a target that repeats a text in known time, steps paired with events, fairness."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lab.benchmarks.api_overhead import paired


def test_an_event_with_tokens_of_several_steps_is_paired_token_by_token() -> None:
    arrivals = [(1.0, 1), (2.5, 2), (3.0, 1)]
    assert paired(arrivals, [0.5, 1.5, 2.0, 2.75]) == [0.5, 1.0, 0.5, 0.25]
    with pytest.raises(ValueError, match="shorter"):
        paired(arrivals, [0.5, 1.5, 2.0])


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.api
@pytest.mark.grpc
def test_every_token_of_a_small_run_is_paired_with_its_step() -> None:
    command = [sys.executable, "-m", "lab.benchmarks.api_overhead", "--json"]
    small = ["--step", "5", "--texts", "1", "--tokens", "30"]
    found = subprocess.run([*command, *small], capture_output=True, text=True, timeout=300, check=True)
    report = json.loads(found.stdout)
    for row in report["overhead"].values():
        assert row["tokens"] == 30
        ended, told = row["since_ended"], row["since_told"]
        assert 0.0 < told["p50_ms"] <= told["p95_ms"] <= told["p99_ms"]
        assert told["p50_ms"] < ended["p50_ms"] <= ended["p95_ms"] <= ended["p99_ms"]
