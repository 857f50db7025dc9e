"""Every limit of a verifier can be set on the command line, and means what the documentation says."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from cloud_verifier.core.config import SchedulerConfig
from common.errors import UserError
from forerun.limits import LIMITS, SWITCHES, add_limits, config_from

DOCS = Path(__file__).parents[2] / "docs" / "serving.md"
NOT_OPTIONS = {
    "min_credit": "below it an edge could hardly draft",
    "rules": "a list, which --allow-rule makes",
    "live_node_budget": "bookkeeping; what is evaluated is bounded by rows",
}


def parsed(*arguments: str) -> SchedulerConfig:
    parser = argparse.ArgumentParser()
    add_limits(parser)
    return config_from(parser.parse_args(arguments))


def test_every_field_is_an_option_or_has_a_reason_not_to_be() -> None:
    assert {*LIMITS, *SWITCHES, *NOT_OPTIONS} == {field.name for field in fields(SchedulerConfig)}


def test_the_defaults_are_those_of_the_scheduler_but_guessing_is_on() -> None:
    assert parsed() == SchedulerConfig(recall=True)


def test_an_option_sets_its_field() -> None:
    config = parsed("--max-nodes", "4", "--promised-text", "9", "--no-prefix-cache", "--max-slowdown", "0.5")
    assert (config.max_nodes_per_session, config.promised_text) == (4, 9)
    assert (config.prefix_cache, config.max_slowdown) == (False, 0.5)


def test_a_limit_that_cannot_be_is_named() -> None:
    with pytest.raises(UserError, match="max_tenant_share is 2"):
        parsed("--max-tenant-share", "2")


def test_the_documentation_names_every_option() -> None:
    text = DOCS.read_text("utf-8")
    assert not [limit.flag for limit in (*LIMITS.values(), *SWITCHES.values()) if limit.flag not in text]
