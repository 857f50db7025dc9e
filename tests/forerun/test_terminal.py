"""Laws of the terminal: tables, live views, and progress in place; whole lines elsewhere."""

import io
from collections.abc import Awaitable, Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from common.errors import UnavailableError
from forerun.terminal import Painter, ProgressBar, harmless, table, watch

WIDEST = 28
OTHER_SCREEN, HOME, BACK = "\x1b[?1049h", "\x1b[H", "\x1b[?1049l"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "30"), ("LINES", "5")):
        monkeypatch.setenv(name, value)


names = st.text(st.characters(exclude_categories=("C", "Z")), max_size=40)


@given(st.lists(names, min_size=1, max_size=4))
def test_columns_of_a_table_stand_below_each_other_and_long_names_are_cut(found: list[str]) -> None:
    head, *lines = table(("NAME", "PACE"), [(name, "12.5") for name in found], ("NAME",), WIDEST)
    assert len(lines) == len(found)
    assert {cell_len(line) for line in lines} == {cell_len(head)}
    assert cell_len(head) <= WIDEST + 2 + len("PACE")
    for line, name in zip(lines, found, strict=True):
        assert line.endswith("12.5")
        assert cell_len(name) > WIDEST or line.startswith(name)


class Enough(Exception):
    """Ends a watch that would go on for ever."""


def looks(*found: str | Exception) -> Callable[[], Awaitable[str]]:
    left: Iterator[str | Exception] = iter((*found, Enough()))

    async def look() -> str:
        now = next(left)
        if isinstance(now, Exception):
            raise now
        return now

    return look


def both(now: str, before: str | None) -> list[str]:
    return [f"{now} after {before}"]


async def test_each_look_takes_the_place_of_the_one_before_and_a_service_may_come_back() -> None:
    out = FakeTerminal()
    look = looks("one", "two", UnavailableError("nobody is there"), "three")
    with pytest.raises(Enough):
        await watch(look, both, interval=0.0, live=True, out=out)
    shown = out.getvalue()
    assert OTHER_SCREEN in shown.partition(HOME)[0]
    assert shown.rstrip().endswith(BACK) or BACK in shown.rpartition("three")[2]
    frames = [part for part in shown.split(HOME) if " after " in part or "nobody" in part]
    wanted = ["one after None", "two after one", "nobody is there", "three after None"]
    assert [[words for words in wanted if words in part] for part in frames] == [[words] for words in wanted]


async def test_a_pipe_gets_one_look_after_the_other_until_the_service_ends() -> None:
    out = io.StringIO()
    look = looks("one", "two", UnavailableError("nobody is there"))
    with pytest.raises(UnavailableError):
        await watch(look, both, interval=0.0, live=False, out=out)
    assert out.getvalue() == "one after None\ntwo after one\n"


def test_a_terminal_sees_how_far_the_work_is_and_nothing_stays() -> None:
    out = FakeTerminal()
    with ProgressBar(out) as bar:
        bar.show(1, 4, "0 of 2 points")
        bar.note("not for a terminal")
        bar.show(4, 4)
    assert "25%" in out.getvalue()
    assert "0 of 2 points" in out.getvalue()
    assert "100%" in out.getvalue()
    assert "not for a terminal" not in out.getvalue()
    assert out.getvalue().rstrip("\x1b[?25h\r\n").endswith("\x1b[2K")


def test_a_table_above_the_bar_replaces_the_last_one_and_does_not_stay() -> None:
    out = FakeTerminal()
    with ProgressBar(out) as bar:
        bar.show_above(["pace 10"])
        bar.show_above(["pace 12"])
        bar.show(2, 4)
    shown = out.getvalue()
    assert shown.index("pace 10") < shown.index("pace 12") < shown.index("50%")
    assert shown.rstrip("\x1b[?25h\r\n").endswith("\x1b[2K")


@pytest.mark.parametrize(("out", "term"), [(io.StringIO(), "xterm"), (FakeTerminal(), "dumb")])
def test_elsewhere_lines_are_whole(out: io.StringIO, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    with ProgressBar(out) as bar:
        bar.show(1, 2, "half")
        bar.note("1 of 2")
        bar.show_above(["pace", "10"])
    assert out.getvalue() == "… 1 of 2\npace\n10\n"


def test_colours_are_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Painter(FakeTerminal()).drafted("a") == "\x1b[32ma\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Painter(FakeTerminal()).drafted("a") == Painter(io.StringIO()).drafted("a") == "a"


def test_what_a_terminal_obeys_is_shown_in_its_place() -> None:
    hostile = "a\x1b]0;title\x07\x1b[2Jb\x9b6n\x7f\x08\x00"
    assert harmless(hostile) == "a␛]0;title␇␛[2Jb\ufffd6n␡␈␀"
    text = "line\n\ttab\r\n€ 你 🧪 \u00a0 e\u0301"
    assert harmless(text) == text


async def test_what_an_output_cannot_show_is_a_question_mark() -> None:
    wire = io.BytesIO()
    out = io.TextIOWrapper(wire, encoding="ascii")
    await watch(looks("日本"), both, interval=0.0, live=False, once=True, out=out)
    assert wire.getvalue() == b"?? after None\n"
