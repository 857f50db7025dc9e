"""What a message says never becomes a control token; a chat that says nothing of the kind is read as ever."""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.patterns import any_of
from edge_client.formats.api_error import ApiError
from edge_client.formats.contents import MARKS, Contents

CONTROL = ("<|im_start|>", "<|im_end|>", "<s>", "<|im", "a|>")
"""Some overlap, and one is the beginning of another."""

DRAFT = str(Path(__file__).parents[3] / "lab" / "demo_models" / "draft" / "draft-q8_0.gguf")
TEMPLATE = "<s><|im_start|>user\n{0}<|im_end|>\n<|im_start|>user\n{1}<|im_end|>\n"
CONTROL_OF_TEMPLATE = [-3, -1, -2, -1, -2]


class Characters:
    """`Words` of characters by their code, and of control tokens by negative numbers; longer texts first, as
    llama.cpp has it."""

    num_vocab = 0x110000
    eos_ids: tuple[int, ...] = ()
    begin_ids: tuple[int, ...] = ()
    control_texts = CONTROL

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        tokens = list[int]()
        while text:
            found = [each for each in CONTROL if parse_special and text.startswith(each)]
            longest = max(found, key=len, default="")
            tokens.append(-1 - CONTROL.index(longest) if longest else ord(text[0]))
            text = text[len(longest) or 1 :]
        return tokens

    def piece(self, token: int) -> bytes:
        return CONTROL[-1 - token].encode() if token < 0 else chr(token).encode()


def read(*messages: str) -> list[int]:
    contents = Contents(Characters())
    hidden, mark = contents.hide(list(messages))
    return contents.tokenize(TEMPLATE.format(*hidden), mark)


PARTS = st.lists(st.sampled_from([*CONTROL, "<|im_", "end|>", "<", "s>", "a", "é", MARKS[0]]), max_size=12)
MESSAGES = PARTS.map("".join)


@given(MESSAGES, MESSAGES)
def test_no_content_becomes_a_control_token_and_every_character_stays(first: str, second: str) -> None:
    tokens = read(first, second)
    assert [token for token in tokens if token < 0] == CONTROL_OF_TEMPLATE
    spelled = b"".join(map(Characters().piece, tokens)).decode()
    assert spelled == TEMPLATE.format(first, second)


@given(st.text(alphabet="ab<|>\n é", max_size=40), st.text(alphabet="im_sd<", max_size=40))
def test_a_chat_without_such_texts_is_read_as_its_template_wrote_it(first: str, second: str) -> None:
    if not any(each in text for each in CONTROL for text in (first, second)):
        assert read(first, second) == Characters().tokenize(TEMPLATE.format(first, second), True)


def test_settings_of_a_template_are_contents_too() -> None:
    """Names too: a template may write an object as JSON."""
    values = {"documents": [{"x<s>": "x<|im_end|>"}], "think": True, "depth": 3}
    hidden, mark = Contents(Characters()).hide(values)
    assert hidden == {"documents": [{f"x<{mark}s>": f"x<{mark}|im_end|>"}], "think": True, "depth": 3}


@pytest.mark.parametrize("depth", [100, 300, 500, 700, 900, 990, 2000])
def test_deep_values_are_hidden_or_refused(depth: int) -> None:
    values: Any = "<s>"
    for _ in range(depth):
        values = [values]
    with contextlib.suppress(ApiError):
        assert Contents(Characters()).hide(values)[1]


def test_a_message_of_all_marks_is_refused() -> None:
    with pytest.raises(ApiError):
        Contents(Characters()).hide(["<s>" + "".join(MARKS)])


@pytest.mark.llama
def test_the_control_tokens_of_a_real_model_stay_texts() -> None:
    from common.llama.model import LlamaModel, LlamaSettings

    with LlamaModel(LlamaSettings(path=DRAFT), weights=False) as words:
        control = words.control_texts[0]
        special = set(words.special_ids)
        contents = Contents(words)
        hidden, mark = contents.hide(["def f():", f"x {control}{control} y"])
        text = f"{control}{hidden[0]}{control}{hidden[1]}{control}"
        tokens = contents.tokenize(text, mark)
        assert len([token for token in tokens if token in special]) == 3
        assert b"".join(map(words.piece, tokens)).decode() == text.replace(mark, "")
        plain = f"{control}def f():{control}x y{control}"
        assert contents.tokenize(plain, "") == words.tokenize(plain, True)


def test_a_search_takes_no_longer_with_more_control_tokens() -> None:
    pattern = re.compile(any_of([f"<unused{number}>" for number in range(6000)]))
    begun = time.thread_time()
    assert pattern.search("<" * 500_000 + "<unused" * 50_000) is None
    assert time.thread_time() - begun < 3
