"""`benchmarks.wins`: a win, a draw and a loss are told apart, and a loss is looked at again."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from benchmarks import adaptation
from benchmarks.adaptation import main, random_world
from benchmarks.wins import FRESH, Meeting, Run, wins
from common import figures
from simulator.pool import Pool
from simulator.schemes import SYNC_BEST, run_scheme
from simulator.world import World


def meeting(ours: list[float], theirs: list[float]) -> Meeting:
    return Meeting(
        "w", "chain", tuple(Run(ms, 1.0, 0.0) for ms in ours), tuple(Run(ms, 1.0, 0.0) for ms in theirs)
    )


def pace(scheme: str, world: World) -> float:
    (result,) = run_scheme(scheme, world)
    return figures.pace([result.as_run()])


def test_a_ratio_is_of_means_and_its_error_is_of_differences() -> None:
    in_step = meeting([10.0, 20.0, 30.0], [5.0, 10.0, 15.0])
    assert (in_step.ratio, in_step.standard_error) == (2.0, 0.0)
    apart = meeting([10.0, 12.0], [10.0, 10.0])
    assert apart.ratio == 1.1
    assert apart.standard_error == pytest.approx(0.1)
    assert math.isnan(meeting([10.0], [9.0]).standard_error)


def test_a_loss_lies_beyond_the_margin_and_a_sure_one_beyond_noise() -> None:
    assert meeting([10.2, 10.2], [10.0, 10.0]).is_lost
    assert not meeting([10.05, 10.05], [10.0, 10.0]).is_lost
    assert meeting([10.05, 10.05], [10.0, 10.0]).is_surely_slower
    assert not meeting([10.0, 12.0], [10.0, 10.0]).is_surely_slower
    assert not meeting([12.0], [10.0]).is_surely_slower  # one seed tells nothing


def test_every_world_is_won_drawn_or_lost() -> None:
    worlds = {str(number): replace(random_world(number), tokens=60) for number in (0, 1, 4)}
    with Pool(1) as pool:
        report = wins(pool, worlds, seeds=1, again=2, rivals=("amusd", "off"))
    for rival, row in report["rivals"].items():
        ratios = {name: pace("adaptive", world) / pace(rival, world) for name, world in worlds.items()}
        assert row["faster"] == sum(ratio < 0.99 for ratio in ratios.values())
        assert row["slower"] == sum(ratio > 1.01 for ratio in ratios.values()) == len(row["losses"])
        assert row["faster"] + row["equal"] + row["slower"] == len(worlds)
        assert row["worst"] == pytest.approx(max(ratios.values()), abs=1e-4)
        assert row["geometric_mean"] == pytest.approx(math.prod(ratios.values()) ** (1 / 3), abs=1e-4)
    assert report["rivals"]["off"]["draft_tokens_per_token"] == 0.0


def test_a_lost_world_is_met_again_on_seeds_that_nobody_has_seen() -> None:
    world = replace(random_world(0), tokens=60)
    with Pool(1) as pool:
        row = wins(pool, {"w": world}, seeds=1, again=6, rivals=("clairvoyant",))["rivals"]["clairvoyant"]
    seeds = [replace(world, seed=FRESH + world.seed + number) for number in range(6)]
    ours, theirs = (sum(pace(scheme, seed) for seed in seeds) for scheme in ("adaptive", "clairvoyant"))
    (loss,) = row["losses"]
    assert loss["ratio"] == pytest.approx(ours / theirs, abs=1e-4)
    assert row["slower"] == row["slower_again"] == 1


def test_a_search_is_met_at_its_best() -> None:
    world = replace(random_world(0), tokens=60)
    with Pool(1) as pool:
        row = wins(pool, {"w": world}, seeds=1, again=1, rivals=(SYNC_BEST,))["rivals"][SYNC_BEST]
    assert row["worst"] == pytest.approx(
        pace("adaptive", world)
        / min(pace(f"sync:{block}", world) for block in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)),
        abs=1e-4,
    )


def test_the_command_meets_steady_worlds_and_drawn_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near = {"near": replace(random_world(0), tokens=40)}
    monkeypatch.setattr(adaptation, "steady_worlds", lambda: near)
    monkeypatch.setattr("benchmarks.wins.RIVALS", ("chain",))
    given = ["wins", "--seeds", "2", "--worlds", "1", "--workers", "1"]
    assert main([*given, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["steady"]["seeds"], report["random"]["seeds"]) == (2, 1)
    assert report["random"]["worlds"] == 1
    assert main(given) == 0
    assert "adaptive is faster in" in capsys.readouterr().out
