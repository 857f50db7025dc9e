"""Writes the alerts of deploy/compose.yaml from those of the cluster: `python -m tools.compose_files`.

Prometheus itself reads rules without the operator's wrapping. A test compares the two.
"""

from __future__ import annotations

from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
SOURCE = DEPLOY / "kubernetes" / "components" / "monitoring" / "alerts.yaml"
ALERTS = DEPLOY / "compose" / "prometheus" / "alerts.yaml"
HEADING = "# Written by `python -m tools.compose_files` from the cluster's PrometheusRule.\n"


def plain_rules() -> str:
    """The rules as Prometheus reads them."""
    found = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    text: str = yaml.safe_dump(found["spec"], sort_keys=False, width=4096)
    return HEADING + text


def main() -> int:
    """Rewrite the file."""
    ALERTS.write_text(plain_rules(), encoding="utf-8")
    print(ALERTS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
