"""Reads the JSON object of a request field by field. Unread fields are ignored, with a log line each."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from edge_client.formats.api_error import ApiError, unsupported, wrong

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_TEXT = 2**23
"""Characters of a text that a model reads, as many as a body may have."""

MAX_DEPTH = 128
"""Lists and objects within each other. Deeper values would exhaust the stack of what reads them."""

MAX_LOGGED = 16
"""Unknown fields of one object that are logged."""


class Fields:
    """Reads one field per call and raises `ApiError` for a value that is not allowed.

    A null field counts as absent, as OpenAI's clients send it. `at` stands before names in messages. At the
    end `finish` of the outermost object logs what has not been read anywhere.
    """

    def __init__(self, values: Mapping[str, Any], at: str = "") -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self.at = at
        self._read = set[str]()
        self._inner = list[Fields]()

    def has(self, name: str) -> bool:
        """Tell whether the field is present, without reading it."""
        return name in self.values

    @property
    def read(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if name in self._read}

    def any(self, name: str) -> Any:
        """Return any value; None if the field is absent."""
        self._read.add(name)
        return self.values.get(name)

    def text(self, name: str, default: str = "", longest: int = 2**20) -> str:
        must = f"must be a string of at most {longest} characters"
        return self._checked(name, default, lambda it: isinstance(it, str) and len(it) <= longest, must)

    def flag(self, name: str, default: bool = False) -> bool:
        return self._checked(name, default, lambda it: isinstance(it, bool), "must be true or false")

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number. Some clients write it as 16.0."""
        must = f"must be a whole number from {low} to {high}"
        return int(
            self._checked(
                name, default, lambda it: is_number(it) and low <= it <= high and it == int(it), must
            )
        )

    def number(self, name: str, default: float, low: float, high: float) -> float:
        must = f"must be a number from {low:g} to {high:g}"
        return float(self._checked(name, default, lambda it: is_number(it) and low <= it <= high, must))

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        return self._checked(name, default, lambda it: it in allowed, f"must be one of {', '.join(allowed)}")

    def object(self, name: str) -> Fields | None:
        """Return a nested object; None if it is absent."""
        value: Any = self._checked(name, None, lambda it: isinstance(it, dict), "must be an object")
        return None if value is None else self._within(f"{name}.", value)

    def needed(self, name: str) -> Fields:
        """Return a nested object, which must be there."""
        if (inner := self.object(name)) is None:
            raise self.missing(name)
        return inner

    def schema(self, name: str) -> dict[str, Any]:
        """Return a JSON schema, which must be there."""
        value = self.any(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "must be a JSON schema, an object")
        return value

    def list(self, name: str, longest: int) -> list[Any]:
        """Return a list, which is empty if the field is absent."""
        must = f"must be a list of at most {longest} entries"
        none: list[Any] = []
        return self._checked(name, none, lambda it: isinstance(it, list) and len(it) <= longest, must)

    def only(self, name: str, allowed: tuple[Any, ...], why: str) -> None:
        """Read a field and refuse values other than `allowed`, which change nothing."""
        value = self.any(name)
        if value is not None and not any(value == each and type(value) is type(each) for each in allowed):
            raise unsupported(f"{self.at}{name}", f"{self.at}{name} is not supported here: {why}")

    def entry(self, name: str, at: int, value: Any) -> Fields:
        """Return an entry of the list `name`, which must be an object."""
        if not isinstance(value, dict):
            where = f"{self.at}{name}[{at}]"
            raise wrong(where, f"{where} must be an object")
        return self._within(f"{name}[{at}].", value)

    def entries(self, name: str, longest: int) -> Iterator[Fields]:
        """Yield the entries of a list, which must be objects."""
        for at, each in enumerate(self.list(name, longest)):
            yield self.entry(name, at, each)

    def having(self, **values: Any) -> Fields:
        """Return these fields with other values of some; None leaves a field out. What is read there counts
        as read here."""
        fields = Fields({**self.values, **values}, self.at)
        fields._read, fields._inner = self._read, self._inner
        return fields

    def skip(self, why: str) -> None:
        """Ignore this whole object because of its type, and log that."""
        self._read.update(self.values)
        logger.debug("the request's %stype is ignored: %s", self.at, why)

    def finish(self) -> None:
        """Log the fields that have not been read, those of objects within included. They are ignored."""
        if not logger.isEnabledFor(logging.DEBUG):
            return  # to look for a similar name takes 50 µs, and a body can have a million
        for name, hint in islice(self._unread(), MAX_LOGGED):
            words = "the request's %s%s is ignored: nothing here depends on it%s"
            logger.debug(words, self.at, name, hint)
        for each in self._inner:
            each.finish()

    def refuse_rest(self) -> None:
        """Refuse the fields that have not been read."""
        for name, hint in self._unread():
            words = f"{self.at}{name} is not a field that this daemon knows{hint}"
            raise wrong(f"{self.at}{name}", words, "unknown_parameter")

    def _within(self, place: str, values: Mapping[str, Any]) -> Fields:
        inner = Fields(values, f"{self.at}{place}")
        if logger.isEnabledFor(logging.DEBUG):  # `finish` has no use for it otherwise
            self._inner.append(inner)
        return inner

    def _unread(self) -> Iterator[tuple[str, str]]:
        """Yield the fields that have not been read, each with a hint at a similar known name."""
        for name in self.values:
            if name not in self._read:
                near = difflib.get_close_matches(name, self._read, 1)
                yield name, f"; did you mean {near[0]}?" if near else ""

    def missing(self, name: str) -> ApiError:
        """Return the error of a field that must be there."""
        return wrong(f"{self.at}{name}", f"{self.at}{name} is missing")

    def wrong(self, name: str, must: str) -> ApiError:
        """Return the error of a field's value."""
        shown = repr(self.values[name]) if name in self.values else "missing or null"
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return wrong(f"{self.at}{name}", f"{self.at}{name} is {shown}; it {must}")

    def _checked(self, name: str, default: T, is_allowed: Callable[[Any], bool], must: str) -> T:
        value: Any = self.any(name)
        if value is None:
            return default
        if not is_allowed(value):
            raise self.wrong(name, must)
        checked: T = value
        return checked


def is_number(value: object) -> bool:
    """Tell whether a JSON value is a finite number, and no boolean."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def are_token_ids(values: list[Any], size: float = math.inf) -> bool:
    """Tell whether each value is a token id below `size`."""
    return all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < size for each in values)


def is_too_deep(value: Any) -> bool:
    """Tell whether a JSON value has lists and objects more than `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return False
    return True
