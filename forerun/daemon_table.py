"""The daemon's live texts as a table: figures of one look or two, and lines of text from these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import PeerError
from edge_client.local_client import LocalClient
from forerun.daemon_words import status_lines
from forerun.top_table import cut, duration, width

STATUS_PATH, SESSIONS_PATH = "/v1/status", "/v1/sessions"
WIDEST = 28  # columns of a name
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """What the daemon said at one time."""

    at: float  # seconds, this program's clock
    status: Mapping[str, Any]  # whatever it says of itself
    texts: tuple[Mapping[str, Any], ...]  # id, client, prompt and `TextFigures` of each text under way
    waiting: int  # requests that have no seat yet


def look(client: LocalClient, now: float) -> Look:
    """Ask it. Raises `ForerunError`."""
    status, told = client.get(STATUS_PATH), client.get(SESSIONS_PATH)
    try:
        texts = tuple(dict(each) for each in told["sessions"])
        return Look(now, dict(status), texts, int(told["waiting"]))
    except (TypeError, KeyError, ValueError) as error:
        raise PeerError(f"the daemon at {client.address} is of another version; restart it") from error


def paces(now: Look, before: Look | None) -> dict[str, float]:
    """Tokens per second by id: between two looks, or since the text began."""
    old = {each["id"]: _number(each, "tokens") for each in before.texts} if before is not None else {}
    found = dict[str, float]()
    for each in now.texts:
        count, name = _number(each, "tokens"), str(each["id"])
        if before is not None and name in old and now.at > before.at:
            found[name] = (count - old[name]) / (now.at - before.at)
        else:
            found[name] = count / max(_number(each, "elapsed_ms") / 1e3, 1e-6)
    return found


def as_json(now: Look, before: Look | None = None) -> Json:
    """Everything, with each text's pace."""
    pace = paces(now, before)
    texts = [{**each, "tokens_per_s": round(pace[str(each["id"])], 3)} for each in now.texts]
    return {"status": dict(now.status), "texts": texts, "waiting": now.waiting}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: a text and its pace."""

    title: str
    value: Callable[[Mapping[str, Any], float], str]
    left: bool = False  # aligned


COLUMNS = (
    Column("ID", lambda each, pace: str(each["id"]), left=True),
    Column("CLIENT", lambda each, pace: str(each.get("client") or "-"), left=True),
    Column("MODE", lambda each, pace: str(each.get("mode", "-")), left=True),
    Column("AGE", lambda each, pace: duration(_number(each, "elapsed_ms") / 1e3)),
    Column("PROMPT", lambda each, pace: _whole(each, "prompt")),
    Column("TOKENS", lambda each, pace: _whole(each, "tokens")),
    Column("TOK/S", lambda each, pace: f"{pace:.1f}"),
    Column("T/STEP", lambda each, pace: _known(each, "acceptance_length", 2)),
    Column("EDGE%", lambda each, pace: _share(each, "accepted", "tokens")),
    Column("ACC%", lambda each, pace: _share(each, "accepted", "proposed")),
    Column("RTT MS", lambda each, pace: _known(each, "rtt_p50_ms", 1)),
    Column("VERIFIER", lambda each, pace: str(each.get("verifier") or "-"), left=True),
)

SORTS: dict[str, Callable[[Mapping[str, Any], float], Any]] = {
    "pace": lambda each, pace: (-pace, str(each["id"])),
    "age": lambda each, pace: (-_number(each, "elapsed_ms"), str(each["id"])),
    "text": lambda each, pace: (-_number(each, "tokens"), str(each["id"])),
}
"""What the table may be sorted by; the largest first."""


def rows(now: Look, before: Look | None = None, *, sort: str = "pace") -> list[str]:
    """A line of titles and a line a text."""
    pace = paces(now, before)
    texts = sorted(now.texts, key=lambda each: SORTS[sort](each, pace[str(each["id"])]))
    cells = [[cut(column.value(each, pace[str(each["id"])]), WIDEST) for column in COLUMNS] for each in texts]
    table = [[column.title for column in COLUMNS], *cells]
    widths = [max(width(row[place]) for row in table) for place in range(len(COLUMNS))]
    return [_line(row, widths) for row in table]


def screen(
    now: Look, before: Look | None = None, *, sort: str = "pace", size: tuple[int, int] | None = None
) -> list[str]:
    """What the daemon says of itself, then the table. `size`: columns and lines, the last stays free; what
    does not fit is cut off, and said."""
    lines = [*head(now), "", *rows(now, before, sort=sort)]
    if size is None:
        return lines
    room = max(1, size[1] - 1)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"and {len(lines) - room + 1} more"]
    return [cut(line, size[0]) for line in lines]


def head(now: Look) -> list[str]:
    """A line for each thing that the daemon says of itself, and one for all texts together."""
    return [*status_lines(now.status), f"texts: {len(now.texts)} under way, {now.waiting} waiting"]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = list[str]()
    for cell, wide, column in zip(cells, widths, COLUMNS, strict=True):
        gap = " " * (wide - width(cell))
        parts.append(cell + gap if column.left else gap + cell)
    return "  ".join(parts).rstrip()


def _number(each: Mapping[str, Any], name: str) -> float:
    found = each.get(name)
    return float(found) if isinstance(found, int | float) else 0.0


def _whole(each: Mapping[str, Any], name: str) -> str:
    return f"{_number(each, name):.0f}"


def _known(each: Mapping[str, Any], name: str, digits: int) -> str:
    """0 is what the daemon says of what it has not measured."""
    found = _number(each, name)
    return f"{found:.{digits}f}" if found else "-"


def _share(each: Mapping[str, Any], part: str, whole: str) -> str:
    found = _number(each, whole)
    return f"{100 * _number(each, part) / found:.0f}%" if found else "-"
