"""Laws of advice: it says what the simulator found, and knows where drafting ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.cli import main
from simulator import advice as module
from simulator.advice import STEP_MS, WORTH_IT, advise, in_words, map_lines
from simulator.drafts import BetaDraft
from simulator.experiment import Pool
from simulator.link import LinkSpec
from simulator.recordings import RecordedText, Recording, RecordingHeader, write_recording
from simulator.schemes import FORERUN, SERVER_STREAMING
from simulator.world import DeviceSpec, World

pytestmark = pytest.mark.slow


SMALL = World(tokens=60, link=LinkSpec(rtt=0.04))


@pytest.fixture(autouse=True)
def _small_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAP_RTTS", (0.0, 0.2))
    monkeypatch.setattr(module, "MAP_MEANS", (0.5, 0.9))
    monkeypatch.setattr(module, "MAP_STEPS", (0.5, 2.0))
    monkeypatch.setattr(module, "CLOSE_ENOUGH", 0.2)


def test_a_good_draft_is_recommended_with_its_gain() -> None:
    found = advise(SMALL, repeats=2, workers=1)
    assert found.best == FORERUN
    assert found.speedup(SERVER_STREAMING) == 1.0
    words = " ".join(in_words(SMALL, found))
    assert words.startswith("Draft on the device: at 40 ms")
    assert f"{found.speedup(FORERUN):.2f} times as fast" in words


def test_a_useless_draft_is_not_recommended() -> None:
    world = World(tokens=60, draft=BetaDraft(mean=0.02), device=DeviceSpec(draft_time=0.2))
    found = advise(world, repeats=1, workers=1)
    assert found.break_even_rtt is None
    assert not found.is_beyond
    words = in_words(world, found)
    assert words[0].startswith("Let the server stream: at 60 ms")
    assert words[-1] == "Drafting ahead does not pay here, not even without any distance."


@pytest.mark.parametrize("rtt", [0.02, 1.0])
def test_the_break_even_lies_where_the_gain_ends(rtt: float) -> None:
    """From either side of it, and never against what was found at the round trip asked about."""
    world = World(tokens=150, draft=BetaDraft(mean=0.6), link=LinkSpec(rtt=rtt))
    found = advise(world, repeats=2, workers=1)
    assert found.break_even_rtt is not None
    assert (rtt <= found.break_even_rtt) == (found.speedup(FORERUN) >= WORTH_IT)
    with Pool(1) as pool:
        below = module.speedup(module._at(world, found.break_even_rtt), 2, pool)
        above = module.speedup(module._at(world, found.break_even_rtt * 1.2 + 0.001), 2, pool)
    assert below >= WORTH_IT > above


def test_the_map_rises_with_acceptance_and_falls_with_distance() -> None:
    advice = advise(SMALL, repeats=2, workers=1)
    found = advice.speedup_map
    assert found[0.0][0.9] > found[0.0][0.5]
    assert found[0.0][0.9] > found[0.2][0.9]
    lines = map_lines(advice)
    assert "acceptance" in lines[0]
    assert len(lines) == 3
    assert f"{found[0.2][0.5]:.2f}x" in lines[-1]
    assert len({len(line) for line in lines[1:]}) == 1


def test_a_recording_is_mapped_over_target_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [1, 1, None, 1, 2, 1, 1, 1] * 20
    tokens = tuple({1: 7, 2: 8, None: 9}[rank] for rank in ranks)
    text = RecordedText(4, tokens, ((7, 8),) * 160, ((0.0, -2.0),) * 160, tuple(ranks))
    path = tmp_path / "demo.jsonl"
    write_recording(path, Recording(RecordingHeader("t", "d", 0.0, 1), (text,)))
    arguments = ["simulate", "advise", "--rtt", "30", "--step", "40", "--draft", "5", "--repeats", "1"]
    arguments += ["--recording", str(path), "--workers", "1"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["acceptance"] == 0.75
    assert report["speedup_map_across"] == STEP_MS
    assert report["speedup_map"]["0"]["80"] > report["speedup_map"]["0"]["20"]
    with pytest.raises(SystemExit):
        main([*arguments, "--acceptance", "0.8"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_the_command_speaks_and_refuses_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "advise", "--rtt", "30", "--step", "30", "--draft", "5", "--repeats", "1"]
    assert main([*arguments, "--acceptance", "0.8", "--workers", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["best"] == FORERUN
    assert set(report["speedup_map"]) == {"0", "200"}
    assert main([*arguments, "--acceptance", "1.8"]) == 2
    assert "draft mean is 1.8" in capsys.readouterr().err
