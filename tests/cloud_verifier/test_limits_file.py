"""Laws of the file of tenants' limits: what it says is what holds, and what makes no sense is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloud_verifier.core.quotas import Quota, Quotas
from cloud_verifier.limits_file import live_limits, read_limits
from common.errors import UserError

FILE = """
[default]
max_sessions = 8
positions_per_second = 100
burst = 400
sessions_per_second = 2
session_burst = 9

[tenant.acme]
max_sessions = 32
max_share = 0.5
sessions_per_second = 5

[tenant."two words"]
positions_per_second = 1000.5
max_tokens = 64
"""


def test_a_tenants_own_numbers_stand_before_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(FILE)
    default = Quota(
        max_sessions=8, positions_per_second=100, burst=400, sessions_per_second=2, session_burst=9
    )
    acme = replace(default, max_sessions=32, max_share=0.5, sessions_per_second=5, session_burst=None)
    two = replace(default, max_tokens=64, positions_per_second=1000.5, burst=None)
    found = read_limits(path)
    assert found == Quotas(default, {"acme": acme, "two words": two})
    assert (found.of("acme"), found.of("anybody"), found.of("")) == (acme, default, default)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[default", "is no TOML"),
        ("[tenants.a]", r"\[tenants\] is not known; use \[default\] and \[tenant.NAME\]"),
        ("[default]\nmax_session = 1", "max_session is not known; it has max_sessions, max_share"),
        ("[default]\nmax_sessions = 1.5", "max_sessions must be a whole number"),
        ("[default]\nmax_sessions = true", "max_sessions must be a whole number"),
        ('[tenant.a]\nmax_share = "1"', r"\[tenant.a\] max_share must be a number"),
        ("[tenant.a]\nmax_share = 2", r"\[tenant.a\] max_share is 2; it must be at most 1"),
        ("[tenant]\na = 1", r"\[tenant.a\] must be a table"),
        ("default = 1", r"\[default\] must be a table"),
        ("[tenant.a]\npositions_per_second = inf", "must be above 0"),
        (f"[tenant.a]\npositions_per_second = {'9' * 400}", "it must be above 0, and 2.53 at most"),
        (f"[tenant.a]\npositions_per_second = 1\nburst = {'9' * 400}", "2.53 at most"),
        (f"a = {'[' * 50_000}", "is no TOML"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_limits(path)


def test_a_mistake_changes_nothing_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[default]\nmax_sessions = 1")
    limits = live_limits(path)
    path.write_text("[default]\nmax_sessions = no")
    assert not limits.refresh()
    path.write_text("[default]\nmax_sessions = 222")
    assert limits.refresh()
    assert limits.value.default == Quota(max_sessions=222)
