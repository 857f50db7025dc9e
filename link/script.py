"""A script: what happens to a link at which second, as a JSON list.

    [{"at": 0,  "do": "set",
      "toxic": {"type": "latency", "stream": "upstream", "attributes": {"latency": 80}}},
     {"at": 10, "do": "remove", "name": "latency_upstream"},
     {"at": 12, "do": "rtt", "rtt": 200, "jitter": 20},
     {"at": 15, "do": "disable"}, {"at": 15, "do": "cut"},
     {"at": 18, "do": "enable"}]

`at` is in seconds since the script began, never decreasing. A toxic is written as toxiproxy's API writes it.
`rtt` (ms) sets a latency toxic on each direction. `cut` takes `"reset": false` for an ordinary close.
"""

import asyncio
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from link.errors import ScriptError, SettingsError
from link.proxy import Link
from link.toxics import Toxic, rtt, toxic_from_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SetToxics:
    """Add these toxics, or put them in the place of those of their names."""

    toxics: tuple[Toxic, ...]


@dataclass(frozen=True)
class RemoveToxic:
    """Remove a toxic; if there is none of that name when the time comes, a warning is logged."""

    name: str


@dataclass(frozen=True)
class Enable:
    """Accept connections."""


@dataclass(frozen=True)
class Disable:
    """Refuse new connections."""


@dataclass(frozen=True)
class Cut:
    """End all open connections."""

    reset: bool = True


Action = SetToxics | RemoveToxic | Enable | Disable | Cut


@dataclass(frozen=True)
class Change:
    """One entry of a script."""

    at: float  # seconds since the script began
    action: Action


def parse_script(text: str) -> tuple[Change, ...]:
    """Reads a script. Raises `ScriptError` that names the first entry that is wrong, and how."""
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise ScriptError(f"the script is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise ScriptError("the script is not a JSON list of changes")
    changes = tuple(_parse_entry(number, entry) for number, entry in enumerate(entries))
    for number, (earlier, later) in enumerate(itertools.pairwise(changes), start=1):
        if later.at < earlier.at:
            raise ScriptError(f"entry {number} is at {later.at:g} s, before the one above it; sort by time")
    return changes


async def play(script: Iterable[Change], link: Link) -> None:
    """Applies each change to the link at its time, counted from this call; returns after the last one."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    for change in script:
        await asyncio.sleep(began_at + change.at - loop.time())
        logger.info("= %g s: %s", change.at, change.action)
        await apply(change.action, link)


async def apply(action: Action, link: Link) -> None:
    """Does to the link what the action says."""
    match action:
        case SetToxics(toxics):
            link.set_toxic(*toxics)
        case RemoveToxic(name):
            _remove(name, link)
        case Enable():
            await link.enable()
        case Disable():
            await link.disable()
        case Cut(reset):
            link.cut(reset=reset)
        case _:
            assert_never(action)


def _remove(name: str, link: Link) -> None:
    if name in [toxic.name for toxic in link.toxics]:
        link.remove_toxic(name)
    else:
        logger.warning("! the script removes toxic %r, which the link does not have; correct it", name)


def _parse_entry(number: int, entry: object) -> Change:
    try:
        return _parse_change(entry)
    except (ScriptError, SettingsError) as error:
        raise ScriptError(f"entry {number} of the script: {error}") from None


def _parse_change(entry: object) -> Change:
    if not isinstance(entry, dict):
        raise ScriptError(f"a change is a JSON object, not {entry!r}")
    fields = dict(entry)
    at, verb = _take_number(fields, "at"), fields.pop("do", None)
    if not isinstance(verb, str) or verb not in _VERBS:
        raise ScriptError(f"'do' is {verb!r}; it can be {', '.join(_VERBS)}")
    action = _VERBS[verb](fields)
    if fields:
        raise ScriptError(f"{verb!r} does not take {', '.join(map(repr, fields))}")
    return Change(at, action)


def _take_number(fields: dict[str, object], field: str, default: float | None = None) -> float:
    value = fields.pop(field, default)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    raise ScriptError(f"{field!r} is {value!r}; give a number, at least 0")


def _set(fields: dict[str, object]) -> SetToxics:
    return SetToxics((toxic_from_json(fields.pop("toxic", None)),))


def _rtt(fields: dict[str, object]) -> SetToxics:
    return SetToxics(rtt(_take_number(fields, "rtt"), jitter=_take_number(fields, "jitter", 0.0)))


def _remove_by_name(fields: dict[str, object]) -> RemoveToxic:
    name = fields.pop("name", None)
    if not isinstance(name, str):
        raise ScriptError(f"'name' is {name!r}; give the name of the toxic to remove")
    return RemoveToxic(name)


def _cut(fields: dict[str, object]) -> Cut:
    reset = fields.pop("reset", True)
    if not isinstance(reset, bool):
        raise ScriptError(f"'reset' is {reset!r}; give true or false")
    return Cut(reset)


_VERBS: Mapping[str, Callable[[dict[str, object]], Action]] = {
    "set": _set,
    "remove": _remove_by_name,
    "rtt": _rtt,
    "enable": lambda fields: Enable(),
    "disable": lambda fields: Disable(),
    "cut": _cut,
}
