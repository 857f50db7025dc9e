"""Reads what real models did, for replay: recordings by `forerun record`.

A recording is JSON lines in UTF-8. The first line is the header:

    {"format": "forerun recording", "version": 1, "target": "...", "draft": "...", "temperature": 0.8,
     "seed": 1, "draft_step_ms": {"1": 0.9, "4": 2.2}, "target_step_ms": {"1": 4.0}}

Step times are medians by the number of rows, of the machine that recorded; either may be empty or left out.
Each further line is one text that the target wrote, its lists with one entry per token:

    {"prompt_tokens": 70, "tokens": [12, 5], "candidates": [[12, 7], [9, 3]],
     "scores": [[4.1, 2.0], [3.3, 3.1]], "ranks": [1, null]}

`candidates` are the token ids that the draft ranked, best first, `scores` theirs in nats (logits and shared
noise), and `ranks` the place of the target's token among them: 1 is the draft's best, null none of them.
Lists of candidates are empty where the draft has none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.errors import LocalError, UserError
from simulator.documents import read_text, write_whole

FORMAT, VERSION = "forerun recording", 1

Ids = tuple[int, ...]
Scores = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RecordingHeader:
    """Describes how a recording was made. Step times are milliseconds by number of rows."""

    target: str
    draft: str
    temperature: float
    seed: int
    draft_step_ms: dict[int, float] = field(default_factory=dict)
    target_step_ms: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedText:
    """Holds one text of the target, and the draft's output before each token, in columns of equal length."""

    prompt_tokens: int
    tokens: Ids
    candidates: tuple[Ids, ...]  # best first
    scores: tuple[Scores, ...]  # nats, not rising
    ranks: tuple[int | None, ...]  # of `tokens` among the candidates; 1 = the first


@dataclass(frozen=True, slots=True)
class Recording:
    """Holds a file of recorded texts."""

    header: RecordingHeader
    texts: tuple[RecordedText, ...]

    @property
    def hit_rate(self) -> float:
        """Return the share of positions at which the draft's best token was the target's."""
        ranks = [rank for text in self.texts for rank in text.ranks]
        return sum(rank == 1 for rank in ranks) / len(ranks)


def write_recording(path: Path, recording: Recording) -> None:
    """Write all of the file or nothing. Raises `LocalError` if it cannot be written."""
    first = {"format": FORMAT, "version": VERSION, **asdict(recording.header)}
    columns = RecordedText.__dataclass_fields__
    texts = [{name: getattr(text, name) for name in columns} for text in recording.texts]
    try:
        write_whole(path, "".join(json.dumps(line) + "\n" for line in (first, *texts)))
    except OSError as error:
        raise LocalError(f"the recording {path} cannot be written: {error.strerror}") from error


def read_recording(path: Path) -> Recording:
    """Read a recording. Raises `UserError` that names the file, the line and the expected content."""
    first, *rest = _lines("the recording", path)
    header = _header(first)
    if not rest:
        raise UserError(f"the recording {path} has a header and no text")
    return Recording(header, tuple(_text(line) for line in rest))


# Lines ----------------------------------------------------------------------------------------------------


class _Line:
    """One JSON object, and where it stands."""

    def __init__(self, where: str, text: str) -> None:
        self._where = where
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise self.fail(f"holds {_shown(value)}; an object was expected")
        self.value: dict[str, Any] = value

    def fail(self, what: str) -> UserError:
        return UserError(f"{self._where} {what}")

    def at(self, dotted: str) -> Any:
        """Return the value under `a.b.c`."""
        value: Any = self.value
        for key in dotted.split("."):
            if not isinstance(value, dict) or key not in value:
                known = ", ".join(list(value)[:10]) if isinstance(value, dict) else _shown(value)
                raise self.fail(f"has no {dotted!r}: where {key!r} was expected it has {known or 'nothing'}")
            value = value[key]
        return value

    def text(self, key: str) -> str:
        value = self.at(key)
        if not isinstance(value, str):
            raise self.fail(f"has {key} {_shown(value)}; a text was expected")
        return value

    def whole(self, key: str) -> int:
        value = self.at(key)
        if not _is_whole(value) or value < 0:
            raise self.fail(f"has {key} {_shown(value)}; a whole number of 0 or more was expected")
        return int(value)

    def number(self, key: str) -> float:
        value = self.at(key)
        if not _is_number(value) or value < 0:
            raise self.fail(f"has {key} {_shown(value)}; a number of 0 or more was expected")
        return float(value)

    def column(self, key: str) -> list[Any]:
        value = self.at(key)
        if not isinstance(value, list) or not value:
            raise self.fail(f"has {key} {_shown(value)}; a list with at least one entry was expected")
        return value


