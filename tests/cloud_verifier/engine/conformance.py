"""Which families of models are served: the tables of lab/docs/families.md, made by the conformance probe.

python -m tests.cloud_verifier.engine.conformance
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as hf_logging

from cloud_verifier.engine.attention.attention_check import LayerShape
from cloud_verifier.engine.conformance_probe import ProbeReport, probe
from cloud_verifier.engine.model.refusals import Refusal, refuse_config
from cloud_verifier.engine.model.transformers_adapter import TargetModel, torch_dtype
from tests.cloud_verifier.engine.families import REFUSED_FAMILIES, SERVED_FAMILIES, Family

PRECISIONS = ("float32", "bfloat16", "float16")
DOCUMENT = Path(__file__).parents[3] / "lab" / "docs" / "families.md"


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


def examine(family: Family, precisions: Sequence[str] = PRECISIONS) -> Finding:
    """Probe a tiny model of `family` in each precision. What is no refusal is a defect of ours and raised."""
    reports: dict[str, ProbeReport] = {}
    for precision in precisions:
        try:
            model = random_target(family.name, family.model_type, family.settings, dtype=precision)
            reports[precision] = probe(model)
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


SPREAD = 0.2
"""Of biases around 0 and norms around 1. transformers makes them 0 and 1, and a lost one would not show."""


def random_target(name: str, model_type: str, settings: Mapping[str, Any], *, dtype: str) -> TargetModel:
    """A model of transformers' `model_type`, the same one each time; `dtype` is a key of `DTYPES`.

    Raises `Refusal` if it cannot be served.
    """
    with _silent(), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **settings)
        refuse_config(name, config)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch_dtype(dtype), attn_implementation="eager"
        )
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += SPREAD * torch.randn_like(parameter)
        return TargetModel(name, model)


@contextmanager
def _silent() -> Iterator[None]:
    """Without transformers' remarks on settings that nobody chose."""
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)


BEGIN, END = "<!-- begin: written by tests/cloud_verifier/engine/conformance.py -->", "<!-- end -->"

SERVED_HEAD = (
    "family", "model type", "what it tries", "attention", "float32", "bfloat16", "float16",
)  # fmt: skip
REFUSED_HEAD = ("family", "model type", "what is in the way", "the verifier says")
NUM_FIXED = 4
"""Columns that are the same on every machine, from the left; the others are measured."""


def row_of(finding: Finding) -> tuple[str, ...]:
    """Return the cells of a family."""
    family = finding.family
    head = family.name, f"`{family.model_type}`", family.trait
    if finding.reason is not None:
        return *head, finding.reason
    return *head, finding.attention, *(_measured(finding, each) for each in SERVED_HEAD[NUM_FIXED:])


def tables(findings: Sequence[Finding]) -> str:
    """Format both tables in Markdown, between the marks."""
    served = [row_of(finding) for finding in findings if finding.served]
    refused = [row_of(finding) for finding in findings if not finding.served]
    parts = [
        f"Served, {len(served)} families:", _markdown(SERVED_HEAD, served),
        f"Refused, {len(refused)} families:", _markdown(REFUSED_HEAD, refused),
    ]  # fmt: skip
    return "\n\n".join((BEGIN, *parts, END))


def rows_of(text: str) -> list[tuple[str, ...]]:
    """Return the cells of every table row between the marks, without heads and rules."""
    lines = [line for line in text.partition(BEGIN)[2].partition(END)[0].splitlines() if line[:2] == "| "]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in rows if row not in (SERVED_HEAD, REFUSED_HEAD)]


def _measured(finding: Finding, precision: str) -> str:
    """float32: the worst difference of a row; half precision: the error beside that of plain transformers."""
    report = finding.reports.get(precision)
    if report is None:
        return ""
    return f"{report.worst:.0e}" if report.exactness is None else f"{report.exactness:.2f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join((lines[0], "|---" * len(head) + "|", *lines[1:]))


def main() -> None:
    """Probe every family in each precision, which takes some minutes, and rewrite the page."""
    findings = [examine(family) for family in (*SERVED_FAMILIES, *REFUSED_FAMILIES)]
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(before + tables(findings) + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
