"""Growth policies beside each other at real sizes: real edges, link, wire and scheduler; an oracle as target.

A cell is a step time, a temperature and a draft. In each cell every policy gets an edge of its own, started
anew, which writes all texts in a row. The edges take turns text by text, so that all of them see the same
machine, and only one of them works at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from benchmarks import reports
from benchmarks.real_sizes.pair import Pair, Text
from common.figures import as_json, figures, pace, rounded
from forerun.rig import START_TIMEOUT, Child, Rig, RigSettings

ORACLE = "benchmarks.real_sizes.oracle"
ADAPTIVE = "adaptive"

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """Where policies are compared."""

    step_ms: float
    temperature: float
    draft: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        return cls(row["step_ms"], row["temperature"], row["draft"])

    def __str__(self) -> str:
        return f"target step {self.step_ms:g} ms, temperature {self.temperature:g}, draft {self.draft}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What all cells have in common."""

    rtt_ms: float
    prompt_row_ms: float
    policies: tuple[str, ...]
    num_texts: int
    num_tokens: int
    recall: bool


class OracleRig(Rig):
    """A verifier that knows its texts, and an edge for each name in `edges`."""

    def __init__(self, pair: Pair, cell: Cell, settings: Settings, edges: Sequence[str]) -> None:
        draft = str(pair.draft(cell.draft))
        super().__init__(RigSettings(str(pair.target), draft, settings.rtt_ms, recall=settings.recall))
        self._oracle = ["--texts", str(pair.texts), "--step", f"{cell.step_ms:g}"]
        self._oracle += ["--prompt-row", f"{settings.prompt_row_ms:g}"]
        self._names = list(edges)
        self._edges: dict[str, Child] = {}

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._edge is not None, "started just now"
        self._edges[self._names[0]] = self._edge
        try:
            for name in self._names[1:]:
                await self.start_edge(name)
        except BaseException:
            await self._stack.aclose()
            raise
        self._keep_off_the_drafter()
        return self

    async def start_edge(self, name: str) -> Child:
        """One more, once it is ready."""
        child = self._edges[name] = await self._start("edge", *self._edge_arguments(str(self.link.address)))
        await child.read(START_TIMEOUT)
        return child

    def use(self, name: str) -> None:
        """The edge that writes the next texts."""
        self._edge = self._edges[name]

    async def _start(self, name: str, *arguments: str) -> Child:
        module = ORACLE if name == "verifier" else "forerun"
        child = await Child.start(name, *arguments, module=module)
        self._stack.push_async_callback(child.stop)
        return child

    def _verifier_arguments(self) -> list[str]:
        command, *words = super()._verifier_arguments()
        assert command == "verify", "whose options the oracle takes"
        return [*words, *self._oracle, "--no-prefix-cache"]  # every policy's prompt is read

    def _keep_off_the_drafter(self) -> None:
        """Keep this process, which is the link, on the verifier's core while the rig runs."""
        if not hasattr(os, "sched_getaffinity") or len(cores := os.sched_getaffinity(0)) < 2:
            return
        self._stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, sorted(cores)[1:])


async def measure(
    pair: Pair,
    cell: Cell,
    settings: Settings,
    prompts: Sequence[str],
    texts: Sequence[Text],
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """One cell: what every policy did on every text."""
    runs: dict[str, list[Run]] = {policy: [] for policy in settings.policies}
    async with OracleRig(pair, cell, settings, settings.policies) as rig:
        for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True), 1):
            for policy in settings.policies:
                progress(f"{cell}: text {number} of {len(texts)}, {policy}")
                rig.use(policy)
                sampling = asdict(text.sampling)
                run = await rig.complete(prompt, policy, sampling, recall=settings.recall)
                runs[policy].append(run)
    return {
        "step_ms": cell.step_ms,
        "temperature": cell.temperature,
        "draft": cell.draft,
        "repeated": rounded(sum(text.repeated for text in texts) / len(texts)),
        "policies": {policy: _row(runs[policy], texts) for policy in settings.policies},
    }


def _row(runs: Sequence[Run], texts: Sequence[Text]) -> dict[str, Any]:
    """A policy's figures: of all texts, of the first after the edge's start, and of the later ones."""
    return {
        **_figures(runs, texts),
        "first_text": _figures(runs[:1], texts[:1]),
        "later_texts": _figures(runs[1:], texts[1:]) if runs[1:] else None,
        "ms_per_token_by_text": [rounded(pace([run])) for run in runs],
        "modes": [[f"{each['mode']}: {each['why']}" for each in run["modes"]] for run in runs],
    }


def _figures(runs: Sequence[Run], texts: Sequence[Text]) -> dict[str, Any]:
    """The shared keys, and what was accepted and what a draft step took."""
    total = {key: sum(run["stats"][key] for run in runs) for key in ("accepted", "draft_time", "draft_steps")}
    steps = total["draft_steps"]
    return {
        **as_json(figures(runs, [text.tokens for text in texts])),
        "accepted_per_token": rounded(total["accepted"] / sum(len(run["tokens"]) for run in runs)),
        "draft_step_ms": rounded(1e3 * total["draft_time"] / steps) if steps else None,
    }


# The report -------------------------------------------------------------------------------------------------


class Report(reports.Report[Cell]):
    """What was measured, a row for each cell."""

    key_of = staticmethod(Cell.of)


def table(row: Mapping[str, Any]) -> str:
    """One cell for a terminal."""
    return "\n".join(_lines(row))


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"{Cell.of(row)}; {row['repeated']:.1%} of the tokens repeat"
    yield "policy     ms/token  first  later  ttft ms  proposed  accepted  draft step ms  identical"
    for name, found in row["policies"].items():
        later = found["later_texts"] or {"ms_per_token": None}
        step = found["draft_step_ms"]
        yield (
            f"{name:9} {found['ms_per_token']:9.1f} {found['first_text']['ms_per_token']:6.1f} "
            f"{_number(later['ms_per_token']):>6} {found['ttft_ms']:8.0f} "
            f"{found['draft_tokens_per_token']:9.2f} {found['accepted_per_token']:9.2f} {_number(step):>14}"
            f"{'yes' if found['identical'] else 'NO':>11}"
        )
    ratios = [(label, ratio(row, part)) for label, part in (("all", ""), ("first", "first_text"))]
    told = ", ".join(f"{value:.3f} ({label})" for label, value in ratios if value is not None)
    if told:
        yield f"adaptive over the best of the others, texts: {told}"


def ratio(row: Mapping[str, Any], part: str = "") -> float | None:
    """ms per token of adaptive over the best other policy's; None where there is nothing to compare."""
    paces = {
        name: (found[part] if part else found)["ms_per_token"] for name, found in row["policies"].items()
    }
    mine = paces.pop(ADAPTIVE, None)
    return None if mine is None or not paces else mine / min(paces.values())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
