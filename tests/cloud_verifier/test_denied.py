"""Laws of the file of denied callers: each line denies what it names and no other, and no line is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_verifier.denied import live_denied, read_denied
from cloud_verifier.identity import Who
from common.errors import Code, UserError

DEVICE = "spiffe://example.org/tenant/acme/device/d1"
FILE = f"""\
# who left
tenant globex
uri {DEVICE}  # stolen on Monday

serial 3F:A0:00:11
serial serial=0BEEF
token id#7
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "denied"
    found.write_text(FILE)
    return found


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
    assert "lets this certificate, token or tenant in no more; ask there for a new one" in str(error)
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
    ("text", "words"),
    [
        ("tenant acme", "ends within a line"),
        ("tenant acme globex\n", "line 1, is not understood; it must be one of tenant, uri, serial, token"),
        ("\n\nserials 1\n", "line 3, is not understood"),
        ("serial xyz\n", "line 1, names no serial number"),
        ("serial\n", "line 1, is not understood"),
    ],
)
def test_a_line_that_could_be_the_one_that_counts_is_not_skipped(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "denied"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_denied(path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_denied(tmp_path / "none")
    (tmp_path / "noise").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="is no text"):
        read_denied(tmp_path / "noise")


def test_a_mistake_changes_nothing_while_it_runs(path: Path) -> None:
    denied = live_denied(path)
    path.write_text("tenant globe")
    assert not denied.refresh()
    assert denied.value.why(Who("globex")) is not None
    path.write_text("")
    assert denied.refresh()
    assert denied.value.why(Who("globex")) is None
