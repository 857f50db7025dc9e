"""Tenants' quotas as a file has them."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from cloud_verifier.core.quotas import Quota, Quotas
from common.errors import UserError
from common.rpc.live_files import LiveFiles, read_bytes

LIMITS = "the file of tenants' limits"
DEFAULT, TENANTS = "default", "tenant"

KINDS: dict[str, tuple[type, ...]] = {
    "max_sessions": (int,),
    "max_share": (int, float),
    "max_tokens": (int,),
    "positions_per_second": (int, float),
    "burst": (int,),
    "sessions_per_second": (int, float),
    "session_burst": (int,),
}

BURSTS = {"burst": "positions_per_second", "session_burst": "sessions_per_second"}
"""Which rate each belongs to."""


def live_limits(path: Path) -> LiveFiles[Quotas]:
    """As the file is now. Raises `UserError`."""
    return LiveFiles(LIMITS, (path,), lambda: read_limits(path))


def read_limits(path: Path) -> Quotas:
    """Raises `UserError` that says what is wrong and where."""
    try:
        found = tomllib.loads(read_bytes(path, LIMITS).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML or of UTF-8; of brackets within brackets
        raise UserError(f"{LIMITS} {path} is no TOML: {error}") from error
    unknown = sorted(set(found) - {DEFAULT, TENANTS})
    if unknown:
        raise UserError(f"{LIMITS} {path}: [{unknown[0]}] is not known; use [{DEFAULT}] and [{TENANTS}.NAME]")
    default = _table(found.get(DEFAULT, {}), f"{path}: [{DEFAULT}]")
    tenants = _table(found.get(TENANTS, {}), f"{path}: [{TENANTS}]")
    return Quotas(
        _quota(default, f"{path}: [{DEFAULT}]"),
        {name: _of_tenant(default, own, f"{path}: [{TENANTS}.{name}]") for name, own in tenants.items()},
    )


def _of_tenant(default: dict[str, Any], own: Any, where: str) -> Quota:
    """What a tenant's table leaves out is the default's. A rate of its own does without the default's burst,
    which was meant for another one."""
    table = _table(own, where)
    base = {key: value for key, value in default.items() if BURSTS.get(key) not in table}
    return _quota({**base, **table}, where)


def _quota(table: dict[str, Any], where: str) -> Quota:
    for key, value in table.items():
        if key not in KINDS:
            known = ", ".join(each.name for each in fields(Quota))
            raise UserError(f"{LIMITS} {where} {key} is not known; it has {known}")
        if isinstance(value, bool) or not isinstance(value, KINDS[key]):
            kind = "a whole number" if KINDS[key] == (int,) else "a number"
            raise UserError(f"{LIMITS} {where} {key} must be {kind}")
    try:
        return Quota(**table)
    except UserError as error:
        raise UserError(f"{LIMITS} {where} {error}") from error


def _table(found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise UserError(f"{LIMITS} {where} must be a table")
    return found
