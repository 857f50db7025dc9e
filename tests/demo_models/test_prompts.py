"""Prompts: the committed file is what the held-out modules give, and prompts are of a useful length."""

from __future__ import annotations

import json

import pytest

from demo_models import PROMPTS, TARGET_DIR
from demo_models.corpus import Module
from demo_models.prompts import PROMPT_LINES, STARTS, cut_prompt


def test_a_prompt_is_the_first_lines_from_its_start() -> None:
    module = Module("m.py", "import os\n" + "".join(f"def f{i}(): pass\n" for i in range(40)))
    prompt = cut_prompt(module, "def f3(")
    assert prompt.startswith("def f3(): pass\n")
    assert prompt.count("\n") == PROMPT_LINES


def test_a_start_that_the_module_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="substring"):
        cut_prompt(Module("m.py", "x = 1\n"), "def missing(")


def test_prompts_have_60_to_200_tokens() -> None:
    pytest.importorskip("tokenizers")
    from demo_models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(TARGET_DIR)
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    assert [prompt["name"] for prompt in prompts] == list(STARTS)
    assert all(60 <= len(tokenizer.encode(prompt["text"]).ids) <= 200 for prompt in prompts)
