"""The GPU benchmark runs in miniature where there is no GPU, so that it does not rot until there is one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.triton


@pytest.mark.soak
def test_every_part_runs_in_miniature_and_finds_nothing_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lab.benchmarks.gpu_step.__main__ import PARTS, main

    assert main(["--tiny", "--out", str(tmp_path)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    report = json.loads((tmp_path / "gpu_step.json").read_text())
    assert list(report["seconds"]) == list(PARTS)
    assert all(report[part] for part in PARTS)
    ways = [row["way"] for row in report["steps"]]
    assert ways == ["graph", "eager", "torch_ref", "graph, sampled", "graph, top-p"]
    assert all(row["times_floor"] > 0 for row in report["steps"])
    assert [row["graph_steps"] > 0 for row in report["steps"]] == [True, False, False, True, True, True]
    rates = report["rates"][:-1]
    runs = [(row["sessions"], row["acceptance"]) for row in rates]
    assert runs == [(1, None), (1, 0.6), (3, None), (3, 0.6)]
    assert [row["same_text"] for row in rates] == [None, True, None, True]
    loaded, *texts, memory = report["serving"]
    assert loaded["load_s"] > 0
    assert [row["right"] for row in texts] == [True, True, True]
    assert all(row["prompt"] > 256 and row["ttft_ms"] > 0 and row["ms_per_token"] > 0 for row in texts)
    assert memory["slots"] == 16384
    plain, drafted = rates[2:]
    assert plain["tokens_per_step_and_session"] == 1.0
    assert drafted["tokens_per_step_and_session"] > 1.2
