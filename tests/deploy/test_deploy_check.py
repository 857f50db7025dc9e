"""`python -m tools.deploy_check`, as far as it goes without its tools: what it hands them, how it judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.deploy_check import is_clean, main, ruled, with_pods
from tools.deploy_rules import RULES
from tools.helm_objects import checked_in, overlays

CLEAN: dict[str, Any] = {
    "kubernetes-validate": {"errors": []},
    "checkov": {"gpu": {"failed": 0}, "keda": {"failed": 0}},
    "yamllint": [],
    "rules": {"complaints": []},
}


def test_pods_of_a_group_are_shown_as_pods() -> None:
    found = [each for each in with_pods(checked_in("leaderworkerset")) if each["kind"] == "Pod"]
    assert [each["metadata"]["name"] for each in found] == [
        "leaderworkerset-forerun-group-leader",
        "leaderworkerset-forerun-group-worker",
    ]
    assert all(each["metadata"]["namespace"] == "forerun" and each["spec"]["containers"] for each in found)


def test_what_has_no_group_stays_as_it_is() -> None:
    assert with_pods(checked_in("gpu")) == checked_in("gpu")


def test_rules_are_counted_and_hold() -> None:
    found = ruled({overlay: checked_in(overlay) for overlay in overlays()})
    assert found == {"rules": len(RULES), "assertions": len(RULES) * len(overlays()), "complaints": []}
    assert found["assertions"] >= 150


def test_nobody_complaining_is_clean() -> None:
    assert is_clean(CLEAN)


@pytest.mark.parametrize(
    "change",
    [
        {"kubernetes-validate": {"errors": ["1.29.0 Job/x: no"]}},
        {"checkov": {"gpu": {"failed": 0}, "keda": {"failed": 1}}},
        {"yamllint": ["x.yaml:1:1"]},
        {"rules": {"complaints": ["gpu: x"]}},
    ],
)
def test_one_complaint_is_enough(change: dict[str, Any]) -> None:
    assert not is_clean({**CLEAN, **change})


def test_tools_that_are_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tools", str(tmp_path)]) == 2
    assert "--install" in capsys.readouterr().err
