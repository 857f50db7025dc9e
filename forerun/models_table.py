"""The table of docs/models.md: which families are served, from what the probe found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError

if TYPE_CHECKING:
    from cloud_verifier.engine.conformance import Finding

BEGIN = "<!-- begin: written by `forerun models --markdown` -->"
END = "<!-- end -->"

SERVED_HEAD = (
    "family", "model type", "what it tries", "attention", "float32", "bfloat16", "float16",
)  # fmt: skip
REFUSED_HEAD = ("family", "model type", "what is in the way", "the verifier says")
NUM_FIXED = 4
"""Columns that are the same on every machine, from the left; the others are measured."""


def served_row(finding: Finding) -> tuple[str, ...]:
    """The cells of a family that is served."""
    family = finding.family
    measured = [_measured(finding, precision) for precision in SERVED_HEAD[NUM_FIXED:]]
    return family.name, f"`{family.model_type}`", family.trait, finding.attention, *measured


def refused_row(finding: Finding) -> tuple[str, ...]:
    """The cells of a family that is not served."""
    family = finding.family
    return family.name, f"`{family.model_type}`", family.trait, finding.reason or ""


def tables(findings: Sequence[Finding]) -> str:
    """Both tables in Markdown, between the marks that `replace` looks for."""
    served = [served_row(finding) for finding in findings if finding.served]
    refused = [refused_row(finding) for finding in findings if not finding.served]
    parts = [
        f"Served, {len(served)} families:", _markdown(SERVED_HEAD, served),
        f"Refused, {len(refused)} families:", _markdown(REFUSED_HEAD, refused),
    ]  # fmt: skip
    return "\n\n".join((BEGIN, *parts, END))


def replace(text: str, table: str) -> str:
    """`text` with `table` in the place of what stands between the marks. Raises `UserError` without marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"the file has no lines '{BEGIN}' and '{END}' between which the tables could stand")
    return before + table + after


def write_tables(path: Path, findings: Sequence[Finding]) -> None:
    """Put the tables into the file at `path`, between its marks. Raises `UserError` if it cannot."""
    try:
        text = path.read_text(encoding="utf-8")
        path.write_text(replace(text, tables(findings)), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def rows_of(text: str) -> list[tuple[str, ...]]:
    """The cells of every table row in Markdown, heads and rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in rows if row not in (SERVED_HEAD, REFUSED_HEAD)]


def as_json(finding: Finding) -> dict[str, Any]:
    """One family, for programs."""
    return {
        "family": finding.family.name,
        "model_type": finding.family.model_type,
        "trait": finding.family.trait,
        "served": finding.served,
        "reason": finding.reason,
        "attention": finding.attention,
        "precisions": {
            precision: {
                "rows": report.num_rows,
                "worst": report.worst,
                "tolerance": report.tolerance,
                "attention_error": report.attention,
                "exactness": report.exactness,
            }
            for precision, report in finding.reports.items()
        },
    }


def _measured(finding: Finding, precision: str) -> str:
    """float32: the worst difference of a row; half precision: the error beside that of plain transformers."""
    report = finding.reports.get(precision)
    if report is None:
        return ""
    return f"{report.worst:.0e}" if report.exactness is None else f"{report.exactness:.2f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in lines)
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )
