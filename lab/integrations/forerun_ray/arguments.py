"""Build a verifier's configuration from the arguments of a Ray application. This module needs no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloud_verifier.settings import SCHEMA, VerifierConfig
from common.config.merge import load_config, meant
from common.errors import UserError

PLAIN_TEXT = "the port of Ray's proxy is plain text; terminate TLS in front of it"

RAYS_OWN = {
    "listen": "Ray's proxy listens, on the port of grpc_options",
    "tls_cert": PLAIN_TEXT,
    "tls_key": PLAIN_TEXT,
    "tls_client_ca": PLAIN_TEXT,
    "tenant_certificate": "Ray's proxy forwards no certificate; use token_keys or tenant_header",
    "tensor_parallel": "Ray does not start its processes; give every replica one device",
    "check": "a replica serves",
    "json": "a replica's standard output is not read",
}
"""Keys that have no use under Ray Serve, each with the reason."""


def from_ray(args: Mapping[str, Any]) -> VerifierConfig:
    """Build the configuration from an application's arguments, in which `-` may stand for `_`."""
    try:
        given = {_name(key.replace("-", "_")): value for key, value in args.items()}
        config = load_config(SCHEMA, given, {}, []).config
        config.target.path  # noqa: B018 - raises
    except UserError as error:
        raise UserError(f"in the application's args: {error}") from error
    return replace(config, server=replace(config.server, listen="127.0.0.1:0"))


def _name(key: str) -> str:
    if key in RAYS_OWN:
        raise UserError(f"{key} cannot be given, because {RAYS_OWN[key]}")
    known = {entry.field: entry.name for entry in SCHEMA.entries}
    if key not in known:
        raise UserError(f"a verifier has no setting {key!r}{meant(key, known)}")
    return known[key]
