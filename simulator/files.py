"""Reads worlds from TOML or JSON documents, in everyday units: milliseconds and kilobits per second.

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
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from common.errors import UserError
from common.offers import offered
from simulator.arrivals import Arrivals, Poisson, Window, read_arrivals
from simulator.documents import read_text
from simulator.drafts import BetaDraft, Draft, recorded_draft
from simulator.heads import HeadsSpec
from simulator.link_spec import Handovers, LinkSpec, Outage, Trace, read_schedule, read_trace
from simulator.profiles import profile
from simulator.recordings import read_recording
from simulator.schemes import CLAIRVOYANT, FORERUN, SERVER_STREAMING, SYNC_BEST, check_scheme
from simulator.world import (
    NEAREST,
    DeviceSpec,
    SmallDraft,
    StepChange,
    VerifierSite,
    VerifierSpec,
    World,
    fit_line,
)

MS = 1000.0  # in a second
KBIT = 0.008  # in a byte

DEFAULT_SCHEMES = (SERVER_STREAMING, SYNC_BEST, "chain", FORERUN, CLAIRVOYANT)
MAX_REPEATS = 10_000

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Experiment:
    """Holds a world, the number of its seeds, and the schemes to compare."""

    world: World
    repeats: int = 20
    schemes: tuple[str, ...] = DEFAULT_SCHEMES

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= MAX_REPEATS:
            raise UserError(f"repeats is {self.repeats}; it must lie in 1 to {MAX_REPEATS}")
        if not self.schemes:
            raise UserError("schemes is empty; name at least one, for example forerun")
        for scheme in self.schemes:
            if self.schemes.count(scheme) > 1:
                raise UserError(f"schemes names {scheme} {self.schemes.count(scheme)} times; once is enough")
            check_scheme(scheme)

    def worlds(self) -> list[World]:
        """Return a world per seed."""
        first = self.world.seed
        return [replace(self.world, seed=(first + place) % 2**64) for place in range(self.repeats)]


Field = tuple[str, type, float]
"""Where a key goes, what it holds, and how many of its units make one of ours."""

KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    float: ((int, float), "a number"),
    int: ((int,), "a whole number"),
    bool: ((bool,), "true or false"),
}

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
    "draft_prompt_ms": ("prompt_time", float, MS),
    "wake_ms": ("wake_time", float, MS),
    "max_draft_steps_per_s": ("max_draft_steps_per_second", float, 1.0),
    "draft_waits": ("draft_waits", bool, 1.0),
    "recall": ("recall", bool, 1.0),
    "levels": ("levels", int, 1),
}
VERIFIER: dict[str, Field] = {
    "step_ms": ("step_time", float, MS),
    "step_ms_per_node": ("step_time_per_node", float, MS),
    "step_ms_per_context": ("step_time_per_context", float, MS),
    "max_nodes_per_session": ("max_nodes_per_session", int, 1),
    "max_rows": ("max_rows", int, 1),
    "max_slowdown": ("max_slowdown", float, 1.0),
    "nodes": ("nodes", int, 1),
    "hop_ms": ("hop_time", float, MS),
    "hint_at": ("hint_at", float, 1.0),
    "hint_skill": ("hint_skill", float, 1.0),
    "replicas": ("replicas", int, 1),
    "recall": ("recall", bool, 1.0),
}
SITE: dict[str, Field] = {"spread_ms": ("spread", float, MS)}
DEVICE_TABLES = {"draft_ms_by_rows": "draft_times", "read_ms_by_tokens": "read_times"}
ROW_TABLE = "step_ms_by_rows"
DRAFT_TIME, STEP_TIME = ("draft_time", "draft_time_per_node"), ("step_time", "step_time_per_node")
SERVER_DRAFT = {key: DEVICE[key] for key in ("draft_ms", "draft_ms_per_node")}
DRAFT: dict[str, Field] = {
    "mean": ("mean", float, 1.0),
    "k": ("k", float, 1.0),
    "sight": ("sight", float, 1.0),
}
TOP: dict[str, Field] = {
    name: (name, int, 1) for name in ("tokens", "prompt_tokens", "clients", "seed", "repeats")
}
TRACE: dict[str, Field] = {"trace_start_s": ("offset", float, 1.0), "trace_floor_ms": ("floor", float, MS)}
LINK_TEXTS = ("profile", "jitter_law", "trace", "trace_session", "mahimahi_up", "mahimahi_down")
LINK_EXTRA = (*LINK_TEXTS, "outages", "handovers", *TRACE)
HANDOVERS: dict[str, Field] = {
    "every_ms": ("every", float, MS),
    "duration_ms": ("duration", float, MS),
    "rtt_step_ms": ("rtt_step", float, MS),
}
OUTAGE: dict[str, Field] = {"start_ms": ("start", float, MS), "duration_ms": ("duration", float, MS)}
HEADS: dict[str, Field] = {
    "ms": ("time", float, MS),
    "ms_per_level": ("time_per_level", float, MS),
    "ms_per_node": ("time_per_node", float, MS),
    "k": ("k", float, 1.0),
    "likeness": ("likeness", float, 1.0),
}
SMALL: dict[str, Field] = {
    "ms": ("time", float, MS),
    "agreement": ("agreement", float, 1.0),
    "tokens": ("tokens", int, 1),
}
STEP_CHANGE: dict[str, Field] = {"at_s": ("at", float, 1.0), "step_ms": ("step_time", float, MS)}
POISSON: dict[str, Field] = {"rate_per_s": ("rate", float, 1.0), "sessions": ("sessions", int, 1)}
WINDOW: dict[str, Field] = {
    "start_s": ("start", float, 1.0),
    "duration_s": ("duration", float, 1.0),
    "max_sessions": ("max_sessions", int, 1),
    "time_scale": ("time_scale", float, 1.0),
    "max_prompt_tokens": ("max_prompt_tokens", int, 1),
    "max_tokens": ("max_tokens", int, 1),
}
TABLES = {
    "link": LINK,
    "device": DEVICE,
    "verifier": {**VERIFIER, **SERVER_DRAFT},
    "draft": DRAFT,
    "arrivals": {**POISSON, **WINDOW},
}

OFFERED = "forerun.world_tables"
"""Entry points of further tables. Each is called with a world and the table, and returns another world."""


def read_experiment(path: Path) -> Experiment:
    """Read a document by its suffix, `.toml` or `.json`. Raises `UserError` that names the field."""
    text = read_text("the world", path)
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
    """Build it from the parsed document; paths of traces start at `folder`. Raises `UserError`."""
    if not isinstance(document, dict):
        raise UserError("a world is a table of keys and values")
    tables = offered(OFFERED)
    refuse_unknown("a world", document, [*TOP, *TABLES, *tables, "verifiers", "association", "schemes"])
    top = read_fields("", document, TOP)
    repeats = top.pop("repeats", 20)
    draft, draft_ms, target_ms = _draft(_table(document, "draft", extra=("recording",)), folder)
    device = _table(document, "device", (*DEVICE_TABLES, "small"))
    verifier = _table(document, "verifier", ("step_changes", "heads", ROW_TABLE))
    by_number: dict[str, Any] = {
        name: _by_number(f"device.{key}", device[key]) for key, name in DEVICE_TABLES.items() if key in device
    }
    if "verifiers" in document:
        target_ms = {}  # each has its own step
    given = _with_recorded(DRAFT_TIME, draft_ms, read_fields("device.", device, DEVICE))
    small = _small(device["small"]) if "small" in device else None
    on_device = DeviceSpec(**given, **by_number, small=small)
    world = World(
        link=_link(_table(document, "link", LINK_EXTRA), folder),
        device=on_device,
        verifier=_verifier(verifier, target_ms, on_device),
        draft=draft,
        arrivals=_arrivals(document, folder),
        sites=_sites(document.get("verifiers", []), folder),
        association=_text("association", document.get("association", NEAREST)),
        **top,
    )
    for name in tables.keys() & document.keys():
        world = tables[name].load()(world, document[name])
    return Experiment(world, repeats, _schemes(document.get("schemes", list(DEFAULT_SCHEMES))))


def _table(document: Mapping[str, Any], name: str, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise UserError(f"{name} is {table!r}; a table [{name}] was expected")
    refuse_unknown(f"[{name}]", table, [*TABLES[name], *extra])
    return dict(table)


def refuse_unknown(where: str, table: Mapping[str, Any], known: list[str]) -> None:
    """Raise `UserError` if the table has a key that is not `known`."""
    unknown = [key for key in table if key not in known]
    if unknown:
        raise UserError(f"{where} has no {unknown[0]!r}; it may have {', '.join(known)}")


def read_fields(prefix: str, table: Mapping[str, Any], known: Mapping[str, Field]) -> dict[str, Any]:
    """Return a table's values by our names, in our units. Raise `UserError` for one of another type."""
    given: dict[str, Any] = {}
    for key, (name, kind, unit) in known.items():
        if key in table:
            value = table[key]
            allowed, wanted = KINDS[kind]
            if type(value) not in allowed:
                raise UserError(f"{prefix}{key} is {value!r}; {wanted} was expected")
            given[name] = value / unit if kind is float else value
    return given


