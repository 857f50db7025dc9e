"""Options of `forerun verify` that say whose a call is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError

if TYPE_CHECKING:
    from cloud_verifier.identity import Identity
    from cloud_verifier.tokens import TokenIdentity
    from common.rpc.live_files import LiveFiles

MAX_LIFETIME = 900.0  # seconds; `cloud_verifier.tokens` has the reason


def add_identity(parser: argparse.ArgumentParser) -> None:
    """One way at most: where two could disagree, an attacker chooses."""
    option = parser.add_argument_group("identity (docs/operations.md)").add_argument
    option(
        "--tenant-header",
        default="",
        metavar="KEY",
        help="metadata entry that says whose a call is; only behind a proxy that sets it for every client",
    )
    option(
        "--tenant-certificate",
        nargs="?",
        const="",
        metavar="DOMAIN",
        help="the client certificate says it, by its URI spiffe://DOMAIN/tenant/NAME; any domain that "
        "--tls-client-ca signs for, unless one is given",
    )
    option(
        "--token-keys",
        type=Path,
        metavar="FILE",
        help="JWKS of the public keys (EdDSA, ES256, RS256) whose tokens say it; read anew when it changes",
    )
    option(
        "--token-audience", default="", metavar="WHO", help="that tokens must be for; --token-keys needs it"
    )
    option(
        "--token-issuer",
        default="",
        metavar="WHO",
        help="that must have made them (anybody whose key is there)",
    )
    option("--token-claim", default="tenant", metavar="CLAIM", help="that names the tenant (%(default)s)")
    option(
        "--token-lifetime",
        type=float,
        default=MAX_LIFETIME,
        metavar="S",
        help="seconds that a token may still live at most (%(default)g)",
    )
    option(
        "--tenant-limits",
        type=Path,
        metavar="FILE",
        help="TOML with each tenant's quota; read anew when it changes (none)",
    )
    option(
        "--denied",
        type=Path,
        metavar="FILE",
        help="certificates, tokens and tenants let in no more, a line each; read anew when it changes",
    )


def check_identity(options: argparse.Namespace) -> None:
    """Raises `UserError` for what does not go together or cannot be used, before seconds are spent."""
    ways = {
        "--tenant-header": bool(options.tenant_header),
        "--tenant-certificate": options.tenant_certificate is not None,
        "--token-keys": options.token_keys is not None,
    }
    given = [name for name, is_given in ways.items() if is_given]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} both say whose a call is; give one of them")
    if options.tenant_certificate is not None and options.tls_client_ca is None:
        raise UserError(
            "--tenant-certificate needs --tls-client-ca: a certificate that nobody checks says nothing"
        )
    if options.token_audience and options.token_keys is None:
        raise UserError("--token-audience needs --token-keys: without keys no token can be checked")
    if options.denied is not None and not given:
        raise UserError(f"--denied needs one of {', '.join(ways)}: nobody can be denied who is not known")
    identity(options)


def identity(options: argparse.Namespace) -> tuple[Identity, Mapping[str, LiveFiles[Any]]]:
    """What the options ask for, and the files that it is read from. Raises `UserError`."""
    from cloud_verifier.denied import live_denied
    from cloud_verifier.identity import EVERYBODY, CertificateIdentity, HeaderIdentity
    from cloud_verifier.limits_file import live_limits
    from cloud_verifier.telemetry.trust import DENIED, TENANT_LIMITS, TOKEN_KEYS
    from common.rpc.live_files import LiveFiles

    files = dict[str, LiveFiles[Any]]()
    if options.tenant_limits is not None:
        files[TENANT_LIMITS] = live_limits(options.tenant_limits)
    if options.denied is not None:
        files[DENIED] = live_denied(options.denied)
    if options.tenant_certificate is not None:
        return CertificateIdentity(options.tenant_certificate), files
    if options.token_keys is not None:
        tokens = _tokens(options)
        return tokens, {**files, TOKEN_KEYS: tokens.keys}
    return (HeaderIdentity(options.tenant_header) if options.tenant_header else EVERYBODY), files


def _tokens(options: argparse.Namespace) -> TokenIdentity:
    try:
        from cloud_verifier.tokens import TokenIdentity, TokenRules, live_keys
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[verifier]'") from error
    rules = TokenRules(
        options.token_audience, options.token_issuer, options.token_claim, options.token_lifetime
    )
    return TokenIdentity(live_keys(options.token_keys), rules)
