"""A verifier's live sessions as a table: figures from two answers, and lines of plain text from these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from common.rpc.admin import LiveSession, Overview, Totals
from forerun.screen import advance

UNBOUNDED = 10**6  # columns: a line that never ends


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened between two answers, or since the verifier began. None where nothing did."""

    seconds: float  # between them
    tokens_per_s: float
    step_ms: float | None
    queue_ms: float | None  # of a session, before a step
    rows_per_step: float | None
    tips_per_step: float | None
    accepted_share: float | None  # of committed tokens, those that edges had proposed
    won_share: float | None  # of draft rows, those that were right
    cache_hit_share: float | None  # of the tokens that sessions came with
    kv_used_share: float  # now
    kv_cached_share: float  # now, read by nobody
    bytes_in_per_s: float
    bytes_out_per_s: float


def figures(now: Overview, before: Overview | None = None) -> Figures:
    """Of the time between two answers of one verifier; from its beginning if there is no `before`, or if it
    was started anew since."""
    if before is None or before.uptime_us >= now.uptime_us:
        before = replace(now, uptime_us=0, totals=Totals())
    seconds = (now.uptime_us - before.uptime_us) / 1e6
    new = _difference(now.totals, before.totals)
    slots = now.slots
    num_slots = slots.free + slots.cached + slots.shared + slots.owned
    return Figures(
        seconds=seconds,
        tokens_per_s=new.committed / max(seconds, 1e-6),
        step_ms=_ratio(new.step_time_us / 1e3, new.steps),
        queue_ms=_ratio(new.queue_time_us / 1e3, new.queued),
        rows_per_step=_ratio(new.rows, new.steps),
        tips_per_step=_ratio(new.tips, new.steps),
        accepted_share=_ratio(new.accepted, new.committed),
        won_share=_ratio(new.won, new.drafts),
        cache_hit_share=_ratio(now.totals.cached_tokens, now.totals.prompt_tokens),
        kv_used_share=(slots.shared + slots.owned) / max(1, num_slots),
        kv_cached_share=slots.cached / max(1, num_slots),
        bytes_in_per_s=new.bytes_received / max(seconds, 1e-6),
        bytes_out_per_s=new.bytes_sent / max(seconds, 1e-6),
    )


def paces(now: Overview, before: Overview | None = None) -> dict[int, float]:
    """Tokens per second of each session, by stream: between two answers, or since its Open."""
    old = {each.stream: each for each in before.sessions} if before else {}
    found = dict[int, float]()
    for each in now.sessions:
        then = old.get(each.stream)
        if then is None or then.age_us >= each.age_us:
            found[each.stream] = each.committed * 1e6 / max(each.age_us, 1)
        else:
            found[each.stream] = (each.committed - then.committed) * 1e6 / (each.age_us - then.age_us)
    return found


def as_json(now: Overview, before: Overview | None = None) -> dict[str, Any]:
    """Everything: the answer as it came, `figures`, and each session's pace."""
    pace = paces(now, before)
    document = asdict(now)
    document["figures"] = asdict(figures(now, before))
    for session, each in zip(document["sessions"], now.sessions, strict=True):
        session["mode"] = each.mode.label
        session["tokens_per_s"] = pace[each.stream]
    return document


