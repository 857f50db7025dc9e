"""docs/operations.md tells of every metric what its definition says."""

from __future__ import annotations

import argparse
import re

import pytest

from cloud_verifier.telemetry.collector import METRICS
from forerun.cli import build_parser
from tools.deploy_rules.observing import known_metrics
from tools.metrics_table import PAGE, renewed

ENGINE = ("graph_steps_total", "eager_steps_total", "eager_reasons_total")
"""What torch's engine tells; tests/cloud_verifier/engine/test_engine.py has its names."""


def test_the_page_has_the_metrics_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text) == text, "docs/operations.md is stale: run `python -m tools.metrics_table`"
    for metric in METRICS:
        assert re.search(rf"^\| `{metric.exposed}[`{{]", text, re.MULTILINE), metric


@pytest.mark.parametrize("text", ["", "<!-- begin: python -m tools.metrics_table -->\n", "<!-- end -->\n"])
def test_a_page_without_its_marks_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        renewed(text)


def test_every_query_of_the_page_asks_for_metrics_that_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    known = known_metrics() | {f"forerun_engine_{name}" for name in ENGINE} | {"forerun_engine"}
    named = set(re.findall(r"(?:forerun|vllm)[_:][a-z_]+[a-z]", text))
    assert named <= known, named - known


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Its own, and those of the commands below it."""
    found = {name for action in parser._actions for name in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*map(options_of, action.choices.values()))
    return found


def test_every_option_that_the_page_names_is_one() -> None:
    """Of some command: most are of `verify`, some of `top` or of `certs dev`."""
    known = options_of(build_parser())
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    ours = "\n".join(line for line in lines if "python -m tests." not in line)
    ours = re.sub(r"`kubectl [^`]*`", "", ours)  # these and the tests have options of their own
    named = set(re.findall(r"--[a-z-]+[a-z]", ours))
    assert named <= known, named - known
