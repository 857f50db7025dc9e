"""Laws of progress: one line in place on a terminal, whole lines elsewhere."""

from __future__ import annotations

import io

import pytest

from forerun.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bar_at(out: io.StringIO, times: list[float]) -> ProgressBar:
    return ProgressBar(out, lambda: times[0])


def test_a_terminal_sees_one_line_with_share_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, now = Terminal(), [100.0]
    with bar_at(out, now) as bar:
        now[0] = 130.0
        bar.show(1, 4, "0 of 2 points")
        bar.note("not for a terminal")
        assert out.getvalue() == "\r[######..................]  25 %  0 of 2 points  1 min 30 s left\x1b[K"
        bar.show(2, 4)  # too soon to be worth drawing
        assert "50 %" not in out.getvalue()
        bar.show(4, 4)  # the end is always shown
        assert "100 %" in out.getvalue()
    assert "\n" not in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


def test_a_long_wait_is_told_in_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, now = Terminal(), [0.0]
    bar = bar_at(out, now)
    now[0] = 60.0
    bar.show(1, 200)
    assert "3 h 19 min left" in out.getvalue()


@pytest.mark.parametrize(("out", "term"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_elsewhere_lines_are_whole(out: io.StringIO, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    with bar_at(out, [0.0]) as bar:
        bar.show(1, 2, "half")
        bar.note("1 of 2")
    assert out.getvalue() == "… 1 of 2\n"