SORTS: dict[str, Callable[[LiveSession, float], Any]] = {
    "pace": lambda each, pace: (-pace, each.stream),
    "age": lambda each, pace: (-each.age_us, each.stream),
    "slots": lambda each, pace: (-each.slots, each.stream),
    "text": lambda each, pace: (-each.committed, each.stream),
    "tenant": lambda each, pace: (each.tenant, -pace, each.stream),
}
"""What a table may be sorted by; the largest first."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    title: str
    value: Callable[[LiveSession, float], str]
    left: bool = False  # aligned


COLUMNS = (
    Column("STREAM", lambda each, pace: str(each.stream)),
    Column("SESSION", lambda each, pace: each.session_id or "-", left=True),
    Column("TENANT", lambda each, pace: each.tenant or "-", left=True),
    Column("MODE", lambda each, pace: each.mode.label, left=True),
    Column("AGE", lambda each, pace: duration(each.age_us / 1e6)),
    Column("PROMPT", lambda each, pace: str(each.prompt_tokens)),
    Column("CACHED", lambda each, pace: str(each.cached_tokens)),
    Column("TEXT", lambda each, pace: f"{each.resumed_tokens + each.committed}/{each.max_tokens}"),
    Column("TOK/S", lambda each, pace: f"{pace:.1f}"),
    Column("T/STEP", lambda each, pace: _number(_ratio(each.committed, each.steps), 2)),
    Column("EDGE%", lambda each, pace: _percent(_ratio(each.accepted, each.committed))),
    Column("CREDIT", lambda each, pace: str(each.credit)),
    Column("LAG", lambda each, pace: str(each.lag)),
    Column("SLOTS", lambda each, pace: str(each.slots)),
)
WIDEST = 24  # columns of a session's or a tenant's name


def table(
    now: Overview, before: Overview | None = None, *, sort: str = "pace", size: tuple[int, int] | None = None
) -> list[str]:
    """The lines: what the verifier does, then a line a session. `size` is the screen's columns and lines, of
    which the last stays free; what does not fit is cut off, and said."""
    pace = paces(now, before)
    key = SORTS[sort]
    sessions = sorted(now.sessions, key=lambda each: key(each, pace[each.stream]))
    lines = [*_summary(now, figures(now, before)), ""]
    room = len(sessions) if size is None else max(0, size[1] - len(lines) - 3)
    hidden = max(0, len(sessions) - room)
    lines += _rows(sessions[:room], pace)
    if hidden:
        lines.append(f"and {hidden} more")
    return lines if size is None else [cut(line, size[0]) for line in lines]


def duration(seconds: float) -> str:
    """As people say it: 12s, 3m05s, 2h07m, 4d03h."""
    whole = int(seconds)
    for unit, below, name, lower in ((86400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s")):
        if whole >= unit:
            return f"{whole // unit}{name}{whole % unit // below:02d}{lower}"
    return f"{whole}s"


def cut(text: str, columns: int) -> str:
    """No wider than that; an end that is cut off leaves dots."""
    if width(text) <= columns:
        return text
    place = taken = 0
    while taken + width(text[place]) <= columns - 3:
        taken += width(text[place])
        place += 1
    return (text[:place] + "...")[: max(place, columns)]


def width(text: str) -> int:
    """Columns that it takes on a terminal."""
    return advance(0, text, UNBOUNDED)[1]


def _summary(now: Overview, found: Figures) -> list[str]:
    modes = Counter(each.mode.label for each in now.sessions)
    doing = ", ".join(f"{number} {mode}" for mode, number in sorted(modes.items())) or "none"
    most = f"/{now.max_sessions}" if now.max_sessions else ""
    program = f"forerun {now.version}" if now.version else "forerun"
    draining = "   DRAINING" if now.draining else ""
    totals = now.totals
    return [
        f"{now.model}   {program}   up {duration(now.uptime_us / 1e6)}   sessions {len(now.sessions)}{most} "
        f"({doing}){draining}",
        f"{found.tokens_per_s:.1f} tok/s   step {_number(found.step_ms, 1)} ms   "
        f"queue {_number(found.queue_ms, 1)} ms   rows/step {_number(found.rows_per_step, 1)}   "
        f"tips/step {_number(found.tips_per_step, 1)}   edge {_percent(found.accepted_share)}   "
        f"drafts right {_percent(found.won_share)}",
        f"KV {_percent(found.kv_used_share)} used, {_percent(found.kv_cached_share)} cached   "
        f"cache hits {_percent(found.cache_hit_share)}   in {_bytes(found.bytes_in_per_s)}/s   "
        f"out {_bytes(found.bytes_out_per_s)}/s   opened {totals.opened}   refused {totals.refused}   "
        f"preempted {totals.preempted}",
    ]


def _rows(sessions: list[LiveSession], pace: dict[int, float]) -> list[str]:
    cells = [[cut(column.value(each, pace[each.stream]), WIDEST) for column in COLUMNS] for each in sessions]
    widths = [
        max([len(column.title), *(width(row[place]) for row in cells)])
        for place, column in enumerate(COLUMNS)
    ]
    titles = [column.title for column in COLUMNS]
    return [_line(row, widths) for row in (titles, *cells)]


def _line(cells: list[str], widths: list[int]) -> str:
    parts = list[str]()
    for cell, wide, column in zip(cells, widths, COLUMNS, strict=True):
        gap = " " * (wide - width(cell))
        parts.append(cell + gap if column.left else gap + cell)
    return "  ".join(parts).rstrip()


def _difference(now: Totals, before: Totals) -> Totals:
    return Totals(*(getattr(now, each.name) - getattr(before, each.name) for each in fields(Totals)))


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
