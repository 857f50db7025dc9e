"""Writes the Grafana dashboards of deploy/ from the questions that they answer: `python -m tools.dashboards`.

A test compares the two, and asks of every query whether its metrics exist.
"""

from __future__ import annotations

from pathlib import Path

from tools.dashboards.edges import FLEET
from tools.dashboards.verifiers import VERIFIER

FOLDER = Path(__file__).resolve().parents[2] / "deploy/kubernetes/components/monitoring/dashboards"

DASHBOARDS = {"verifier.json": VERIFIER, "fleet.json": FLEET}
"""By the file's name."""
