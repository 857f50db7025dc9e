"""Parses and plays a script: the changes of a link by the second, as a JSON list.

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
from collections.abc import Iterable
from dataclasses import dataclass

from simulator.proxy.fault_link import Link
from simulator.proxy.toxics import ScriptError, SettingsError, Toxic, rtt, toxic_from_json

logger = logging.getLogger(__name__)

VERBS = {
    "set": ("toxic",),
    "remove": ("name",),
    "rtt": ("rtt", "jitter"),
    "enable": (),
    "disable": (),
    "cut": ("reset",),
}
"""What can be done to a link, and the fields that it takes."""


@dataclass(frozen=True)
class Change:
    """Holds one entry of a script."""

    at: float  # seconds since the script began
    do: str  # one of `VERBS`
    toxics: tuple[Toxic, ...] = ()  # of `set` and `rtt`
    name: str = ""  # of `remove`; a warning is logged if no toxic has it by then
    reset: bool = True  # of `cut`


def parse_script(text: str) -> tuple[Change, ...]:
    """Read a script. Raises `ScriptError` that names the first wrong entry, and its fault."""
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise ScriptError(f"the script is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise ScriptError("the script is not a JSON list of changes")
    changes = list[Change]()
    for number, entry in enumerate(entries):
        try:
            changes.append(_parse(entry))
        except (ScriptError, SettingsError) as error:
            raise ScriptError(f"entry {number} of the script: {error}") from None
    for number, (earlier, later) in enumerate(itertools.pairwise(changes), start=1):
        if later.at < earlier.at:
            raise ScriptError(f"entry {number} is at {later.at:g} s, before the one above it; sort by time")
    return tuple(changes)


def _parse(entry: object) -> Change:
    if not isinstance(entry, dict):
        raise ScriptError(f"a change is a JSON object, not {entry!r}")
    at, verb = _number(entry, "at"), entry.get("do")
    if not isinstance(verb, str) or verb not in VERBS:
        raise ScriptError(f"'do' is {verb!r}; it can be {', '.join(VERBS)}")
    for field in entry:
        if field not in ("at", "do", *VERBS[verb]):
            raise ScriptError(f"{verb!r} does not take {field!r}")
    toxics: tuple[Toxic, ...] = ()
    if verb == "set":
        toxics = (toxic_from_json(entry.get("toxic")),)
    elif verb == "rtt":
        toxics = rtt(_number(entry, "rtt"), jitter=_number(entry, "jitter", 0.0))
    name, reset = entry.get("name", ""), entry.get("reset", True)
    if not isinstance(name, str) or (verb == "remove" and not name):
        raise ScriptError(f"'name' is {name!r}; give the name of the toxic to remove")
    if not isinstance(reset, bool):
        raise ScriptError(f"'reset' is {reset!r}; give true or false")
    return Change(at, verb, toxics, name, reset)


def _number(entry: dict[str, object], field: str, default: float | None = None) -> float:
    value = entry.get(field, default)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    raise ScriptError(f"{field!r} is {value!r}; give a number, at least 0")


async def play(script: Iterable[Change], link: Link) -> None:
    """Apply each change to the link at its time, counted from this call; return after the last one."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    for change in script:
        await asyncio.sleep(began_at + change.at - loop.time())
        logger.info("= %g s: %s", change.at, change)
        await _apply(change, link)


async def _apply(change: Change, link: Link) -> None:
    match change.do:
        case "set" | "rtt":
            link.set_toxic(*change.toxics)
        case "remove" if change.name in [toxic.name for toxic in link.toxics]:
            link.remove_toxic(change.name)
        case "remove":
            logger.warning(
                "! the script removes toxic %r, which the link does not have; correct it", change.name
            )
        case "enable":
            await link.enable()
        case "disable":
            await link.disable()
        case "cut":
            link.cut(reset=change.reset)
