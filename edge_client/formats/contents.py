"""Keeps a chat's contents plain text: no text in a message becomes a control token.

A template writes control tokens as texts, such as <|im_end|>. The rendered chat is then read with those texts
as tokens, so a message that holds such a text could end its own turn and begin another. To prevent that, each
such text from a client is broken by a mark before the template sees it. In the rendered chat only whole texts
become control tokens, and the marks are removed from the rest. A chat without such texts is read unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from common.patterns import any_of
from edge_client.formats.api_error import wrong
from edge_client.formats.detokenizer import Words

MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Unicode's noncharacters, which are "intended for process-internal uses" (Unicode 15.0, 23.7)."""


class Contents:
    """Hides control tokens of one model in contents and tokenizes rendered chats."""

    def __init__(self, words: Words) -> None:
        self._words = words
        texts = [each for each in words.control_texts if len(each) > 1]
        self._whole = re.compile(f"({any_of(texts)})") if texts else None
        self._begins = re.compile(f"(?={self._whole.pattern})") if self._whole is not None else None

    def hide(self, values: Any) -> tuple[Any, str]:
        """Break the texts of control tokens in lists, objects and strings. Returns the broken values and the
        mark that breaks them, which is empty if there are no such texts.

        Raises `ApiError` if no mark is left, or for values that are nested too deeply.
        """
        try:
            if self._whole is None or not any(map(self._whole.search, strings(values))):
                return values, ""
            said = json.dumps(values, ensure_ascii=False)
            mark = next((each for each in MARKS if each not in said), "")
            if not mark:
                raise wrong(
                    "messages", "the messages use all noncharacters from U+FDD0 on; leave one of them out"
                )
            return self._broken(values, mark), mark
        except RecursionError as error:
            raise wrong("chat_template_kwargs", "chat_template_kwargs is nested too deeply") from error

    def tokenize(self, text: str, mark: str) -> list[int]:
        """Return the token ids of a rendered `text` whose values are broken by `mark`."""
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
                places = [match.start() + 1 for match in self._begins.finditer(value)]
                return mark.join(value[a:b] for a, b in zip([0, *places], [*places, None], strict=True))
            case list():
                return [self._broken(each, mark) for each in value]
            case dict():
                return {self._broken(name, mark): self._broken(each, mark) for name, each in value.items()}
            case _:
                return value


def strings(value: Any) -> Iterable[str]:
    """Yield all strings in lists and objects, names of fields included."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from strings(each)
        case dict():
            for name, each in value.items():
                yield name
                yield from strings(each)
