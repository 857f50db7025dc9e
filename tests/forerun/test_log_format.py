"""The log of a server: one line an event whatever is in it, and nobody waits for it to be written."""

import io
import json
import logging
import threading

import pytest

from forerun import log_format as logs
from forerun.log_format import writing

logger = logging.getLogger("forerun.anything")


def lines(out: io.StringIO) -> list[str]:
    return out.getvalue().splitlines()


def said(style: str, **fields: object) -> str:
    """One event as it is written, without its time."""
    out = io.StringIO()
    with writing(None, style, out):
        logger.info("it happened", extra={"fields": fields})
    (line,) = lines(out)
    return line


def test_text_is_a_line_of_names_and_values() -> None:
    line = said("text", stream=3, session_id="abc-1", seconds=0.25, fill=True)
    time, _, rest = line.partition(" ")
    assert rest == "I it happened stream=3 session_id=abc-1 seconds=0.25 fill=true"
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert time.endswith("Z")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a b", '"a b"'),
        ("x reason=LOST", '"x reason=LOST"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ("日本", '"\\u65e5\\u672c"'),
        ("line\nbreak", '"line\\nbreak"'),
    ],
)
def test_a_name_that_others_chose_cannot_look_like_a_field(value: str, shown: str) -> None:
    assert said("text", name=value).endswith(f"it happened name={shown}")
    assert json.loads(said("json", name=value))["name"] == value


def test_json_is_an_object_a_line() -> None:
    record = json.loads(said("json", stream=3, why="no room", ratio=None))
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "info", "logger": "forerun.anything", "message": "it happened",
        "stream": 3, "why": "no room", "ratio": None,
    }  # fmt: skip


@pytest.mark.parametrize("style", logs.FORMATS)
def test_only_ascii_is_written(style: str) -> None:
    out = io.StringIO()
    with writing(None, style, out):
        logger.info("für %s", "日本", extra={"fields": {"name": "é"}})
    assert out.getvalue().isascii()


def test_an_error_brings_its_cause() -> None:
    def fail() -> None:
        try:
            raise ValueError("the cause")
        except ValueError:
            logger.exception("a step failed", extra={"fields": {"rows": 7}})

    text, js = io.StringIO(), io.StringIO()
    with writing(None, "text", text):
        fail()
    with writing(None, "json", js):
        fail()
    assert "E a step failed rows=7\nTraceback" in text.getvalue()
    (line,) = lines(js)
    record = json.loads(line)
    assert record["rows"] == 7
    assert record["exception"].endswith("ValueError: the cause")


@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [(None, ["info", "warning"], ["warning"]), ("warning", ["warning"], ["warning"]),
     ("debug", ["debug", "info", "warning"], ["debug", "info", "warning"])],
)  # fmt: skip
def test_levels_are_ours_and_libraries_warn(level: str | None, ours: list[str], theirs: list[str]) -> None:
    out = io.StringIO()
    with writing(level, "json", out):
        for name in ("debug", "info", "warning"):
            getattr(logger, name)("x")
            getattr(logging.getLogger("some.library"), name)("x")
    records = [json.loads(line) for line in lines(out)]
    assert [each["level"] for each in records if each["logger"] == logger.name] == ours
    assert [each["level"] for each in records if each["logger"] != logger.name] == theirs


class Stuck(io.StringIO):
    """An output that nobody reads until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.free = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.begun.set()
        assert self.free.wait(20)
        return super().write(text)


def test_who_logs_does_not_wait_and_lost_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING", 3)
    out = Stuck()
    with writing(None, "json", out):
        logger.info("first")
        assert out.begun.wait(20)  # the writer has it, and is stuck with it
        for number in range(5):
            logger.info("next %d", number)  # three wait, two are lost
        out.free.set()
    words = [json.loads(line) for line in lines(out)]
    (note,) = [each for each in words if "lines" in each]
    assert note["lines"] == 2
    assert [each["message"] for each in words if "lines" not in each] == [
        "first",
        "next 0",
        "next 1",
        "next 2",
    ]


def test_a_value_that_changes_later_is_written_as_it_was() -> None:
    out, value = Stuck(), [1]
    with writing(None, "json", out):
        logger.info("hold")
        assert out.begun.wait(20)
        logger.info("value %s", value)
        value.append(2)
        out.free.set()
    assert json.loads(lines(out)[-1])["message"] == "value [1]"
