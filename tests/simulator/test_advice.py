"""Laws of advice: it says what the simulator found, and knows where drafting ends."""

import json
from pathlib import Path

import pytest

from forerun.cli import main
from simulator import advice as module
from simulator.advice import WORTH_IT, advise, in_words
from simulator.drafts import BetaDraft
from simulator.experiment import Pool
from simulator.link_spec import LinkSpec
from simulator.recordings import RecordedText, Recording, RecordingHeader, write_recording
from simulator.schemes import FORERUN
from simulator.world import DeviceSpec, World

pytestmark = pytest.mark.slow


SMALL = World(tokens=60, link=LinkSpec(rtt=0.04))


@pytest.fixture(autouse=True)
def _short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_ENOUGH", 0.2)


def test_a_useless_draft_is_not_recommended() -> None:
    world = World(tokens=60, draft=BetaDraft(mean=0.02), device=DeviceSpec(draft_time=0.2))
    advice = advise(world, repeats=1, workers=1)
    assert advice.break_even_rtt is None
    assert not advice.is_beyond
    words = in_words(world, advice)
    assert words[0].startswith("Let the server stream: at 60 ms")
    assert words[-1] == "Drafting ahead does not pay here, not even without any distance."


@pytest.mark.parametrize("rtt", [0.02, 1.0])
def test_the_break_even_lies_where_the_gain_ends(rtt: float) -> None:
    """From either side of it, and never against what was found at the round trip asked about."""
    world = World(tokens=150, draft=BetaDraft(mean=0.6), link=LinkSpec(rtt=rtt))
    advice = advise(world, repeats=2, workers=1)
    assert advice.break_even_rtt is not None
    assert (rtt <= advice.break_even_rtt) == (advice.speedup(FORERUN) >= WORTH_IT)
    with Pool(1) as pool:
        below, above = (
            module.speedup(module._at(world, rtt), 2, pool)
            for rtt in (advice.break_even_rtt, advice.break_even_rtt * 1.2 + 0.001)
        )
    assert below >= WORTH_IT > above


def test_a_recording_stands_for_the_acceptance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert main([*arguments, "--acceptance", "0.8"]) == 2
    assert "--acceptance and --recording" in capsys.readouterr().err
