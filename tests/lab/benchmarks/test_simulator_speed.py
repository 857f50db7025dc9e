"""`lab.benchmarks.simulator_speed`: what it tells; a wrong setting is a sentence before anything runs."""

from __future__ import annotations

import json

import pytest

from lab.benchmarks import simulator_speed
from lab.benchmarks.simulator_speed import crowd_world, main

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


def test_clients_ask_every_so_often() -> None:
    arrivals = crowd_world({"profile": "lan"}, clients=100, every=20.0).arrivals
    assert arrivals is not None
    assert arrivals.plan(1, 1, 1)[-1].start == pytest.approx(600, rel=0.1)
    assert len(arrivals.plan(1, 1, 1)) == 3000
