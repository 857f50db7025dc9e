"""Laws of advice: it says what the simulator found, and knows where drafting ends."""

from __future__ import annotations

import json

import pytest

from forerun.cli import main
from simulator import advice as module
from simulator.advice import LONGEST_RTT, WORTH_IT, advise, in_words, map_lines
from simulator.knowledge import BetaDraft
from simulator.link import LinkSpec
from simulator.schemes import FORERUN, SERVER_STREAMING
from simulator.world import DeviceSpec, World

SMALL = World(tokens=60, link=LinkSpec(rtt=0.04))


@pytest.fixture(autouse=True)
def _small_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAP_RTTS", (0.0, 0.2))
    monkeypatch.setattr(module, "MAP_MEANS", (0.5, 0.9))
    monkeypatch.setattr(module, "HALVINGS", 3)


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
    assert words[-1] == "Drafting does not pay at any round trip with this draft and target."


def test_the_break_even_lies_where_the_gain_ends() -> None:
    world = World(tokens=150, draft=BetaDraft(mean=0.6))
    found = advise(world, repeats=2, workers=1)
    assert found.break_even_rtt is not None
    assert 0 < found.break_even_rtt < LONGEST_RTT
    below = module._speedup(module._at(world, found.break_even_rtt), 2, 1)
    above = module._speedup(module._at(world, found.break_even_rtt + LONGEST_RTT / 8), 2, 1)
    assert below >= WORTH_IT > above


def test_the_map_rises_with_acceptance_and_falls_with_distance() -> None:
    found = advise(SMALL, repeats=2, workers=1).speedup_map
    assert found[0.0][0.9] > found[0.0][0.5]
    assert found[0.0][0.9] > found[0.2][0.9]
    lines = map_lines(found)
    assert len(lines) == 3
    assert f"{found[0.2][0.5]:.2f}x" in lines[-1]


def test_the_command_speaks_and_refuses_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "advise", "--rtt", "30", "--step", "30", "--draft", "5", "--repeats", "1"]
    assert main([*arguments, "--acceptance", "0.8", "--workers", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["best"] == FORERUN
    assert set(report["speedup_map"]) == {"0", "200"}
    assert main([*arguments, "--acceptance", "1.8"]) == 2
    assert "draft mean is 1.8" in capsys.readouterr().err
