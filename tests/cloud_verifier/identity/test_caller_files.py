"""Laws of the operator's files: what they say holds, what makes no sense is named, and no line is skipped."""

from dataclasses import replace
from pathlib import Path

import pytest

from cloud_verifier.core.quotas import Quota, Quotas
from cloud_verifier.identity.caller_files import live_limits, read_denied, read_limits
from cloud_verifier.identity.identity import Who
from common.errors import Code, UserError
from tests import wording


def written(folder: Path, text: str) -> Path:
    path = folder / "file"
    path.write_text(text, encoding="latin-1")
    return path


LIMITS = """
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
    path = written(tmp_path, LIMITS)
    default = Quota(
        max_sessions=8, positions_per_second=100, burst=400, sessions_per_second=2, session_burst=9
    )
    acme = replace(default, max_sessions=32, max_share=0.5, sessions_per_second=5, session_burst=None)
    two = replace(default, max_tokens=64, positions_per_second=1000.5, burst=None)
    found = read_limits(path)
    assert found == Quotas(default, {"acme": acme, "two words": two})
    assert (found.of("acme"), found.of("anybody"), found.of("")) == (acme, default, default)


@pytest.mark.parametrize(
    "text",
    [
        "[default",
        "[tenants.a]",
        "[default]\nmax_session = 1",
        "[default]\nmax_sessions = 1.5",
        "[default]\nmax_sessions = true",
        '[tenant.a]\nmax_share = "1"',
        "[tenant.a]\nmax_share = 2",
        "[tenant]\na = 1",
        "default = 1",
        "[tenant.a]\npositions_per_second = inf",
        f"[tenant.a]\npositions_per_second = {'9' * 400}",
        f"[tenant.a]\npositions_per_second = 1\nburst = {'9' * 400}",
        f"a = {'[' * 50_000}",
    ],
)
def test_what_makes_no_sense_is_named(text: str, tmp_path: Path) -> None:
    with wording.raises(UserError):
        read_limits(written(tmp_path, text))


def test_a_mistake_in_limits_changes_nothing_while_it_runs(tmp_path: Path) -> None:
    path = written(tmp_path, "[default]\nmax_sessions = 1")
    limits = live_limits(path)
    path.write_text("[default]\nmax_sessions = no")
    assert not limits.refresh()
    path.write_text("[default]\nmax_sessions = 222")
    assert limits.refresh()
    assert limits.value.default == Quota(max_sessions=222)


DEVICE = "spiffe://example.org/tenant/acme/device/d1"
DENIED = f"""\
# who left
tenant globex
uri {DEVICE}  # stolen on Monday

serial 3F:A0:00:11
serial serial=0BEEF
token id#7
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path, DENIED)


@pytest.mark.parametrize(
    "who",
    [
        Who("globex", "spiffe://x/tenant/globex"),
        Who("acme", DEVICE),
        Who("acme", serial="3fa00011"),
        Who("acme", serial="beef"),
        Who("acme", token="id#7"),
    ],
)
def test_who_is_named_is_denied(who: Who, path: Path) -> None:
    error = read_denied(path).why(who)
    assert error is not None
    assert error.code is Code.PERMISSION_DENIED
    wording.keep(str(error))
    assert not any(value in str(error) for _, value in who.marks() if value != "acme")


@pytest.mark.parametrize(
    "who",
    [
        Who(),
        Who("acme"),
        Who("Globex"),
        Who("acme", f"{DEVICE}0"),
        Who("3fa00011", serial="globex", token="0"),
    ],
)
def test_nobody_else_is(who: Who, path: Path) -> None:
    assert read_denied(path).why(who) is None


@pytest.mark.parametrize(
    "text", ["tenant acme", "tenant acme globex\n", "\n\nserials 1\n", "serial xyz\n", "serial\n", "\xff\n"]
)
def test_a_line_that_could_be_the_one_that_counts_is_not_skipped(text: str, tmp_path: Path) -> None:
    with wording.raises(UserError):
        read_denied(written(tmp_path, text))
