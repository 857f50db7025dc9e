"""How an answer went, in words: from the figures that the daemon tells at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]


def stats_line(figures: Figures) -> str:
    """One answer's, without what is not known."""
    count, elapsed = _number(figures, "tokens"), _number(figures, "elapsed_ms")
    parts = [f"{count:.0f} {'token' if count == 1 else 'tokens'} in {elapsed:.0f} ms"]
    parts += [*_pace(figures), *_waited(figures), *_steps(figures), *_shares(figures), *_network(figures)]
    if figures.get("mode") not in (None, "ahead"):
        parts.append(str(figures["mode"]))
    return f"[{'; '.join(parts)}]"


def total_line(answers: Sequence[Figures]) -> str:
    """Of a whole conversation."""
    if not answers:
        return "nothing was written yet"
    names = ("tokens", "elapsed_ms", "accepted", "proposed", "target_steps", "device_tokens", "resumes")
    total: dict[str, Any] = {name: sum(_number(each, name) for each in answers) for name in names}
    if total["target_steps"]:
        by_target = total["tokens"] - total["device_tokens"]
        total["acceptance_length"] = by_target / total["target_steps"]
    number = "1 answer" if len(answers) == 1 else f"{len(answers)} answers"
    parts = [f"{total['tokens']:.0f} tokens in {number} and {total['elapsed_ms'] / 1e3:.1f} s"]
    if total["tokens"]:
        parts.append(f"{total['elapsed_ms'] / total['tokens']:.1f} ms each")
    return f"[{'; '.join([*parts, *_steps(total), *_shares(total)])}]"


def ms_per_token(figures: Figures) -> float | None:
    """Of the tokens after the first; None if there are none."""
    count, first = _number(figures, "tokens"), _number(figures, "first_token_ms")
    return (_number(figures, "elapsed_ms") - first) / (count - 1) if count > 1 else None


def _pace(figures: Figures) -> list[str]:
    pace = ms_per_token(figures)
    first = f"the first after {_number(figures, 'first_token_ms'):.0f} ms"
    return [first] if pace is None else [f"{pace:.1f} ms per token, {first}"]


def _waited(figures: Figures) -> list[str]:
    waited = _number(figures, "waited_ms")
    return [f"{waited / 1e3:.1f} s in the daemon's queue before"] if waited >= 100 else []


def _steps(figures: Figures) -> list[str]:
    length = _number(figures, "acceptance_length")
    return [f"{length:.2f} tokens per target step"] if length else []


def _shares(figures: Figures) -> list[str]:
    """Of the text, and of what was sent for it."""
    count, proposed = _number(figures, "tokens"), _number(figures, "proposed")
    if not count or not proposed:
        return []
    accepted = _number(figures, "accepted")
    return [
        f"{100 * accepted / count:.0f} % of the text drafted here ({accepted:.0f} of {proposed:.0f} guesses)"
    ]


def _network(figures: Figures) -> list[str]:
    found = []
    if rtt := _number(figures, "rtt_p50_ms"):
        found.append(f"RTT {rtt:.1f} ms")
    if speedup := _number(figures, "estimated_speedup"):
        found.append(f"about {speedup:.1f} times the pace of streaming")
    if resumes := _number(figures, "resumes"):
        found.append(f"the link was taken up again {resumes:.0f} {'time' if resumes == 1 else 'times'}")
    return found


def _number(figures: Figures, name: str) -> float:
    found = figures.get(name)
    return float(found) if isinstance(found, int | float) else 0.0