def _by_number(where: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Seconds by whole number, rising, from milliseconds in a table like { 1 = 23, 2 = 85 }."""
    if isinstance(value, dict) and all(str(key).isdecimal() for key in value):
        times = {int(key): time / MS for key, time in value.items() if type(time) in (int, float)}
        if len(times) == len(value) > 0:
            return tuple(sorted(times.items()))
    raise UserError(f"{where} is {value!r}; a table of milliseconds like {{ 1 = 23, 2 = 85 }} was expected")


def _link(table: dict[str, Any], folder: Path) -> LinkSpec:
    """Return what the table says, over what its profile says."""
    for key in LINK_TEXTS:
        if key in table:
            _text(f"link.{key}", table[key])
    name = table.get("profile")
    base = LinkSpec() if name is None else profile(name)
    values = read_fields("link.", table, LINK)
    if "jitter_law" in table:
        values["jitter_law"] = table["jitter_law"]
    for way in ("up", "down"):
        if f"mahimahi_{way}" in table:
            values[f"schedule_{way}"] = read_schedule(folder / table[f"mahimahi_{way}"])
            values.setdefault(f"bandwidth_{way}", 0.0)  # the profile's
    if "outages" in table:
        rows = _rows("link.outages", table["outages"], OUTAGE, (500, 200))
        values["outages"] = tuple(Outage(**row) for row in rows)
    if "handovers" in table:
        values["handovers"] = _handovers(table["handovers"])
    trace = _trace(table, folder)
    if trace is not None and "rtt_ms" in table:
        raise UserError("link.trace and link.rtt_ms both tell the round trip; give one of them")
    if trace is not None and name is not None:
        raise UserError("link.trace and link.profile both set the network; give one of them")
    return replace(base, **values, trace=trace)


def _with_recorded(
    keys: tuple[str, str], recorded: Mapping[int, float], given: dict[str, Any]
) -> dict[str, Any]:
    """Return the step times of a recording, where the document gives none."""
    if not recorded or keys[0] in given:
        return given
    line = fit_line((rows, 1, ms / MS) for rows, ms in recorded.items())
    line_times = {keys[0]: line.fixed}
    if len(recorded) > 1:  # else nothing is known about a further row
        line_times[keys[1]] = line.per_row
    return {**line_times, **given}


def _verifier(table: dict[str, Any], recorded: Mapping[int, float], device: DeviceSpec) -> VerifierSpec:
    """A draft beside the target is the device's in what is not said of it."""
    values, beside = (read_fields("verifier.", table, known) for known in (VERIFIER, SERVER_DRAFT))
    if ROW_TABLE in table:
        if values.keys() & {*STEP_TIME}:
            raise UserError(f"verifier.{ROW_TABLE} stands in place of step_ms and step_ms_per_node")
        times = _by_number(f"verifier.{ROW_TABLE}", table[ROW_TABLE])
        values |= {"step_times": times, "step_time": times[0][1]}
    else:
        values = _with_recorded(STEP_TIME, recorded, values)
    draft = replace(device, **beside, draft_times=(), max_draft_steps_per_second=0.0) if beside else None
    if "step_changes" in table:
        rows = _rows("verifier.step_changes", table["step_changes"], STEP_CHANGE, (10, 60))
        values["step_changes"] = tuple(StepChange(**row) for row in rows)
    heads = _heads(table["heads"]) if "heads" in table else None
    return VerifierSpec(**values, draft=draft, heads=heads)


def _sites(value: Any, folder: Path) -> tuple[VerifierSite, ...]:
    """Return the verifiers of [[verifiers]]: keys of [verifier], a table `link` like [link], and a spread."""
    if not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
        raise UserError("verifiers is no list of tables [[verifiers]]")
    sites = []
    for each in value:
        refuse_unknown("[[verifiers]]", each, [*VERIFIER, *SITE, "link"])
        link = _link(_table(each, "link", LINK_EXTRA), folder)
        spec = VerifierSpec(**read_fields("verifiers.", each, VERIFIER))
        sites.append(VerifierSite(spec, link, **read_fields("verifiers.", each, SITE)))
    return tuple(sites)


def _heads(value: Any) -> HeadsSpec:
    accuracy = value.get("accuracy") if isinstance(value, dict) else None
    if not isinstance(accuracy, list) or any(type(each) is not float for each in accuracy):
        raise UserError(
            f"verifier.heads is {value!r}; a table with the accuracy by level was expected, like "
            "{ accuracy = [0.8, 0.75, 0.7], ms_per_level = 1.0 }"
        )
    refuse_unknown("verifier.heads", value, ["accuracy", *HEADS])
    return HeadsSpec(tuple(accuracy), **read_fields("verifier.heads.", value, HEADS))


def _small(value: Any) -> SmallDraft:
    if not (isinstance(value, dict) and {"ms", "agreement"} <= value.keys()):
        raise UserError(
            f"device.small is {value!r}; a table with the smaller draft was expected, like "
            "{ ms = 0.5, agreement = 0.7, tokens = 4 }"
        )
    refuse_unknown("device.small", value, list(SMALL))
    return SmallDraft(**read_fields("device.small.", value, SMALL))


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where} is {value!r}; a text was expected")
    return value


