"""`benchmarks.adaptation`: what it tells of small worlds; a wrong setting is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import adaptation
from benchmarks.adaptation import fixed_worlds, main, random_world
from benchmarks.wins import pace
from simulator.results import SessionResult
from simulator.schemes import run_scheme


def test_drawn_worlds_are_the_same_every_time_and_of_every_kind() -> None:
    worlds = [random_world(number) for number in range(200)]
    assert worlds == [random_world(number) for number in range(200)]
    assert {world.link.loss for world in worlds} == {0.0, 0.005, 0.02}
    assert min(world.draft.mean for world in worlds) < 0.1 < 0.9 < max(world.draft.mean for world in worlds)
    assert any(world.device.draft_time > world.verifier.step_time for world in worlds)


def test_random_tells_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["random", "--worlds", "3", "--policy", "chain", "--workers", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = report["policies"]["chain"]
    world = random_world(found["worst_world"])
    (fast,), (slow,) = (run_scheme(scheme, world) for scheme in ("chain", "off"))
    assert found["worst"] == pytest.approx(pace(fast) / pace(slow), abs=1e-4)
    assert main(["random", "--worlds", "1", "--workers", "1"]) == 0
    assert "of server streaming's time per token" in capsys.readouterr().out


def test_best_names_the_best_fixed_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "walk.csv").write_text("time_s,rtt_ms\n0,20\n1,30\n")
    assert "trace walk" in fixed_worlds(tmp_path)
    worlds = {"near": random_world(1)}
    monkeypatch.setattr(adaptation, "fixed_worlds", lambda folder: worlds)
    monkeypatch.setattr(adaptation, "FIXED", ["off", "chain"])
    assert main(["best", "--seeds", "1", "--workers", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["best_fixed_ms"] == min(row["best_fixed_ms"], row["streaming_ms"])
    assert row["ratio"] == pytest.approx(row["adaptive_ms"] / row["best_fixed_ms"], abs=1e-3)
    assert main(["best", "--seeds", "1", "--workers", "1"]) == 0
    assert "times the best fixed" in capsys.readouterr().out


def test_settled_compares_with_a_steady_world(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy that takes 10 ms a token in every world has nothing to settle."""

    def fixed(scheme: str, world: object) -> list[SessionResult]:
        (result,) = run_scheme("off", random_world(0))
        tokens = result.tokens * 5
        arrivals = tuple(0.01 * place for place in range(len(tokens)))
        return [SessionResult(tokens, tokens, arrivals, result.stats, 0, 0)]

    monkeypatch.setattr("simulator.pool.run_scheme", fixed)
    assert main(["settled", "--seeds", "1", "--workers", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["change"] for row in rows] == [
        "rtt to 300 ms",
        "rtt to 20 ms",
        "step to 60 ms",
        "step to 10 ms",
    ]
    assert all(row["share_of_steady_rate"] == pytest.approx(1.0, abs=0.01) for row in rows)
    assert main(["settled", "--seeds", "1", "--workers", "1"]) == 0
    assert "rtt to 300 ms: 1.0" in capsys.readouterr().out


@pytest.mark.parametrize("given", [["best", "--seeds", "0"], ["random", "--worlds", "0"], ["nothing"]])
def test_a_wrong_setting_is_a_sentence(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert "must be at least 1" in (said := capsys.readouterr().err) or "invalid choice" in said
