"""Contents of a chat as text and nothing else: what a message says never becomes a control token.

A template writes control tokens as texts, such as <|im_end|>, so a rendered chat is read with those texts as
tokens. A message with such a text in it could end its own turn and begin another one's. So each such text in
what a client sends is broken by a mark before the template sees it. Afterwards only whole texts are control
tokens, and the marks are taken out of the rest. A chat without such texts is read as ever, token for token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from edge_client.api.errors import wrong
from edge_client.text import Words

MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Unicode's noncharacters, "intended for process-internal uses" (Unicode 15.0, 23.7)."""


class Contents:
    """Over the tokens of one model."""

    def __init__(self, words: Words) -> None:
        self._words = words
        texts = sorted((each for each in words.control_texts if len(each) > 1), key=len, reverse=True)
        self._whole = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None
        self._begins = re.compile(f"(?={self._whole.pattern})") if self._whole is not None else None

    def hide(self, values: Any) -> tuple[Any, str]:
        """The same lists, objects and strings with the control tokens' texts in them broken, and by which
        mark. The mark is empty if there are no such texts. Raises `ApiError` if no mark is left."""
        try:
            if self._whole is None or not any(map(self._whole.search, _strings(values))):
                return values, ""
            said = json.dumps(values, ensure_ascii=False)
        except RecursionError as error:
            raise wrong("chat_template_kwargs", "chat_template_kwargs is nested too deeply") from error
        mark = next((each for each in MARKS if each not in said), "")
        if not mark:
            raise wrong(
                "messages", "the messages use all noncharacters from U+FDD0 on; leave one of them out"
            )
        return self._broken(values, mark), mark

    def tokenize(self, text: str, mark: str) -> list[int]:
        """Token ids of what a template wrote of values that `mark` hides."""
        if not mark or self._whole is None:
            return self._words.tokenize(text, True)
        tokens = list[int]()
        for number, part in enumerate(self._whole.split(text)):
            is_control = number % 2 == 1
            tokens += self._words.tokenize(part if is_control else part.replace(mark, ""), is_control)
        return tokens

    def _broken(self, value: Any, mark: str) -> Any:
        match value:
            case str():
                assert self._begins is not None, "looked for before"
                places = [found.start() + 1 for found in self._begins.finditer(value)]
                return mark.join(value[a:b] for a, b in zip([0, *places], [*places, None], strict=True))
            case list():
                return [self._broken(each, mark) for each in value]
            case dict():
                return {name: self._broken(each, mark) for name, each in value.items()}
            case _:
                return value


def _strings(value: Any) -> Iterable[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _strings(each)
        case dict():
            for each in value.values():
                yield from _strings(each)