def _handovers(value: Any) -> Handovers | None:
    if value is False:
        return None
    if not (isinstance(value, dict) and "every_ms" in value):
        raise UserError(
            "link.handovers is neither false nor a table like "
            "{ every_ms = 15000, duration_ms = 50, rtt_step_ms = 20 }, of which every_ms must be there"
        )
    refuse_unknown("link.handovers", value, list(HANDOVERS))
    return Handovers(**read_fields("link.handovers.", value, HANDOVERS))


def _arrivals(document: Mapping[str, Any], folder: Path) -> Arrivals | None:
    """Drawn with `rate_per_s` and `sessions`, or read from `trace`."""
    if "arrivals" not in document:
        return None
    table = _table(document, "arrivals", ("trace",))
    if "clients" in document:
        raise UserError("clients and [arrivals] both set the number of sessions; give one of them")
    is_read, drawn = "trace" in table, [key for key in POISSON if key in table]
    for key in drawn if is_read else [key for key in WINDOW if key in table]:
        raise UserError(f"arrivals.{key} {'does not go with' if is_read else 'needs'} an arrivals.trace")
    if is_read:
        window = Window(**read_fields("arrivals.", table, WINDOW))
        return read_arrivals(folder / _text("arrivals.trace", table["trace"]), window)
    if len(drawn) < len(POISSON):
        raise UserError("[arrivals] needs rate_per_s and sessions, or a trace")
    return Poisson(**read_fields("arrivals.", table, POISSON))


