"""Laws of plots: what was asked for is on them, and what cannot be drawn is refused."""

from pathlib import Path

import pytest

from forerun.cli import main
from tests import wording

pytestmark = pytest.mark.slow


pytest.importorskip("matplotlib", reason="plots need matplotlib, of the extra `simulation`")


def test_the_command_draws_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = tmp_path / "world.toml"
    world.write_text('tokens = 20\nrepeats = 1\nschemes = ["server_streaming", "forerun"]\n')
    folder = str(tmp_path / "out")
    axes = ["--axis", "rtt_ms=0,40", "--axis", "mean=0.5,0.9", "--axis", "clients=1,2"]
    assert main(["simulate", "sweep", str(world), *axes, "--out", folder, "--workers", "1"]) == 0
    for kind in ("pace", "speedup", "capacity"):
        out = tmp_path / f"{kind}.png"
        point = [] if kind == "speedup" else ["--at", "mean=0.9"]
        assert main(["simulate", "plot", folder, "--kind", kind, *point, "--out", str(out)]) == 0
        assert out.stat().st_size > 10_000
        assert "world.toml, seed 1, 8 of 8 points" in capsys.readouterr().out
    unfinished = tmp_path / "out" / "results.csv"
    unfinished.write_text("".join(unfinished.read_text().splitlines(keepends=True)[:-4]))
    out = tmp_path / "part.svg"
    assert main(["simulate", "plot", folder, "--out", str(out)]) == 0
    assert "6 of 8 points" in capsys.readouterr().out
    for away in ("colour=1", "mean=0.7"):
        capsys.readouterr()
        assert main(["simulate", "plot", folder, "--at", away, "--out", "x.png"]) == 2
        wording.keep(capsys.readouterr().err)
