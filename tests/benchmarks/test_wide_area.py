"""Laws of the wide-area benchmark: which settings run, what is run once, and one small run of everything."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.wide_area import has_search, main, make_parser, schemes_of, settings_of
from benchmarks.wide_area_report import Setting


def options_of(*words: str) -> argparse.Namespace:
    return make_parser().parse_args(["measure", "--out", "x.json", *words])


def test_every_combination_runs_floor_by_floor_the_nearest_first() -> None:
    options = options_of(
        "--rtt", "60", "20", "--floor", "30", "10", "--temperature", "0.8", "--schemes", "tree"
    )
    assert settings_of(options) == [
        Setting(30.0, 0.8, 20.0), Setting(30.0, 0.8, 60.0), Setting(10.0, 0.8, 20.0), Setting(10.0, 0.8, 60.0)
    ]  # fmt: skip


def test_a_colocated_draft_needs_the_link_of_no_length() -> None:
    options = options_of("--rtt", "60", "--floor", "30", "--temperature", "0", "--schemes", "colocated")
    near, far = settings_of(options)
    assert (near.rtt_ms, far.rtt_ms) == (0.0, 60.0)
    assert has_search(options, near)
    assert not has_search(options, far)


def test_server_streaming_is_always_there_to_be_compared_with() -> None:
    assert schemes_of(options_of("--schemes", "forerun", "chain")) == ["server_streaming", "chain", "forerun"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rtt", "-1"], "--rtt"),
        (["--floor", "nan"], "--floor"),
        (["--blocks", "0"], "--blocks"),
        (["--max-tokens", "1"], "--max-tokens"),
        (["--num-prompts", "99"], "there are 8 prompts"),
        (["--policy", "nothing"], "growth policy 'nothing' is unknown"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    words: Sequence[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    assert main(["measure", "--out", str(out), *words]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.grpc
def test_everything_runs_and_is_not_run_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    words = ["measure", "--out", str(out), "--num-prompts", "1", "--max-tokens", "16", "--blocks", "4", "2"]
    words += ["--floor", "0", "--temperature", "0.8"]
    assert main([*words, "--rtt", "4"]) == 0
    first = out.read_bytes()
    near, far = json.loads(first)["results"]
    for row in (near, far):
        assert row["identical_after_cut"]
        claimed = {name: found["identical"] for name, found in row["schemes"].items()}
        assert claimed.pop("device_only") is None
        assert claimed == dict.fromkeys(
            ["server_streaming", "chain", "tree", "forerun", "sync_best", "colocated"], True
        )
        assert row["schemes"]["device_only"]["bytes_up_per_token"] == 0.0
        assert row["schemes"]["device_only"]["draft_evaluations_per_token"] == 1.0
    assert far["schemes"]["colocated"]["ms_per_token"] == near["schemes"]["sync_best"]["ms_per_token"]
    assert "RTT 0 ms; ? left" in capfd.readouterr().err
    assert main([*words, "--rtt", "0", "4"]) == 0
    assert out.read_bytes() == first
    assert "left" not in capfd.readouterr().err
