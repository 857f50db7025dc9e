"""Messages of one line and of several, and the end."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from forerun.chat.messages import MORE, PROMPT, Messages, reader


def read(*lines: str | type[BaseException]) -> tuple[list[str], list[str]]:
    """All messages, and the prompts that were shown."""
    left: Iterator[str | type[BaseException]] = iter((*lines, EOFError))
    prompts = list[str]()

    def line(prompt: str) -> str:
        prompts.append(prompt)
        found = next(left, EOFError)
        if isinstance(found, str):
            return found
        raise found

    messages = Messages(line)
    return list(iter(messages.next, None)), prompts


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("a", "", "b"), ["a", "", "b"]),
        (("a\\", "b\\", "c", "d"), ["a\nb\nc", "d"]),
        (("a\\",), ["a"]),
        (('"""', "a", "", "b", '"""', "c"), ["a\n\nb", "c"]),
        (('"""a', 'b""" ignored', "c"), ["a\nb", "c"]),
        (('"""a"""', "c"), ["a", "c"]),
        (('"""', "a"), ["a"]),
    ],
)
def test_lines_become_messages(lines: tuple[str, ...], expected: list[str]) -> None:
    assert read(*lines)[0] == expected


def test_ctrl_c_drops_what_was_begun(capsys: pytest.CaptureFixture[str]) -> None:
    assert read("a\\", KeyboardInterrupt, "b") == (["b"], [PROMPT, MORE, PROMPT, PROMPT])


def test_a_pipe_has_no_prompts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a\r\nb"))
    assert list(iter(Messages(reader(False)).next, None)) == ["a", "b"]
    assert capsys.readouterr().out == ""
