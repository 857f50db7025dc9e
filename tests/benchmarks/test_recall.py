"""What guesses are worth is compared on the same texts, and every way writes the target's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recall import WAYS, _place, make_parser, print_table, simulate
from simulator.recordings import RecordedText, Recording, RecordingHeader, write_recording


def test_every_way_of_a_recorded_text_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tuple(20 + place % 9 for place in range(60))
    nothing = ((),) * 60
    text = RecordedText(5, tokens, nothing, nothing, (None,) * 60)
    path = tmp_path / "circles.jsonl"
    write_recording(path, Recording(RecordingHeader("target", "draft", 0.0, 1), (text,)))
    (result,) = simulate(make_parser().parse_args(["simulated", str(path), "--seeds", "1"]))
    ways = result["ways"]
    assert list(ways) == [name for name, way in WAYS.items() if way.drafting and not way.remembers]
    assert all(found.identical for found in ways.values())
    assert ways["server streaming"].target_steps_per_token == 1.0
    assert ways["server streaming, verifier guesses"].target_steps_per_token < 0.6
    assert ways["forerun, device guesses"].target_steps_per_token < 0.8
    print_table([result])
    assert "circles.jsonl" in capsys.readouterr().out


def test_what_one_way_wrote_is_remembered_in_no_other() -> None:
    """Else a table would hold the very text that is to be guessed."""
    for name, way in WAYS.items():
        neighbours = [other for other in WAYS if other != name and _place(WAYS[other]) == _place(way)]
        assert not (way.remembers and neighbours), name
