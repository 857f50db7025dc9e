"""What the daemon says of itself (`edge_client.status`), as lines for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from forerun.top_table import duration

Json = Mapping[str, Any]

MEBIBYTE = 1 << 20

UNSAID = ("pid", "started_at", "uptime_s", "page", "demo_link", "streams")
"""Of interest to programs, which read JSON."""


def status_lines(told: Json) -> list[str]:
    """A line for each thing and each verifier. What this version does not know is told by its name."""
    lines = list[str]()
    for name, value in told.items():
        if name in UNSAID or value in (None, "", [], {}) or (name, value) == ("orders", "none"):
            continue
        say = WORDS.get(name)
        for each in value if name == "verifiers" and isinstance(value, list) else [value]:
            lines.append(say(each) if say and isinstance(each, dict) else f"{name}: {flat(each)}")
    return lines


def flat(value: Any) -> str:
    """On one line, names before their values; nothing of what is empty."""
    if isinstance(value, Mapping):
        known = {name: each for name, each in value.items() if each not in (None, "", [], {})}
        return ", ".join(f"{name} {flat(each)}" for name, each in known.items())
    if isinstance(value, Sequence) and not isinstance(value, str) and any(isinstance(x, dict) for x in value):
        return "; ".join(map(flat, value))
    return value if isinstance(value, str) else json.dumps(value)


def _verifier(told: Json) -> str:
    """A line about one verifier, with a reason if it cannot be used."""
    health = str(told.get("health") or told.get("state") or "?")
    since = told.get("for_s")
    parts = [health if since is None else f"{health} for {duration(since)}"]
    if health not in ("ready", "full"):
        parts.append(str(told.get("why") or told.get("last_error") or ""))
    parts.append(str(told.get("model") or ""))
    if (rtt := told.get("smoothed_rtt_ms") or told.get("rtt_ms")) is not None:
        parts.append(f"RTT {rtt:.1f} ms")
    if (most := told.get("max_sessions")) is not None:
        parts.append(f"{told.get('sessions', 0)} of {most} sessions taken")
    return f"verifier {told.get('address', '?')}: {_joined(parts)}"


def _draft(told: Json) -> str:
    parts = [str(told.get("state", "")), PurePath(str(told.get("file") or told.get("model") or "")).name]
    if size := told.get("size_bytes"):
        parts.append(f"{size / MEBIBYTE:.1f} MiB")
    if (seats := told.get("seats")) is not None:
        parts.append(f"{told.get('used', 0)} of {seats} seats taken")
    if (left := told.get("unloads_in_s")) is not None:
        parts.append(f"unloaded in {duration(left)}")
    return f"draft: {_joined([*parts, str(told.get('error') or '')])}"


def _texts(told: Json) -> str:
    ended = told.get("ended") or {}
    whys = ", ".join(f"{count} {why}" for why, count in ended.items() if count)
    parts = [f"{sum(ended.values())} ended" + (f" ({whys})" if whys else "")]
    return f"texts so far: {_joined([*parts, str(told.get('refused', 0)) + ' refused'])}"


def _totals(told: Json) -> str:
    count = told.get("tokens", 0)
    parts = [f"{count:.0f}"]
    if count:
        parts.append(f"{100 * told.get('accepted', 0) / count:.0f} % drafted here")
    if alone := told.get("device_tokens"):
        parts.append(f"{alone:.0f} by the draft model alone")
    if steps := told.get("target_steps"):
        parts.append(f"{steps:.0f} target steps")
    return f"tokens so far: {_joined(parts)}"


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(filter(None, parts))


WORDS: dict[str, Callable[[Json], str]] = {
    "verifiers": _verifier,
    "draft": _draft,
    "texts": _texts,
    "totals": _totals,
}
