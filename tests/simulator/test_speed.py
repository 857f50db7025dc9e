"""`benchmarks.simulator_speed`: what it tells; a wrong setting is a sentence before anything runs."""

from __future__ import annotations

import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import simulator.system
from benchmarks import simulator_speed
from benchmarks.simulator_speed import crowd_world, main

SMALL = ["--tokens", "20", "--repeats", "1", "--share", "0.002", "--scheme", "server_streaming"]


def test_it_tells_what_ran_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--every", "120", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["compiled"] is False
    assert report["one_client"]["tokens_per_minute"] > 0
    (row,) = report["crowd"]
    assert (row["clients"], row["texts"], row["tokens"]) == (1, 5, 5 * simulator_speed.TOKENS)
    assert row["processes"] == 1


def test_replicas_are_simulated_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--replicas", "2"]) == 0
    assert "2 verifiers), server_streaming: " in capsys.readouterr().out


def test_the_words_say_whether_it_is_the_compiled_copy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(SMALL) == 0
    words = capsys.readouterr().out
    assert "in the sources, not compiled" in words
    assert "1 client with a text every 60 s" in words
    monkeypatch.setattr(simulator.system, "__file__", f"system{EXTENSION_SUFFIXES[0]}")
    assert main(SMALL) == 0
    assert capsys.readouterr().out.startswith("compiled simulator, ")


def test_clients_ask_every_so_often() -> None:
    arrivals = crowd_world({"profile": "lan"}, clients=100, every=20.0).arrivals
    assert arrivals is not None
    assert arrivals.plan(1, 1, 1)[-1].start == pytest.approx(600, rel=0.1)
    assert len(arrivals.plan(1, 1, 1)) == 3000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--tokens", "0"], "--tokens is 0; it must be at least 1"),
        (["--repeats", "0"], "--repeats is 0; it must be at least 1"),
        (["--share", "0"], "--share is 0; it must lie in 1e-6 to 1e6"),
        (["--share", "nan"], "--share is nan"),
        (["--share", "1e308"], "--share is 1e+308"),
        (["--share", "0.0001"], "0 clients with a text every 60 s ask for 0 in 10 minutes"),
        (["--replicas", "0"], "verifier replicas is 0"),
        (["--every", "-1"], "--every is -1"),
        (["--every", "1"], "ask for 600 in 10 minutes"),
        (["--every", "1e6"], "ask for 0 in 10 minutes"),
        (["--scheme", "carrier-pigeon"], "carrier-pigeon"),
        (["--scheme", "sync_best"], "sync_best is a search"),
        (["--trace", "not/there.csv"], "there.csv cannot be read"),
        (["--trace", "trace.csv", "--floor", "nan"], "trace_floor_ms is nan"),
    ],
)
def test_a_wrong_setting_is_a_sentence(
    given: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text("time_s,rtt_ms\n0,20\n1,30\n")
    monkeypatch.setattr(simulator_speed, "MAX_SESSIONS", 500)
    with pytest.raises(SystemExit) as ended:
        main([*SMALL, *given])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "…" not in printed.err
