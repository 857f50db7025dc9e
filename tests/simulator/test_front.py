"""`benchmarks.front`: points are means over seeds, and a panel has every family and both levels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks import front
from benchmarks.front import FAMILIES, STYLES, main, measure
from benchmarks.wins import run_of
from simulator.drafts import BetaDraft
from simulator.link import LinkSpec
from simulator.pool import Pool
from simulator.schemes import CLAIRVOYANT, SERVER_STREAMING, policy_maker, run_scheme
from simulator.world import World


def small_world() -> World:
    return World(LinkSpec(rtt=0.02, jitter=0.004), draft=BetaDraft(mean=0.8), tokens=40)


def test_a_point_is_the_mean_of_its_seeds() -> None:
    world = small_world()
    with Pool(1) as pool:
        report = measure(pool, {"w": world}, {"chain": ["chain", "chain:cut=0.5"]}, seeds=2)
    runs = [
        run_of(run_scheme("chain:cut=0.5", replace(world, seed=world.seed + number))[0])
        for number in range(2)
    ]
    first, second = report["worlds"]["w"]["families"]["chain"]
    assert second == {
        "policy": "chain:cut=0.5",
        "ms_per_token": pytest.approx(fmean(run.ms for run in runs), abs=1e-3),
        "draft_tokens_per_token": pytest.approx(fmean(run.sent for run in runs), abs=1e-3),
    }
    assert first["draft_tokens_per_token"] > second["draft_tokens_per_token"]
    levels = report["worlds"]["w"]["levels"]
    assert levels[CLAIRVOYANT] < levels[SERVER_STREAMING]


def test_two_policies_meet_on_the_same_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = small_world()
    monkeypatch.setattr(front, "steady_worlds", lambda: {"w": world})
    arguments = ["--seeds", "2", "--workers", "1"]
    assert main(["meet", "chain", "off", *arguments]) == 0
    met = json.loads(capsys.readouterr().out)["worlds"]["w"]
    chain, off = (
        fmean(run_of(run_scheme(policy, replace(world, seed=world.seed + number))[0]).ms for number in (0, 1))
        for policy in ("chain", "off")
    )
    assert met["ratio"] == pytest.approx(chain / off, abs=1e-3)
    assert met["policy"]["draft_tokens_per_token"] > met["rival"]["draft_tokens_per_token"] == 0
    assert met["standard_error"] > 0
    main(["meet", "chain", "chain", *arguments])
    same = json.loads(capsys.readouterr().out)["worlds"]["w"]
    assert (same["ratio"], same["standard_error"]) == (1.0, 0.0)


def test_every_setting_is_one_and_every_family_has_a_style() -> None:
    for family, settings in FAMILIES.items():
        assert family in STYLES
        for setting in settings:
            policy_maker(setting)


def test_what_was_measured_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(front, "steady_worlds", lambda: {"one": small_world(), "two": small_world()})
    monkeypatch.setattr(front, "FAMILIES", {"chain": ["chain"], "sync": ["sync:2"]})
    assert main(["measure", "--seeds", "1", "--workers", "1"]) == 0
    (report := tmp_path / "front.json").write_text(capsys.readouterr().out)
    assert set(json.loads(report.read_text())["worlds"]) == {"one", "two"}
    assert main(["plot", str(report), "--out", str(tmp_path / "front.svg")]) == 0
    drawn = (tmp_path / "front.svg").read_text()
    assert all(
        f"<!-- {word} -->" in drawn for word in ("chain", "sync", SERVER_STREAMING, CLAIRVOYANT, "two")
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["measure", "--seeds", "0"], "must be at least 1"),
        (["plot", "nowhere.json", "--out", "x.png"], "cannot be read"),
        (["meet", "chain", "best"], "'best' is unknown"),
    ],
)
def test_a_wrong_setting_is_a_sentence(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
