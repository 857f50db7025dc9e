"""Marks of programs that render and check what is deployed, and where they are."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "kube: needs kubectl, whose `kustomize` renders the overlays",
        "helm: needs Helm",
        "promtool: needs promtool, which comes with Prometheus",
    ):
        config.addinivalue_line("markers", line)
