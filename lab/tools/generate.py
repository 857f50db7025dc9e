"""Writes what stands in two places from its source: `make generate`. A test compares.

- the tables of settings in docs/edge_config.md and docs/verifier_config.md, from the schemas;
- the tables of metrics in docs/verifier_config.md, from the metrics' definitions;
- the tables of clients in docs/clients.md, from their tests;
- the API's description in OpenAPI, from the code that reads its requests;
- the alerts of deploy/compose, from the cluster's PrometheusRule.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from cloud_verifier import settings as verifier
from cloud_verifier.telemetry.metrics import METRICS, OWN, VLLM, Metric
from common.config.setting import Config, Entry, Schema, as_toml
from edge_client import settings as edge
from lab.tools import openapi
from lab.tools.clients import table

ROOT = Path(__file__).resolve().parents[2]
EDGE_METRICS = ROOT / "edge_client" / "texts" / "device_metrics.py"
RULES = ROOT / "deploy" / "kubernetes" / "components" / "monitoring" / "alerts.yaml"
BEGIN, END = "<!-- begin: make generate -->\n", "<!-- end -->\n"
SHORT_FORMS = {
    "a whole number of ": "",
    "a number of ": "",
    "a list of texts, each ": "list, each ",
    "the path of a file": "file",
    "true or false": "boolean",
    "a text": "text",
}
"""Phrases of `Entry.allowed`, and what stands for them in a table."""


def files() -> dict[Path, str]:
    """Return the right text of every file that is generated in whole or in part."""
    docs = ROOT / "docs"
    clients, device, server = (docs / f"{name}.md" for name in ("clients", "edge_config", "verifier_config"))
    return {
        clients: _between_marks(clients, table(ROOT)),
        device: _between_marks(device, f"{reference(edge.SCHEMA)}\n¹ A fleet may set it.\n"),
        server: _between_marks(server, f"{reference(verifier.SCHEMA)}\n## Metrics\n{_metrics()}"),
        ROOT / "edge_client" / "api" / "openapi.json": openapi.text(docs / "api.md", ROOT / "pyproject.toml"),
        ROOT / "deploy" / "compose" / "prometheus" / "alerts.yaml": _alerts(),
    }


def known_metrics() -> frozenset[str]:
    """Name every series that a verifier or an edge exports."""
    from edge_client.texts.device_metrics import SECONDS, SUMS  # needs prometheus_client

    known = {metric.exposed for metric in METRICS} | {
        f"{name}_total" for name, _ in (*SUMS.values(), *SECONDS.values())
    }
    for metric in METRICS:
        if metric.kind == "histogram":
            known |= {f"{metric.exposed}_{part}" for part in ("bucket", "sum", "count")}
    text = EDGE_METRICS.read_text(encoding="utf-8")
    for kind, name in re.findall(r"(Counter|Gauge)MetricFamily\(\s*\"(forerun_edge_\w+)\"", text):
        known.add(f"{name}_total" if kind == "Counter" else name)
    return frozenset(known | {"process_cpu_seconds_total", "process_resident_memory_bytes"})


def reference(schema: Schema[Config]) -> str:
    """Return the settings as Markdown, one table a section."""
    return "\n".join(_section(schema, name) for name in schema.sections)


def _section(schema: Schema[Config], name: str) -> str:
    lines = [f"\n### [{name}]\n", "| key | default | may be | meaning |", "|---|---|---|---|"]
    return "\n".join(lines + [_row(schema, entry) for entry in schema.of(name)]) + "\n"


def _row(schema: Schema[Config], entry: Entry) -> str:
    """Return a line of the table. It names the option where that is not made of the setting's name."""
    default = entry.setting.unset if entry.default is None and entry.setting.unset else as_toml(entry.default)
    allowed = entry.allowed.replace("|", "\\|")
    for phrase, short in SHORT_FORMS.items():
        allowed = allowed.replace(phrase, short)
    meaning = entry.setting.meaning + (" ¹" if entry.name in schema.fleet_may_set else "")
    if not entry.flags:
        meaning += " (no option)"
    elif entry.flags[0] != entry.flag:
        meaning += f" (`{entry.flags[0]}`)"
    return f"| {' | '.join((f'`{entry.field}`', f'`{default}`', allowed, meaning))} |"


def _between_marks(page: Path, section: str) -> str:
    """Return the page's text with `section` between the marks. Raises `ValueError` unless each is there
    once."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after:
        raise ValueError(f"{page.name} must hold {BEGIN.strip()} and {END.strip()}, once each")
    return before + BEGIN + section + END + after


def _metrics() -> str:
    ours, vllms = _table(OWN), _table(VLLM)
    return f"\nUnder names of our own:\n\n{ours}\nUnder vLLM's:\n\n{vllms}\n"


def _table(metrics: tuple[Metric, ...]) -> str:
    """Return one line for each metric. `_total` marks counters, and histograms are named as such."""
    lines = ["| metric | meaning |", "|---|---|"]
    for each in metrics:
        label = f"{{{each.label}}}" if each.label else ""
        kind = " (histogram)" if each.kind == "histogram" else ""
        lines.append(f"| `{each.exposed}{label}`{kind} | {each.meaning} |")
    return "\n".join(lines) + "\n"


def _alerts() -> str:
    """Return the rules as Prometheus reads them, without the operator's wrapping."""
    text: str = yaml.safe_dump(yaml.safe_load(RULES.read_text("utf-8"))["spec"], sort_keys=False, width=4096)
    return "# Written by `make generate` from the cluster's PrometheusRule.\n" + text


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
