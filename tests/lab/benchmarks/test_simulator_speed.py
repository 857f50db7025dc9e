"""`lab.benchmarks.simulator_speed`: what it tells; a wrong setting is a sentence before anything runs."""

from __future__ import annotations

import json

import pytest

from lab.benchmarks import simulator_speed
from lab.benchmarks.simulator_speed import main

SMALL = ["--tokens", "20", "--repeats", "1", "--share", "0.002", "--scheme", "server_streaming"]


def test_it_tells_what_ran_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--every", "120", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["one_client"]["tokens_per_minute"] > 0
    (row,) = report["crowd"]
    assert (row["clients"], row["texts"], row["tokens"]) == (1, 5, 5 * simulator_speed.TOKENS)
    assert row["processes"] == 1
    assert main([*SMALL, "--replicas", "2"]) == 0
    assert "2 verifiers" in capsys.readouterr().out
