"""A wrong setting of a benchmark is a sentence before anything runs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from lab.benchmarks import simulator_speed

WIDE = "measure --out report.json"
SPEED = "--tokens 20 --repeats 1 --share 0.002 --scheme server_streaming"


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("wide_area", f"{WIDE} --rtt -1", "--rtt"),
        ("wide_area", f"{WIDE} --floor nan", "--floor"),
        ("wide_area", f"{WIDE} --blocks 0", "--blocks"),
        ("wide_area", f"{WIDE} --max-tokens 1", "--max-tokens"),
        ("wide_area", f"{WIDE} --num-prompts 99", "there are 8 prompts"),
        ("wide_area", f"{WIDE} --policy nothing", "growth policy 'nothing' is unknown"),
        ("simulator_speed", f"{SPEED} --tokens 0", "--tokens is 0; it must be at least 1"),
        ("simulator_speed", f"{SPEED} --share 0", "--share is 0; it must lie in 1e-6 to 1e6"),
        (
            "simulator_speed",
            f"{SPEED} --share 0.0001",
            "0 clients with a text every 60 s ask for 0",
        ),
        ("simulator_speed", f"{SPEED} --replicas 0", "verifier replicas is 0"),
        ("simulator_speed", f"{SPEED} --every 1", "ask for 600 in 10 minutes"),
        ("simulator_speed", f"{SPEED} --scheme carrier-pigeon", "carrier-pigeon"),
        ("simulator_speed", f"{SPEED} --scheme sync_best", "sync_best is a search"),
        ("simulator_speed", f"{SPEED} --trace not/there.csv", "there.csv cannot be read"),
        ("simulator_speed", f"{SPEED} --trace trace.csv --floor nan", "trace_floor_ms is nan"),
    ],
)
def test_a_wrong_setting_is_a_sentence(
    name: str,
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text("time_s,rtt_ms\n0,20\n1,30\n")
    monkeypatch.setattr(simulator_speed, "MAX_SESSIONS", 500)
    assert import_module(f"lab.benchmarks.{name}").main(words.split()) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "…" not in told, "something ran"
    assert not Path("report.json").exists()
