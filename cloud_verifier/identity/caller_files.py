"""Read the operator's files of tenants' quotas and denied callers, and reread them when they change."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud_verifier.core.quotas import Quota, Quotas
from cloud_verifier.identity.identity import MARKS, SERIAL, Who
from common.config.live_files import LiveFiles, read_bytes
from common.config.setting import entries_of, from_data
from common.errors import Code, UserError

# Quotas -----------------------------------------------------------------------------------------------------

LIMITS = "the file of tenants' limits"
DEFAULT, TENANTS = "default", "tenant"

KNOWN = {entry.field: entry for entry in entries_of(Quota)}

BURSTS = {"burst": "positions_per_second", "session_burst": "sessions_per_second"}
"""The rate to which each burst belongs."""


def live_limits(path: Path) -> LiveFiles[Quotas]:
    return LiveFiles(LIMITS, (path,), lambda: read_limits(path))


def read_limits(path: Path) -> Quotas:
    """Read the quotas. Raises `UserError` that names the fault and its place."""
    try:
        document = tomllib.loads(read_bytes(path, LIMITS).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML or of UTF-8; of brackets within brackets
        raise UserError(f"{LIMITS} {path} is no TOML: {error}") from error
    unknown = sorted(set(document) - {DEFAULT, TENANTS})
    if unknown:
        raise UserError(f"{LIMITS} {path}: [{unknown[0]}] is not known; use [{DEFAULT}] and [{TENANTS}.NAME]")
    default = _table(document.get(DEFAULT, {}), f"{path}: [{DEFAULT}]")
    tenants = _table(document.get(TENANTS, {}), f"{path}: [{TENANTS}]")
    return Quotas(
        _quota(default, f"{path}: [{DEFAULT}]"),
        {name: _of_tenant(default, own, f"{path}: [{TENANTS}.{name}]") for name, own in tenants.items()},
    )


def _of_tenant(default: dict[str, Any], own: Any, where: str) -> Quota:
    """Return a tenant's quota. Missing keys come from the default, except the burst of a replaced rate."""
    table = _table(own, where)
    base = {key: value for key, value in default.items() if BURSTS.get(key) not in table}
    return _quota({**base, **table}, where)


def _quota(table: dict[str, Any], where: str) -> Quota:
    if unknown := [key for key in table if key not in KNOWN]:
        raise UserError(f"{LIMITS} {where} {unknown[0]} is not known; it has {', '.join(KNOWN)}")
    try:
        values: dict[str, Any] = {key: from_data(KNOWN[key], value) for key, value in table.items()}
        return Quota(**values)
    except UserError as error:
        raise UserError(f"{LIMITS} {where} {error}") from error


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{LIMITS} {where} must be a table")
    return value


# Denied callers ---------------------------------------------------------------------------------------------
#
# The operator can deny callers whose certificate or token is still valid. Short lives are the first remedy
# against theft; the deny list covers the time until they end. Each line denies one caller:
#
#     tenant acme                                      all calls of a tenant
#     uri spiffe://example.org/tenant/acme/device/d1   all certificates of a device
#     serial 3f:a0:11:...                              one certificate, as `openssl x509 -serial` prints it
#     token 0c5e1f                                     one token, by its claim `jti`
#
# Empty lines are ignored, and so is the text after a # that begins a word.

DENIED = "the file of denied callers"

HEX = re.compile(r"(?:0x)?([0-9a-f]+(?::[0-9a-f]+)*)", re.IGNORECASE)

COMMENT = re.compile(r"(?:^|\s)#.*$")


@dataclass(frozen=True, slots=True)
class Denied:
    """Holds the marks that the file names, each with its kind."""

    marks: frozenset[tuple[str, str]] = frozenset()

    def why(self, who: Who) -> UserError | None:
        """Return the error for a denied caller, without the matching line; None for other callers."""
        if self.marks.isdisjoint(who.marks()):
            return None
        words = "the operator of this verifier lets this certificate, token or tenant in no more"
        return UserError(f"{words}; ask there for a new one", Code.PERMISSION_DENIED)


def live_denied(path: Path) -> LiveFiles[Denied]:
    return LiveFiles(DENIED, (path,), lambda: read_denied(path))


def read_denied(path: Path) -> Denied:
    """Read the deny list. Raises `UserError` that names a wrong line; no line is skipped."""
    try:
        text = read_bytes(path, DENIED).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{DENIED} {path} is no text: {error}") from None
    if text and not text.endswith("\n"):
        raise UserError(f"{DENIED} {path} ends within a line; end it, or wait until it is written")
    lines = ((number, COMMENT.sub("", line).split()) for number, line in enumerate(text.splitlines(), 1))
    return Denied(
        frozenset(_mark(words, f"{DENIED} {path}, line {number},") for number, words in lines if words)
    )


def _mark(words: list[str], where: str) -> tuple[str, str]:
    if len(words) != 2 or words[0] not in MARKS:
        raise UserError(f"{where} is not understood; it must be one of {', '.join(MARKS)}, and a word")
    kind, value = words
    if kind != SERIAL:
        return kind, value
    digits = HEX.fullmatch(value.removeprefix("serial="))
    if digits is None:
        raise UserError(f"{where} names no serial number; write it in hex, with or without colons")
    return kind, f"{int(digits[1].replace(':', ''), 16):x}"  # the one form that `Who` has
