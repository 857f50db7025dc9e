"""Options by which `forerun fleet` finds the broker: flags, then FORERUN_FLEET_* of the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UserError
from forerun.options import split_address

if TYPE_CHECKING:
    from edge_client.fleet.settings import BrokerSettings

PREFIX = "FORERUN_FLEET_"

ENVIRONMENT = {
    "broker": "HOST:PORT of the MQTT broker",
    "tenant": "the fleet's tenant",
    "ca": "PEM file of who signed the broker's certificate; the system's CAs if it is not given",
    "certificate": "PEM file of this client's certificate",
    "certificate_key": "PEM file of that certificate's key",
    "username": "user name, where there is no certificate",
    "password_file": "file that holds its password",
    "key": "the fleet's private key, which `forerun fleet keygen` wrote",
}
"""Options that the environment can give as well, and what they mean."""


def add_broker(parser: argparse.ArgumentParser) -> None:
    """Where the broker is and who we are there."""
    group = parser.add_argument_group(
        f"the broker (or {PREFIX}BROKER, {PREFIX}TENANT, ... in the environment)"
    )
    for name in ("broker", "tenant", "ca", "certificate", "certificate_key", "username", "password_file"):
        flag = "--" + name.replace("_", "-")
        metavar = {"broker": "HOST:PORT", "tenant": "NAME", "username": "NAME"}.get(name, "FILE")
        group.add_argument(flag, metavar=metavar, help=ENVIRONMENT[name])
    group.add_argument("--no-tls", action="store_true", help=f"in the clear; also {PREFIX}TLS=0")
    group.add_argument("--timeout", type=float, default=10.0, metavar="S", help="for an answer (%(default)s)")


def add_key(parser: argparse.ArgumentParser) -> None:
    """Who signs."""
    parser.add_argument("--key", metavar="FILE", help=f"{ENVIRONMENT['key']}; also {PREFIX}KEY")


def value(options: argparse.Namespace, name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Of the flag, or of the environment; empty if neither gives it."""
    return getattr(options, name, None) or environment.get(PREFIX + name.upper(), "")


def needed(options: argparse.Namespace, name: str) -> str:
    """Raises `UserError` if neither the flag nor the environment gives it."""
    found = value(options, name)
    if not found:
        flag = "--" + name.replace("_", "-")
        raise UserError(f"give {flag}, or set {PREFIX}{name.upper()}: {ENVIRONMENT[name]}")
    return found


def broker_from(options: argparse.Namespace) -> BrokerSettings:
    """Raises `UserError`."""
    from edge_client.fleet.settings import BrokerSettings

    host, port = split_address("--broker", needed(options, "broker"))
    return BrokerSettings(
        host.strip("[]"),
        port,
        tls=not (options.no_tls or os.environ.get(PREFIX + "TLS") == "0"),
        ca=_path(options, "ca"),
        certificate=_path(options, "certificate"),
        key=_path(options, "certificate_key"),
        username=value(options, "username"),
        password=_password(value(options, "password_file")),
        timeout=options.timeout,
    )


def _path(options: argparse.Namespace, name: str) -> Path | None:
    found = value(options, name)
    return Path(found) if found else None


def _password(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the password file {path} cannot be read: {error}") from error
