"""Laws of timelines: watching changes nothing, and what is shown adds up to the run."""

import json
from pathlib import Path

import pytest

from forerun.cli import main
from simulator.link_spec import LinkSpec
from simulator.schemes import policy_maker
from simulator.system import simulate
from simulator.timeline import TimelineSpan, Track, timeline
from simulator.world import World

WORLD = World(tokens=60, link=LinkSpec(rtt=0.07, jitter=0.01, loss=0.05, bandwidth_up=5000.0))


def on(spans: list[TimelineSpan], track: Track) -> list[TimelineSpan]:
    return [span for span in spans if span.track is track]


@pytest.mark.parametrize("scheme", ["forerun", "chain", "sync:4", "server_streaming"])
def test_a_watched_session_is_the_session(scheme: str) -> None:
    (result,) = simulate(WORLD, policy_maker(scheme))
    spans = timeline(WORLD, policy_maker(scheme))
    shown = [span.start for span in on(spans, Track.TEXT)]
    assert sorted(set(shown)) == pytest.approx(sorted(set(result.arrivals)))
    assert len(on(spans, Track.DRAFT)) == pytest.approx(result.stats.draft_steps, abs=1)  # one may be cut off
    assert len(on(spans, Track.STEP)) - result.stats.target_steps in (0, 1)  # the prompt may take its own


def test_the_command_shows_a_timeline_and_writes_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = tmp_path / "world.toml"
    world.write_text("[link]\nrtt_ms = 20\n")
    assert main(["simulate", "replay", str(world), "--tokens", "5"]) == 0
    assert "of the server's own" in capsys.readouterr().out
    out = tmp_path / "trace.json"
    assert main(["simulate", "replay", str(world), "--tokens", "5", "--trace", str(out)]) == 0
    assert json.loads(out.read_text())["traceEvents"]
    assert main(["simulate", "replay", str(world), "--trace", str(tmp_path / "none" / "t.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["run", "replay"])
def test_a_round_trip_over_a_trace_is_refused(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("time_s,rtt_ms\n0,50\n1,60\n", encoding="utf-8")
    world = tmp_path / "w.toml"
    world.write_text(
        'tokens = 5\nrepeats = 1\nschemes = ["off"]\n[link]\ntrace = "t.csv"\n', encoding="utf-8"
    )
    assert main(["simulate", action, str(world), "--rtt", "500"]) != 0
    assert "--rtt changes nothing" in capsys.readouterr().err
    assert main(["simulate", "run", str(world), "--workers", "1"]) == 0
    assert capsys.readouterr().out.startswith("trace t.csv, target step")
    world.write_text('[link]\ntrace = "t.csv"\nrtt_ms = 20\n', encoding="utf-8")
    assert main(["simulate", "run", str(world)]) != 0
    assert "both tell the round trip" in capsys.readouterr().err
