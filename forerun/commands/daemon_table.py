"""Formats the daemon's live texts as a table, from one look at the daemon or two."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from common.errors import PeerError
from edge_client.process.client import LocalClient
from forerun import terminal
from forerun.terminal import number_in

Json = Mapping[str, Any]

MEBIBYTE = 1 << 20
WIDEST = 28  # columns of a cell: clients choose names
STATUS_PATH, SESSIONS_PATH = "/v1/status", "/v1/sessions"

UNSAID = ("pid", "started_at", "uptime_s", "page", "demo_link", "streams")
"""Fields that only programs need, which read JSON."""


IN_PAIRS = ("mode", "privacy", "draft", "verifiers")
"""Fields that each of several pairs has."""


def status_lines(told: Json) -> list[str]:
    """Return a line for each part of the status and each verifier; an unknown part by its name."""
    lines, pairs = list[str](), told.get("pairs") or {}
    for name, pair in pairs.items():
        parts = {each: pair.get(each) for each in IN_PAIRS}
        lines += [f"pair {name}: {line}" for line in status_lines(parts)]
    for name, value in told.items():
        if name == "pairs" or (pairs and name in IN_PAIRS):
            continue
        if name in UNSAID or value in EMPTY or (name, value) == ("orders", "none"):
            continue
        say = WORDS.get(name)
        for each in value if name == "verifiers" and isinstance(value, list) else [value]:
            lines.append(say(each) if say and isinstance(each, dict) else f"{name}: {flat(each)}")
    return lines


EMPTY: tuple[Any, ...] = (None, "", [], {})


def flat(value: Any) -> str:
    """Format a value on one line, names before values, without empty values. Round fractions."""
    if isinstance(value, Mapping):
        parts = {name.replace("_", " "): flat(each) for name, each in value.items() if each not in EMPTY}
        return ", ".join(f"{name} {each}" for name, each in parts.items())
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}".removesuffix(".0")
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return "; ".join(map(flat, value))
    return value if isinstance(value, str) else json.dumps(value)


def _verifier(told: Json) -> str:
    """Describe one verifier, with a reason if it is unusable."""
    parts = [f"{told['health']} for {duration(told['for_s'])}" if "for_s" in told else told["health"]]
    if told["health"] not in ("ready", "full"):
        parts.append(told.get("why", ""))
    parts.append(told.get("model", ""))
    if (rtt := told.get("smoothed_rtt_ms")) is not None:
        parts.append(f"RTT {rtt:.1f} ms")
    if (most := told.get("max_sessions")) is not None:
        parts.append(f"{told.get('sessions', 0)} of {most} sessions taken")
    return f"verifier {told['address']}: {_joined(parts)}"


def _draft(told: Json) -> str:
    parts = [str(told.get("state", "")), PurePath(str(told.get("file") or told.get("model") or "")).name]
    if size := told.get("size_bytes"):
        parts.append(f"{size / MEBIBYTE:.1f} MiB")
    if (seats := told.get("seats")) is not None:
        parts.append(f"{told.get('used', 0)} of {seats} seats taken")
    if (left := told.get("unloads_in_s")) is not None:
        parts.append(f"unloaded in {duration(left)}")
    if trial := told.get("trial"):
        parts.append(f"on trial: {flat(trial)}")
    return f"draft: {_joined([*parts, str(told.get('error') or ''), str(told.get('last_trial') or '')])}"


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(filter(None, parts))


def _texts(told: Json) -> str:
    """Count the texts: under way, waiting, and ended by reason."""
    parts = [f"{told.get('running', 0)} under way", f"{told.get('waiting', 0)} waiting"]
    if refused := told.get("refused"):
        parts.append(f"{refused} refused, as the queue was full")
    if ended := told.get("ended"):
        parts.append(f"{sum(ended.values()):.0f} ended ({flat(ended)})")
    return f"texts: {_joined(parts)}"


def _totals(told: Json) -> str:
    """Say what ended texts took, and how much of them the device guessed."""
    tokens, guessed, alone = (number_in(told, name) for name in ("tokens", "accepted", "device_tokens"))
    if not tokens:
        return "written: no tokens yet"
    parts = [f"{tokens:.0f} tokens in {number_in(told, 'elapsed_ms') / 1e3:.1f} s"]
    parts.append(f"this device guessed {guessed / tokens:.0%} of them")
    if alone:
        parts.append(f"{alone:.0f} by the draft model alone")
    parts.append(f"{number_in(told, 'target_steps'):.0f} target steps")
    sent, received = (number_in(told, f"bytes_{way}") / 1e3 for way in ("up", "down"))
    parts.append(f"{sent:.1f} kB sent, {received:.1f} kB received")
    if resumes := number_in(told, "resumes"):
        parts.append(f"{resumes:.0f} reconnects")
    return f"written: {_joined(parts)}"


WORDS: dict[str, Callable[[Json], str]] = {
    "verifiers": _verifier,
    "draft": _draft,
    "texts": _texts,
    "totals": _totals,
}


def duration(seconds: float) -> str:
    """Format seconds for a reader: 12s, 3m05s, 2h07m, 4d03h."""
    whole = int(seconds)
    for unit, below, name, lower in ((86400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s")):
        if whole >= unit:
            return f"{whole // unit}{name}{whole % unit // below:02d}{lower}"
    return f"{whole}s"


@dataclass(frozen=True, slots=True)
class DaemonLook:
    """Holds the daemon's answers at one time."""

    at: float  # seconds, this program's clock
    status: Json  # its own status
    texts: tuple[Json, ...]  # id, client, prompt and `TextFigures` of each text under way
    waiting: int  # requests without a seat


