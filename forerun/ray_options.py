"""The options of `forerun verify` as arguments of an application of Ray Serve."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NoReturn

from common.errors import UserError
from forerun.verify import add_options

PLAIN_TEXT = "the port of Ray's proxy is plain text; end TLS in front of it"

RAYS_OWN = {
    "listen": "Ray's proxy listens, at the port of grpc_options",
    "tls_cert": PLAIN_TEXT,
    "tls_key": PLAIN_TEXT,
    "tls_client_ca": PLAIN_TEXT,
    "tenant_certificate": "no certificate gets through Ray's proxy; token_keys does, or tenant_header",
    "tensor_parallel": "its processes are not Ray's; give every replica one device",
    "json": "nobody reads a replica's standard output",
}
"""Options that make no sense there, and why."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"in the application's args: {message}")


def options_from(args: Mapping[str, Any]) -> argparse.Namespace:
    """The options, from their names, in which `_` may stand for `-`, and values; a list for one that may be
    given several times. Raises `UserError`."""
    words = list[str]()
    for key, value in args.items():
        name = key.replace("-", "_")
        if name in RAYS_OWN:
            raise UserError(f"in the application's args: {key} cannot be given, because {RAYS_OWN[name]}")
        each = value if isinstance(value, list) else [value]
        words += [_word(name.replace("_", "-"), one) for one in each]
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_options(parser)
    return parser.parse_args(words, argparse.Namespace(log_level=None, listen="127.0.0.1:0"))


def _word(name: str, value: object) -> str:
    """One argument. `serve run` gives every value as a text."""
    match str(value).lower():
        case "true":
            return f"--{name}"
        case "false":
            return f"--no-{name}"
    return f"--{name}={value}"
