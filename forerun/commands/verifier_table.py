"""Formats a verifier's live sessions as a table, from one answer of its `/sessions` or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from forerun import terminal
from forerun.commands.daemon_table import WIDEST, Json, duration

PATH = "/sessions"
"""Path of the answer, which `cloud_verifier.telemetry.snapshot.overview` makes."""


def figures(now: Json, before: Json | None = None) -> dict[str, Any]:
    """Return figures of the time between two answers of one verifier; None where nothing happened.

    The time begins with the verifier's start if `before` is None or the verifier restarted since.
    """
    if before is None or before["uptime_us"] >= now["uptime_us"]:
        before = {"uptime_us": 0, "totals": dict.fromkeys(now["totals"], 0)}
    seconds = (now["uptime_us"] - before["uptime_us"]) / 1e6
    totals, slots = now["totals"], now["slots"]
    new = {name: total - before["totals"][name] for name, total in totals.items()}
    num_slots = max(1, slots["free"] + slots["cached"] + slots["shared"] + slots["owned"])
    return {
        "seconds": seconds,
        "tokens_per_s": new["committed"] / max(seconds, 1e-6),
        "step_ms": _ratio(new["step_time_us"] / 1e3, new["steps"]),
        "queue_ms": _ratio(new["queue_time_us"] / 1e3, new["queued"]),  # of a session, before a step
        "rows_per_step": _ratio(new["rows"], new["steps"]),
        "tips_per_step": _ratio(new["tips"], new["steps"]),
        "accepted_share": _ratio(new["accepted"], new["committed"]),  # of committed tokens, proposed by edges
        "won_share": _ratio(new["won"], new["drafts"]),  # of draft rows, those that were right
        "cache_hit_share": _ratio(totals["cached_tokens"], totals["prompt_tokens"]),
        "kv_used_share": (slots["shared"] + slots["owned"]) / num_slots,
        "kv_cached_share": slots["cached"] / num_slots,  # read by no session
        "bytes_in_per_s": new["bytes_received"] / max(seconds, 1e-6),
        "bytes_out_per_s": new["bytes_sent"] / max(seconds, 1e-6),
    }


def paces(now: Json, before: Json | None = None) -> dict[int, float]:
    """Return tokens per second by stream: between two answers, or since the session's Open."""
    old = {session["stream"]: session for session in before["sessions"]} if before else {}
    pace = dict[int, float]()
    for session in now["sessions"]:
        then = old.get(session["stream"])
        if then is None or then["age_us"] >= session["age_us"]:
            then = {"committed": 0, "age_us": 0}
        tokens, time = session["committed"] - then["committed"], session["age_us"] - then["age_us"]
        pace[session["stream"]] = tokens * 1e6 / max(time, 1)
    return pace


def as_json(now: Json, before: Json | None = None) -> dict[str, Any]:
    """Return the whole answer, `figures`, and each session's tokens per second."""
    pace = paces(now, before)
    sessions = [{**session, "tokens_per_s": pace[session["stream"]]} for session in now["sessions"]]
    return {**now, "sessions": sessions, "figures": figures(now, before)}


COLUMNS: dict[str, Callable[[Json, float], str]] = {
    "STREAM": lambda each, pace: str(each["stream"]),
    "SESSION": lambda each, pace: str(each["session_id"] or "-"),
    "TENANT": lambda each, pace: str(each["tenant"] or "-"),
    "MODE": lambda each, pace: str(each["mode"]),
    "AGE": lambda each, pace: duration(each["age_us"] / 1e6),
    "PROMPT": lambda each, pace: str(each["prompt_tokens"]),
    "CACHED": lambda each, pace: str(each["cached_tokens"]),
    "TEXT": lambda each, pace: f"{each['resumed_tokens'] + each['committed']}/{each['max_tokens']}",
    "TOK/S": lambda each, pace: f"{pace:.1f}",
    "T/STEP": lambda each, pace: _number(_ratio(each["committed"], each["steps"]), 2),
    "EDGE%": lambda each, pace: _percent(_ratio(each["accepted"], each["committed"])),
    "CREDIT": lambda each, pace: str(each["credit"]),
    "LAG": lambda each, pace: str(each["lag"]),
    "SLOTS": lambda each, pace: str(each["slots"]),
}
"""Formats a cell from a session and its tokens per second, by title."""

NAMES = ("SESSION", "TENANT", "MODE")
"""Titles of the columns that are aligned to the left."""


def table(now: Json, before: Json | None = None) -> list[str]:
    """Return a summary of the verifier, then a line a session, the fastest first."""
    pace = paces(now, before)
    sessions = sorted(now["sessions"], key=lambda each: (-pace[each["stream"]], each["stream"]))
    cells = ([cell(each, pace[each["stream"]]) for cell in COLUMNS.values()] for each in sessions)
    return [*_summary(now, figures(now, before)), "", *terminal.table(COLUMNS, cells, NAMES, WIDEST)]


def _summary(now: Json, rates: dict[str, Any]) -> list[str]:
    modes = Counter(session["mode"] for session in now["sessions"])
    doing = ", ".join(f"{number} {mode}" for mode, number in sorted(modes.items())) or "none"
    most = f"/{now['max_sessions']}" if now["max_sessions"] else ""
    program = f"forerun {now['version']}" if now["version"] else "forerun"
    draining = "   DRAINING" if now["draining"] else ""
    totals = now["totals"]
    return [
        f"{now['model']}   {program}   up {duration(now['uptime_us'] / 1e6)}   "
        f"sessions {len(now['sessions'])}{most} ({doing}){draining}",
        f"{rates['tokens_per_s']:.1f} tok/s   step {_number(rates['step_ms'], 1)} ms   "
        f"queue {_number(rates['queue_ms'], 1)} ms   rows/step {_number(rates['rows_per_step'], 1)}   "
        f"tips/step {_number(rates['tips_per_step'], 1)}   edge {_percent(rates['accepted_share'])}   "
        f"drafts right {_percent(rates['won_share'])}",
        f"KV {_percent(rates['kv_used_share'])} used, {_percent(rates['kv_cached_share'])} cached   "
        f"cache hits {_percent(rates['cache_hit_share'])}   in {_bytes(rates['bytes_in_per_s'])}/s   "
        f"out {_bytes(rates['bytes_out_per_s'])}/s   opened {totals['opened']}   "
        f"refused {totals['refused']}   preempted {totals['preempted']}",
    ]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
