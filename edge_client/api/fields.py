"""One JSON object of a request, read field by field. What nobody has read is refused by its name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from edge_client.api.errors import ApiError, unsupported, wrong

OTHER_NAMES = {
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "random_seed": "seed",
    "input": "messages",
}
"""Fields of other servers' APIs, and what they are called here."""


class Fields:
    """Each method reads one field and raises `ApiError` if its value is none that is allowed. A field that is
    null counts as absent, as OpenAI's clients send it. `at` stands before names in messages."""

    def __init__(self, values: Mapping[str, Any], at: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._at = at
        self._read = set[str]()

    def has(self, name: str) -> bool:
        """Whether it is there; reads nothing."""
        return name in self._values

    def any(self, name: str) -> Any:
        """Whatever it is; None if it is absent."""
        self._read.add(name)
        return self._values.get(name)

    def text(self, name: str, default: str = "", longest: int = 2**20) -> str:
        value = self.any(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > longest:
            raise self.wrong(name, f"must be a string of at most {longest} characters")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.any(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "must be true or false")
        return value

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        value = self.any(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON knows no whole numbers, and some clients write 16.0
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.any(name)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not low <= value <= high:
            raise self.wrong(name, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.any(name)
        if value is None:
            return default
        if value not in allowed:
            raise self.wrong(name, f"must be one of {', '.join(allowed)}")
        return str(value)

    def object(self, name: str) -> Fields | None:
        """A nested object; None if it is absent."""
        value = self.any(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return Fields(value, f"{self._at}{name}.")

    def list(self, name: str, longest: int) -> list[Any] | None:
        value = self.any(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > longest:
            raise self.wrong(name, f"must be a list of at most {longest} entries")
        return value

    def only(self, name: str, allowed: tuple[Any, ...], why: str) -> None:
        """Read a field of which only values that change nothing are supported."""
        value = self.any(name)
        if value is not None and not any(value == each and type(value) is type(each) for each in allowed):
            raise unsupported(f"{self._at}{name}", f"{self._at}{name} is not supported here: {why}")

    def finish(self) -> None:
        """Refuse what has not been read."""
        for name in self._values:
            if name not in self._read:
                other = [OTHER_NAMES[name]] if OTHER_NAMES.get(name) in self._read else []
                near = other or difflib.get_close_matches(name, self._read, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise wrong(
                    f"{self._at}{name}",
                    f"{self._at}{name} is not a field that this daemon knows{hint}",
                    "unknown_parameter",
                )

    def wrong(self, name: str, must: str) -> ApiError:
        """The value of a field is none that is allowed."""
        shown = repr(self._values[name]) if name in self._values else "missing or null"
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return wrong(f"{self._at}{name}", f"{self._at}{name} is {shown}; it {must}")
