"""The tokenizer: the cloud's and the edge's implementations must give the same tokens for every text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lab.demo_models import DRAFT_GGUF, PROMPTS, TARGET_DIR
from lab.demo_models.corpus import load_split

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ALPHABETS = {
    "code": "abc_XYZ019 \t\n()[]{}:=+-*/%.,'\"#\\@<>!&|^~",
    "line ends": "a \t\r\n\x0b\x0c\x85\u2028\u2029",
    "spaces": "x1.\u00a0\u1680\u2003\u202f\u3000\ufeff\u200b \n",
    "combining marks": "e\u0301n\u0303o\u0308\u0327 a\u20dd\u0915\u093f\u0e01\u0e33'",
    "emoji": "\U0001f600\U0001f468\u200d\U0001f4bb\U0001f1e9\U0001f1ea\U0001f3fd\ufe0f!a 1\n",
    "numbers": "0१२३٣Ⅷ½²① 9a",
    "scripts": "ßſİıΩжאبกあ漢字한'S'ſ’ll \n",
    "contractions": "I'LL 'Re'VE'm's't'D 'x\u2019s",
}
FIXED = (
    "",
    " ",
    "\n",
    "\r\n\r\n",
    "def f(x):\n\treturn x\r\n",
    "    if a  ==  b:   \n\n\n        pass",
    "x = {'k': [1, 22, 333]}  # <|endoftext|> in a comment",
    "\x00\x01\x7f",
    "né́e 한국어 \U0001f9d1\u200d\U0001f680",
)


def random_texts(seed: int = 20260101, per_alphabet: int = 150) -> Iterator[str]:
    source = random.Random(seed)
    for alphabet in ALPHABETS.values():
        for _ in range(per_alphabet):
            yield "".join(source.choices(alphabet, k=source.randint(1, 40)))
    for _ in range(600):
        points = (source.randint(0x20, 0x2FFFF) for _ in range(source.randint(1, 12)))
        yield "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)


def samples() -> list[str]:
    whole = list(load_split()[1].values())[:4]
    held_out = [line for text in whole for line in text.splitlines(keepends=True)]
    prompts = [prompt["text"] for prompt in json.loads(PROMPTS.read_text(encoding="utf-8"))]
    return [*FIXED, *random_texts(), *held_out, *whole, *prompts]


@pytest.fixture
def tokenizer() -> Tokenizer:
    pytest.importorskip("tokenizers")
    from lab.demo_models.tokenizer import load_tokenizer

    return load_tokenizer(TARGET_DIR)


@pytest.mark.llama
def test_llama_cpp_gives_the_same_tokens(tokenizer: Tokenizer) -> None:
    from common.llama.model import LlamaModel, LlamaSettings

    # llama.cpp is told not to parse special tokens, tokenizers always does: not comparable.
    texts = [text for text in samples() if "<|endoftext|>" not in text]
    assert len(texts) > 3000
    with LlamaModel(LlamaSettings(str(DRAFT_GGUF)), weights=False) as draft:
        for text in texts:
            assert tokenizer.encode(text, add_special_tokens=False).ids == draft.tokenize(text, False)


@pytest.mark.torch
def test_transformers_loads_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(TARGET_DIR)
    assert loaded.eos_token_id == 0
    for text in samples():
        assert loaded(text)["input_ids"] == tokenizer.encode(text).ids


def prompt_of(*messages: tuple[str, str | None]) -> str:
    """What the target's own template makes of these messages (role, content)."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = (TARGET_DIR / "chat_template.jinja").read_text(encoding="utf-8")
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    return template.render(messages=[{"role": role, "content": content} for role, content in messages])


@pytest.mark.api
def test_what_the_model_wrote_stands_where_it_wrote_it_and_what_others_say_is_a_comment() -> None:
    told = (("system", "Be brief.\nBe right."), ("user", "def f("), ("assistant", "x):\n    pass"))
    text = "# Be brief.\n# Be right.\ndef f(x):\n    pass"
    assert prompt_of(("user", "def f(x):\n    return ")) == "def f(x):\n    return "
    assert prompt_of(*told) == text
    assert prompt_of(*told, ("user", "class A")) == text + "\n\n\nclass A"
    assert prompt_of(*told, ("tool", "4"), ("user", "y = ")) == text + "\n\n\n# 4\ny = "
    assert prompt_of(("user", "x = "), ("assistant", None)) == "x = "


@pytest.mark.api
def test_a_request_in_words_is_a_comment_before_the_function_and_two_blank_lines_after_the_last() -> None:
    asked = "Return the sum of the even numbers in a list."
    function = "def f():\n    return 1\n"
    text = f"# {asked}\n{function}"
    assert prompt_of(("user", asked)) == f"# {asked}\n"
    assert prompt_of(("user", asked), ("assistant", function)) == text
    assert prompt_of(("user", asked), ("assistant", function), ("user", asked)) == f"{text}\n\n# {asked}\n"
