"""Which families of models are served, found by running the conformance probe on a tiny model of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloud_verifier.engine.attention_check import LayerShape
from cloud_verifier.engine.families import Family
from cloud_verifier.engine.probe import ProbeReport, probe
from cloud_verifier.engine.probe_script import REAL, SHRUNK
from cloud_verifier.engine.random_target import random_target
from cloud_verifier.engine.refusals import Refusal

PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Finding:
    """What the probe says of one family."""

    family: Family
    reports: dict[str, ProbeReport]  # by precision; empty if it is refused
    reason: str | None = None  # why it is refused

    @property
    def served(self) -> bool:
        return self.reason is None

    @property
    def attention(self) -> str:
        """The kinds of attention that its layers ask for, in words: "full; window 4,096, softcap"."""
        report = next(iter(self.reports.values()), None)
        return "" if report is None else "; ".join(dict.fromkeys(_words(report.shapes)))

    @property
    def worst(self) -> float | None:
        """The largest difference of a row from transformers alone, relative to the spread of its logits."""
        return max((report.worst for report in self.reports.values()), default=None)


def examine(family: Family, precisions: Sequence[str] = PRECISIONS, *, real_windows: bool = True) -> Finding:
    """Probe a tiny model of `family` in each precision: float32 with its windows as they are (unless
    `real_windows` is off), half precision with windows shrunk as at a load.

    What is no refusal is a defect of ours and raised as it comes.
    """
    reports: dict[str, ProbeReport] = {}
    for precision in precisions:
        lengths = REAL if real_windows and precision == "float32" else SHRUNK
        try:
            model = random_target(family.name, family.model_type, family.settings, dtype=precision)
            reports[precision] = probe(model, lengths=lengths)
        except Refusal as refusal:
            return Finding(family, {}, refusal.reason)
    return Finding(family, reports)


def _words(shapes: Iterable[LayerShape]) -> list[str]:
    words = []
    for shape in shapes:
        terms = shape.terms
        reach = "full" if terms.window is None else f"window {terms.window:,}"
        extras = [name for name in ("softcap", "sinks") if getattr(terms, name) is not None]
        words.append(", ".join((reach, *extras)))
    return sorted(words)