def _rows(where: str, value: Any, known: dict[str, Field], example: Sequence[int]) -> list[dict[str, Any]]:
    """Return a list of tables, each with all of the `known` fields."""
    if not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
        shown = ", ".join(f"{key} = {number}" for key, number in zip(known, example, strict=True))
        raise UserError(f"{where} is not a list of tables like {{ {shown} }}")
    for each in value:
        refuse_unknown(where, each, list(known))
        if len(each) < len(known):
            raise UserError(f"each of {where} needs {' and '.join(known)}")
    return [read_fields(f"{where}.", each, known) for each in value]


def _trace(link: dict[str, Any], folder: Path) -> Trace | None:
    name, session = link.get("trace"), link.get("trace_session")
    options = read_fields("link.", link, TRACE)
    if name is None:
        if options or session is not None:
            raise UserError(f"link.trace_session, link.{' and link.'.join(TRACE)} need a link.trace")
        return None
    replayed = read_trace(folder / name, session)
    offset, floor = options.get("offset", 0.0), options.get("floor")
    if not 0 <= offset < replayed.duration:
        raise UserError(f"link.trace_start_s is {offset:g}; the trace lasts {replayed.duration:.1f} s")
    if floor is not None:
        if not (math.isfinite(floor) and floor >= 0):
            raise UserError(f"link.trace_floor_ms is {floor * MS:g}; it must be finite and 0 or more")
        replayed = replayed.above(floor)
    return replace(replayed, offset=offset)


def _draft(table: dict[str, Any], folder: Path) -> tuple[Draft, Mapping[int, float], Mapping[int, float]]:
    """Drawn, or replayed from a file that is sought from `folder`; and the file's step times of draft and
    target, milliseconds by rows; empty where none were recorded."""
    if "recording" not in table:
        return BetaDraft(**read_fields("draft.", table, DRAFT)), {}, {}
    if len(table) > 1:
        raise UserError(f"[draft] has {', '.join(table)}; a recording stands alone")
    name = _text("draft.recording", table["recording"])
    recording = read_recording(folder / name)
    header = recording.header
    return recorded_draft(name, recording), header.draft_step_ms, header.target_step_ms


def _schemes(value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise UserError(f"schemes is {value!r}; a list of names was expected")
    return tuple(value)
