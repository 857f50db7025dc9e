"""Laws of the picture of promises: a row per temperature, every version shown, and a file or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.core.confidence import Prior
from simulator.fitting import Observation, Text
from simulator.reliability_plot import Reliability, plot_reliability

pytest.importorskip("matplotlib")

TEXT: Text = [Observation((3.0, 2.0, 1.0, 0.5, -place), place % 5) for place in range(40)]


def test_two_drawings_of_the_same_promises_are_the_same_file(tmp_path: Path) -> None:
    rows = [Reliability(0.0, [TEXT], Prior()), Reliability(0.8, [TEXT, TEXT], Prior())]
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    plot_reliability(rows, first)
    plot_reliability(rows, second)
    assert first.read_bytes() == second.read_bytes()
    for words in (
        "greedy, 40 tokens",
        "temperature 0.8, 80 tokens",
        "learnt on the way",
        "rank of the candidate",
    ):
        assert words in first.read_text(encoding="utf-8")


def test_promises_that_are_all_kept_or_all_broken_can_be_drawn(tmp_path: Path) -> None:
    right: Text = [Observation((9.0, 0.0), 0)] * 10
    wrong: Text = [Observation((9.0,), None)] * 10
    plot_reliability([Reliability(0.8, [right, wrong], Prior())], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


def test_a_format_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.txt"):
        plot_reliability([Reliability(0.8, [TEXT], Prior())], tmp_path / "a.txt")