def _lines(what: str, path: Path) -> list[_Line]:
    """Blank lines are passed over."""
    numbered = enumerate(read_text(what, path).split("\n"), 1)
    lines = [_Line(f"{what} {path}, line {number},", line) for number, line in numbered if line.strip()]
    if not lines:
        raise UserError(f"{what} {path} is empty; a JSON object a line was expected")
    return lines


def _header(line: _Line) -> RecordingHeader:
    if line.value.get("format") != FORMAT:
        raise line.fail(f"is no header; its format should be {FORMAT!r} (`forerun record` writes it)")
    if line.at("version") != VERSION:
        raise line.fail(f"has version {_shown(line.at('version'))}; this program reads version {VERSION}")
    return RecordingHeader(
        line.text("target"),
        line.text("draft"),
        line.number("temperature"),
        line.whole("seed"),
        _step_times(line, "draft_step_ms"),
        _step_times(line, "target_step_ms"),
    )


def _step_times(line: _Line, key: str) -> dict[int, float]:
    value = line.value.get(key, {})
    if not isinstance(value, dict) or not all(
        rows.isdecimal() and _is_number(time) and time >= 0 for rows, time in value.items()
    ):
        raise line.fail(f'has {key} {_shown(value)}; milliseconds by rows like {{"1": 2.5}} were expected')
    return {int(rows): float(time) for rows, time in value.items()}


def _text(line: _Line) -> RecordedText:
    tokens, ranks = line.column("tokens"), line.column("ranks")
    candidates, scores = line.column("candidates"), line.column("scores")
    for key, column in (("candidates", candidates), ("scores", scores), ("ranks", ranks)):
        if len(column) != len(tokens):
            raise line.fail(f"has {len(tokens)} tokens and {len(column)} {key}; as many were expected")
    for place, said in enumerate(zip(tokens, candidates, scores, ranks, strict=True)):
        _check_position(line, place, *said)
    return RecordedText(
        line.whole("prompt_tokens"),
        tuple(tokens),
        tuple(map(tuple, candidates)),
        tuple(tuple(map(float, row)) for row in scores),
        tuple(ranks),
    )


def _check_position(line: _Line, place: int, token: Any, ids: Any, scores: Any, rank: Any) -> None:
    """Check one entry of each column by itself and against the others."""
    where = f"at token {place} (from 0)"
    if not _is_id(token):
        raise line.fail(f"{where} has the token {_shown(token)}; an id of 0 or more was expected")
    if not (isinstance(ids, list) and all(map(_is_id, ids)) and len(set(ids)) == len(ids)):
        raise line.fail(f"{where} has candidates {_shown(ids)}; a list of different ids was expected")
    if not (isinstance(scores, list) and len(scores) == len(ids) and all(map(_is_number, scores))):
        raise line.fail(f"{where} has scores {_shown(scores)}; {len(ids)} finite numbers were expected")
    if any(before < after for before, after in pairwise(scores)):
        raise line.fail(f"{where} has scores {_shown(scores)} that rise; the best candidate stands first")
    right = ids.index(token) + 1 if token in ids else None
    if rank != right or isinstance(rank, bool):
        expected = "null" if right is None else right
        raise line.fail(f"{where} has rank {_shown(rank)}; by its token and candidates it is {expected}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: Any) -> bool:
    return _is_whole(value) and 0 <= value < 2**31


def _is_number(value: object) -> bool:
    """Finite, and neither a truth value nor too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
