"""Writes the table of metrics in docs/operations.md from their definitions: `python -m tools.metrics_table`.

A test compares the two, so that no metric is without its line, and no line without its metric.
"""

from __future__ import annotations

from pathlib import Path

from cloud_verifier.telemetry import own_names, trust_names, vllm_names
from cloud_verifier.telemetry.metric import Metric
from tools.marks import put_between

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"
BEGIN = "<!-- begin: python -m tools.metrics_table -->\n"


def table(metrics: tuple[Metric, ...]) -> str:
    """As Markdown, a line a metric."""
    lines = ["| metric | type | meaning |", "|---|---|---|"]
    for each in metrics:
        label = f"{{{each.label}}}" if each.label else ""
        lines.append(f"| `{each.exposed}{label}` | {each.kind} | {each.meaning} |")
    return "\n".join(lines) + "\n"


def section() -> str:
    """All of what stands between the marks."""
    ours, vllms = table((*own_names.METRICS, *trust_names.METRICS)), table(vllm_names.METRICS)
    return f"\nUnder names of our own:\n\n{ours}\nUnder vLLM's:\n\n{vllms}\n"


def renewed(text: str) -> str:
    """The page with the table as it should be. Raises `ValueError` if the marks are not there, once each."""
    return put_between(BEGIN, section(), text, PAGE)


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
