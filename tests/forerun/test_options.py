"""`forerun.options`: prompts are read from a file in the forms that people have them, else a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from forerun.options import texts_from


@pytest.mark.parametrize(
    "content",
    [
        '["def f():", "x ="]',
        '[{"prompt": "def f():"}, {"text": "x ="}]',
        '{"task_id": "HumanEval/0", "prompt": "def f():", "text": "-"}\n\n{"prompt": "x ="}\n',
    ],
)
def test_prompts_are_read_in_every_form(tmp_path: Path, content: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(content, encoding="utf-8")
    assert texts_from(path) == ["def f():", "x ="]


@pytest.mark.parametrize(
    "content", ["", "[]", "[3]", '["def f():", ""]', '{"task": 1}', "def f():", "7", "\xff"]
)
def test_anything_else_is_a_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match="prompts"):
        texts_from(path)
    with pytest.raises(UserError, match="no prompts can be read"):
        texts_from(tmp_path / "absent")
