"""Laws of prompts from files: every published form gives the same texts, and what is wrong is named."""

from pathlib import Path

import pytest

from common.errors import UserError
from tests import wording
from training.options import read_prompts
from training.prompts import some_of


@pytest.mark.parametrize(
    "content",
    [
        '["def a():", "b\\n"]',
        '[{"text": "def a():", "name": "x"}, {"text": "b\\n"}]',
        '{"task_id": "HumanEval/0", "prompt": "def a():", "test": "t"}\n\n{"prompt": "b\\n"}\n',
        '"def a():"\n"b\\n"\n',
    ],
)
def test_every_form_gives_the_texts(content: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text(content, encoding="utf-8")
    assert read_prompts(path) == ["def a():", "b\n"]


def test_a_single_line_is_one_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one\u2028line"}\n', encoding="utf-8")
    assert read_prompts(path) == ["one\u2028line"]


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"prompt": "a"}\nnot JSON\n',
        '[{"text": "a"}, {"question": "b"}]',
        '["a", ""]',
        '["a", 7]',
    ],
)
def test_what_is_wrong_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text(content, encoding="utf-8")
    with wording.raises(UserError):
        read_prompts(path)


def test_a_file_that_is_not_there_is_the_users_to_mend(tmp_path: Path) -> None:
    with wording.raises(UserError):
        read_prompts(tmp_path / "nowhere.json")


def test_some_are_all_that_was_asked_for_or_none() -> None:
    assert some_of(["a", "b", "c"], 2) == ["a", "b"]
    for count in (4, 0):
        with wording.raises(UserError):
            some_of(["a", "b", "c"], count)