def look(client: LocalClient, now: float) -> DaemonLook:
    """Ask the daemon. Raise `ForerunError`."""
    status, told = client.get(STATUS_PATH), client.get(SESSIONS_PATH)
    try:
        texts = tuple(dict(each) for each in told["sessions"])
        return DaemonLook(now, dict(status), texts, int(told["waiting"]))
    except (TypeError, KeyError, ValueError) as error:
        raise PeerError(f"the daemon at {client.address} is of another version; restart it") from error


def paces(now: DaemonLook, before: DaemonLook | None) -> dict[str, float]:
    """Return tokens per second by id: between two looks, or since the text began."""
    old = {each["id"]: number_in(each, "tokens") for each in before.texts} if before is not None else {}
    rates = dict[str, float]()
    for each in now.texts:
        count, name = number_in(each, "tokens"), str(each["id"])
        if before is not None and name in old and now.at > before.at:
            rates[name] = (count - old[name]) / (now.at - before.at)
        else:
            took = number_in(each, "elapsed_ms") - number_in(each, "waited_ms")
            rates[name] = count / max(took / 1e3, 1e-6)
    return rates


def as_json(now: DaemonLook, before: DaemonLook | None = None) -> dict[str, Any]:
    """Return the status and all texts, each with its tokens per second."""
    pace = paces(now, before)
    texts = [{**each, "tokens_per_s": round(pace[str(each["id"])], 3)} for each in now.texts]
    return {"status": dict(now.status), "texts": texts, "waiting": now.waiting}


COLUMNS: dict[str, Callable[[Json, float], str]] = {
    "ID": lambda each, pace: str(each["id"]),
    "CLIENT": lambda each, pace: str(each.get("client") or "-"),
    "MODE": lambda each, pace: str(each.get("mode", "-")),
    "AGE": lambda each, pace: duration(number_in(each, "elapsed_ms") / 1e3),
    "PROMPT": lambda each, pace: f"{number_in(each, 'prompt'):.0f}",
    "TOKENS": lambda each, pace: f"{number_in(each, 'tokens'):.0f}",
    "TOK/S": lambda each, pace: f"{pace:.1f}",
    "T/STEP": lambda each, pace: _known(each, "acceptance_length", 2),
    "EDGE%": lambda each, pace: _share(each, "accepted", "tokens"),
    "ACC%": lambda each, pace: _share(each, "accepted", "proposed"),
    "RTT MS": lambda each, pace: _known(each, "rtt_p50_ms", 1),
    "VERIFIER": lambda each, pace: str(each.get("verifier") or "-"),
}
"""Formats a cell from a text and its tokens per second, by title."""

NAMES = ("ID", "CLIENT", "MODE", "VERIFIER")
"""Titles of the columns that are aligned to the left."""


def screen(now: DaemonLook, before: DaemonLook | None = None) -> list[str]:
    """Return the daemon's status, then a line a text, the fastest first."""
    pace = paces(now, before)
    texts = sorted(
        ((pace[str(each["id"])], each) for each in now.texts), key=lambda row: (-row[0], str(row[1]["id"]))
    )
    cells = ([cell(each, rate) for cell in COLUMNS.values()] for rate, each in texts)
    counts = {**now.status.get("texts", {}), "running": len(now.texts), "waiting": now.waiting}
    return [
        *status_lines({**now.status, "texts": counts}),
        "",
        *terminal.table(COLUMNS, cells, NAMES, WIDEST),
    ]


def _known(each: Json, name: str, digits: int) -> str:
    """Format a number, or "-" for 0, which the daemon reports for unmeasured values."""
    number = number_in(each, name)
    return f"{number:.{digits}f}" if number else "-"


def _share(each: Json, part: str, whole: str) -> str:
    total = number_in(each, whole)
    return f"{100 * number_in(each, part) / total:.0f}%" if total else "-"
