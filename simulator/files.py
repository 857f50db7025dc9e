"""Worlds as TOML or JSON documents, in the units that people write: milliseconds and kilobits per second.

seed = 1
repeats = 20                       # seeds 1 to 20
tokens = 600
schemes = ["server_streaming", "sync_best", "chain", "forerun", "clairvoyant"]

[link]
rtt_ms = 60

[device]
draft_ms = 5.0
draft_ms_per_node = 0.3

[verifier]
step_ms = 30.0

[draft]
mean = 0.85
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from simulator.knowledge import BetaDraft
from simulator.link import LinkSpec, Outage
from simulator.schemes import CLAIRVOYANT, FORERUN, SERVER_STREAMING, SYNC_BEST, policy_maker
from simulator.traces import Trace, read_trace
from simulator.world import DeviceSpec, VerifierSpec, World

MS = 1000.0  # in a second
KBIT = 0.008  # in a byte

DEFAULT_SCHEMES = (SERVER_STREAMING, SYNC_BEST, "chain", FORERUN, CLAIRVOYANT)
MAX_REPEATS = 10_000


@dataclass(frozen=True, slots=True)
class Experiment:
    """A world, how many seeds of it, and what is compared there."""

    world: World
    repeats: int = 20
    schemes: tuple[str, ...] = DEFAULT_SCHEMES

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= MAX_REPEATS:
            raise UserError(f"repeats is {self.repeats}; it must lie in 1 to {MAX_REPEATS}")
        if not self.schemes:
            raise UserError("schemes is empty; name at least one, for example forerun")
        for scheme in self.schemes:
            if scheme != SYNC_BEST:
                policy_maker(scheme)

    def worlds(self) -> list[World]:
        """One per seed."""
        first = self.world.seed
        return [replace(self.world, seed=(first + place) % 2**64) for place in range(self.repeats)]


Field = tuple[str, type, float]
"""Where a key goes, what it holds, and how many of its units make one of ours."""

LINK: dict[str, Field] = {
    "rtt_ms": ("rtt", float, MS),
    "jitter_ms": ("jitter", float, MS),
    "jitter_memory_ms": ("jitter_memory", float, MS),
    "loss": ("loss", float, 1.0),
    "up_kbps": ("bandwidth_up", float, KBIT),
    "down_kbps": ("bandwidth_down", float, KBIT),
}
DEVICE: dict[str, Field] = {
    "draft_ms": ("draft_time", float, MS),
    "draft_ms_per_node": ("draft_time_per_node", float, MS),
}
VERIFIER: dict[str, Field] = {
    "step_ms": ("step_time", float, MS),
    "step_ms_per_node": ("step_time_per_node", float, MS),
    "step_ms_per_context": ("step_time_per_context", float, MS),
    "max_nodes_per_session": ("max_nodes_per_session", int, 1),
    "max_rows": ("max_rows", int, 1),
}
DRAFT: dict[str, Field] = {"mean": ("mean", float, 1.0), "k": ("k", float, 1.0)}
TOP: dict[str, Field] = {
    name: (name, int, 1) for name in ("tokens", "prompt_tokens", "clients", "seed", "repeats")
}
TRACE_START: dict[str, Field] = {"trace_start_s": ("offset", float, 1.0)}
TABLES = {"link": LINK, "device": DEVICE, "verifier": VERIFIER, "draft": DRAFT}


def read_experiment(path: Path) -> Experiment:
    """Read a document by its suffix, `.toml` or `.json`. Raises `UserError` that names the field."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the world {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the world {path} is not UTF-8 text: {error.reason}") from error
    try:
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:  # both parsers' errors, which tell line and column
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UserError(f"the world {path} is not {kind}: {error}") from error
    try:
        return experiment_from(document, path.parent)
    except UserError as error:
        raise UserError(f"the world {path}: {error}") from error


def experiment_from(document: Any, folder: Path = Path()) -> Experiment:
    """From the parsed document; traces that it names are sought from `folder`. Raises `UserError`."""
    if not isinstance(document, dict):
        raise UserError("a world is a table of keys and values")
    _refuse_unknown("a world", document, [*TOP, *TABLES, "schemes"])
    top = _fields("", document, TOP)
    repeats = top.pop("repeats", 20)
    link = _table(document, "link", extra=("outages", "trace", "trace_start_s", "trace_session"))
    outages = _outages(link.pop("outages", []))
    trace = _trace(link, folder)
    world = World(
        link=LinkSpec(**_fields("link.", link, LINK), outages=outages, trace=trace),
        device=DeviceSpec(**_fields("device.", _table(document, "device"), DEVICE)),
        verifier=VerifierSpec(**_fields("verifier.", _table(document, "verifier"), VERIFIER)),
        draft=BetaDraft(**_fields("draft.", _table(document, "draft"), DRAFT)),
        **top,
    )
    return Experiment(world, repeats, _schemes(document.get("schemes", list(DEFAULT_SCHEMES))))


def _table(document: Mapping[str, Any], name: str, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise UserError(f"{name} is {table!r}; a table [{name}] was expected")
    _refuse_unknown(f"[{name}]", table, [*TABLES[name], *extra])
    return dict(table)


def _refuse_unknown(where: str, table: Mapping[str, Any], known: list[str]) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise UserError(f"{where} has no {unknown[0]!r}; it may have {', '.join(known)}")


def _fields(prefix: str, table: Mapping[str, Any], known: Mapping[str, Field]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, (name, kind, unit) in known.items():
        if key in table:
            value = table[key]
            allowed = (int, float) if kind is float else (int,)
            if isinstance(value, bool) or not isinstance(value, allowed):
                wanted = "a number" if kind is float else "a whole number"
                raise UserError(f"{prefix}{key} is {value!r}; {wanted} was expected")
            found[name] = value / unit if kind is float else value
    return found


def _outages(value: Any) -> tuple[Outage, ...]:
    if not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
        raise UserError("link.outages is not a list of tables like { start_ms = 500, duration_ms = 200 }")
    known: dict[str, Field] = {"start_ms": ("start", float, MS), "duration_ms": ("duration", float, MS)}
    for each in value:
        _refuse_unknown("link.outages", each, list(known))
        if len(each) < len(known):
            raise UserError("each of link.outages needs start_ms and duration_ms")
    return tuple(Outage(**_fields("link.outages.", each, known)) for each in value)


def _trace(link: dict[str, Any], folder: Path) -> Trace | None:
    name, start, session = (link.pop(key, None) for key in ("trace", "trace_start_s", "trace_session"))
    if name is None:
        if start is not None or session is not None:
            raise UserError("link.trace_start_s and link.trace_session need a link.trace")
        return None
    for key, value in (("trace", name), ("trace_session", session)):
        if value is not None and not isinstance(value, str):
            raise UserError(f"link.{key} is {value!r}; a text was expected")
    found = read_trace(folder / name, session)
    offset: float = _fields("link.", {"trace_start_s": start or 0.0}, TRACE_START)["offset"]
    if not 0 <= offset < found.duration:
        raise UserError(f"link.trace_start_s is {offset:g}; the trace lasts {found.duration:.1f} s")
    return replace(found, offset=offset)


def _schemes(value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise UserError(f"schemes is {value!r}; a list of names was expected")
    return tuple(value)
