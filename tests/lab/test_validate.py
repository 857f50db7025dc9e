"""`python -m lab validate`: its arithmetic on made-up runs, and one short run of all of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lab import validate
from lab.__main__ import main
from lab.validate import RecordedSetting, ValidationSetting, compare
from simulator.drafts import BetaDraft, recorded_draft
from simulator.events import Draws
from simulator.link_spec import LinkSpec
from simulator.recordings import RecordedText, Recording, RecordingHeader
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World

TREE = ValidationSetting(rtt_ms=60.0, jitter_ms=0.0, step_floor_ms=30.0, policy="tree", temperature=0.8)


def made_up_text(seed: int) -> RecordedText:
    """What a recording would hold of a text of the simulator's. Recordings rank by score."""
    knowledge = BetaDraft(mean=0.8).session(Draws(seed))
    ids, scores, ranks, truths = [], [], [], []
    for place in range(10, 50):
        ranked = sorted(zip(*reversed(knowledge.candidates(place)), strict=True), reverse=True)
        truth = knowledge.truth(place)
        scores.append(tuple(score for score, _ in ranked))
        ids.append(tuple(token for _, token in ranked))
        ranks.append(ids[-1].index(truth) + 1 if truth in ids[-1] else None)
        truths.append(truth)
    return RecordedText(10, tuple(truths), tuple(ids), tuple(scores), tuple(ranks))


TEXTS = tuple(made_up_text(seed) for seed in (1, 2))
SPELLED = tuple(str(text.tokens) for text in TEXTS)
RECORDED = RecordedSetting(
    recorded_draft("made up", Recording(RecordingHeader("", "", 0.8, 1), TEXTS)), TEXTS, SPELLED
)


def runs_in(world: World) -> list[dict[str, Any]]:
    """The simulator's own runs, told as the edge would."""
    found = []
    for place, text in enumerate(TEXTS):
        own = replace(world, tokens=len(text.tokens), prompt_tokens=text.prompt_tokens, seed=1 + place)
        (result,) = run_scheme("tree", own)
        found.append(
            {
                "text": str(text.tokens),
                "arrivals_ms": [1e3 * arrival for arrival in result.arrivals],
                "stats": asdict(result.stats),
            }
        )
    return found


def test_runs_of_the_simulators_own_are_predicted_exactly() -> None:
    world = World(
        link=LinkSpec(rtt=0.063),
        device=DeviceSpec(0.004, 0.001),
        verifier=VerifierSpec(0.030, 0.0005, max_nodes_per_session=16, max_rows=256),
        draft=RECORDED.draft,
    )
    row = compare(TREE, runs_in(world), RECORDED, own_rtt=0.003)
    assert row["error_percent"] == pytest.approx(0.0, abs=1.0), "the time to read a prompt is in a run's mean"
    assert row["predicted_target_steps"] == row["measured_target_steps"]
    assert (row["draft_ms"], row["draft_ms_per_node"]) == (4.0, 1.0)
    assert row["step_ms"] == pytest.approx(30.0, abs=0.1)
    assert row["identical"]


def test_a_link_that_is_slower_than_told_shows_as_an_error() -> None:
    world = World(link=LinkSpec(rtt=0.15), device=DeviceSpec(0.004, 0.001), draft=RECORDED.draft)
    row = compare(TREE, runs_in(world), RECORDED, own_rtt=0.0)
    assert row["error_percent"] < -10.0


def made_up_row(identical: bool) -> dict[str, Any]:
    """A setting that was predicted well."""
    numbers = ("measured_ms_per_token", "predicted_ms_per_token")
    steps = ("measured_target_steps", "predicted_target_steps")
    return {
        "setting": str(TREE),
        **asdict(TREE),
        **dict.fromkeys((*numbers, *steps), 10.0),
        "error_percent": 0.0,
        "identical": identical,
    }


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is measured, in place of ten minutes of it: fill it."""
    found: list[dict[str, Any]] = []

    async def record(*_: Any) -> RecordedSetting:
        return RECORDED

    async def measure(*_: Any) -> AsyncIterator[dict[str, Any]]:
        for row in found:
            yield row

    monkeypatch.setattr(validate, "_record", record)
    monkeypatch.setattr(validate, "_measure_all", measure)
    return found


def test_another_text_than_the_recorded_one_is_marked_and_fails(
    tmp_path: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["validate", "--out", str(tmp_path)]
    rows.append(made_up_row(identical=True))
    assert main(command) == 0
    assert "*" not in capsys.readouterr().out
    rows.append(made_up_row(identical=False))
    assert main(command) == 1
    table = capsys.readouterr().out
    assert f"{TREE} * " in table
    assert "* the real text is not the recorded one" in table


def test_what_cannot_be_written_is_printed_all_the_same(
    tmp_path: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows.append(made_up_row(identical=True))
    (tmp_path / validate.REPORT).mkdir()
    assert main(["validate", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert str(TREE) in printed.out
    assert "cannot be written" in printed.err


@pytest.mark.soak
def test_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "FLOORS", (5.0,))
    settings = tuple(ValidationSetting(20.0, 4.0, 5.0, policy, 0.0) for policy in ("tree", "sync:4"))
    monkeypatch.setattr(validate, "SETTINGS", settings)
    code = main(["validate", "--out", str(tmp_path), "--num-prompts", "1", "--max-tokens", "24", "--json"])
    assert code in (0, 1)  # how near it comes depends on what else this machine does
    report = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / validate.REPORT).read_text()) == report
    assert [row["setting"] for row in report["results"]] == list(map(str, settings))
    for row in report["results"]:
        assert row["identical"]
        assert row["measured_ms_per_token"] > 0 < row["predicted_ms_per_token"]
        assert row["step_ms"] + 24 * row["step_ms_per_node"] >= 5.0  # a line through steps of 5 ms and more
    sync = report["results"][1]
    assert sync["measured_target_steps"] == sync["predicted_target_steps"]
