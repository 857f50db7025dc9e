"""Implements `forerun certs`: makes certificates and tokens for trials."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

MAX_DAYS = 90
"""Most days of a trial certificate; longer use needs a maintained CA."""

DEV = """\
Make all files that a trial of TLS needs, in a new folder:

  ca.crt                    the CA; its key is not kept
  tls.crt, tls.key          the verifier's certificate and key
  TENANT-DEVICE.crt, .key   one pair for each device; its URI names tenant and device
  token-keys.json           the public key of tokens (--token-keys)
  token-signing.key         its private half, for `forerun certs token`

These are for trials only. A stolen device key stays valid until its certificate ends, or until a verifier's
--denied file names it.

  forerun certs dev --out certs --name localhost,127.0.0.1 --tenant acme --device d1,d2"""

TOKEN = """\
Sign a token with the key that `forerun certs dev` made, and print it. This is for trials; in
production an identity provider makes tokens.

  forerun certs token --key certs/token-signing.key --tenant acme --audience forerun > token"""  # noqa: S105


@dataclass(frozen=True, kw_only=True)
class DevOptions:
    """Declares which certificates are made. Raises `UserError`."""

    out: Path = setting(REQUIRED, "folder for the files; must not contain any of them", "DIR")
    name: str = setting(REQUIRED, "host names and addresses of the verifier", "HOST[,HOST]")
    tenant: str = setting("dev", "tenant of the devices", "T")
    device: str = setting("device", "names of the devices", "D[,D]")
    domain: str = setting("forerun.dev", "SPIFFE trust domain", "DOMAIN")
    days: float = setting(7.0, "days until certificates expire", "N", above=0, high=MAX_DAYS)

    def __post_init__(self) -> None:
        for name, value in (("--tenant", self.tenant), *(("--device", each) for each in self.devices)):
            _check_label(name, value)
        if not re.fullmatch(r"[a-z0-9._-]{1,255}", self.domain):
            raise UserError(f"--domain {self.domain!r} is no trust domain: a-z, 0-9, '.', '_' and '-'")

    @property
    def devices(self) -> Sequence[str]:
        return _words("--device", self.device)


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """Declares the claims of a token. Raises `UserError`."""

    key: Path = setting(REQUIRED, "token-signing.key of `forerun certs dev`", "FILE")
    tenant: str = setting(REQUIRED, "tenant of the device", "T")
    device: str = setting("", "the token's subject (default: none)", "D")
    audience: str = setting(REQUIRED, "audience, as the verifier's --token-audience", "WHO")
    issuer: str = setting("", "issuer, as the verifier's --token-issuer (default: none)", "WHO")
    lifetime: float = setting(600.0, "seconds until the token expires", "S", above=0)

    def __post_init__(self) -> None:
        _check_label("--tenant", self.tenant)


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "certs", "make certificates and tokens for trials")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    words = "make a CA and the certificates of a verifier and devices"
    add_command(actions, "dev", words, _dev, DevOptions, DEV)
    add_command(actions, "token", "sign a token", _token, TokenOptions, TOKEN)


def _dev(options: DevOptions) -> int:
    """Write the files. Raise `UserError` before the first one."""
    from forerun.commands.dev_certs import Authority, TokenKey, as_json, spiffe_id, write_new

    authority = Authority(datetime.timedelta(days=options.days))
    out, tokens = options.out, TokenKey.new()
    files = {
        out / "ca.crt": (authority.pem, False),
        **_pair(out / "tls", authority.server(_words("--name", options.name))),
        out / "token-keys.json": (as_json(tokens.jwks()), False),
        out / "token-signing.key": (tokens.pem, True),
    }
    for device in options.devices:
        uri = spiffe_id(options.domain, options.tenant, device)
        files.update(_pair(out / f"{options.tenant}-{device}", authority.client([uri])))
    write_new(files)
    for path, (_, secret) in files.items():
        print(f"{path}{'  (secret)' if secret else ''}")
    first = out / f"{options.tenant}-{options.devices[0]}"
    print(
        f"forerun serve MODEL --tls-cert {out}/tls.crt --tls-key {out}/tls.key --tls-client-ca {out}/ca.crt"
    )
    print(
        f"forerun edge --draft FILE.gguf --verifier HOST:PORT --verifier-tls-ca {out}/ca.crt "
        f"--verifier-tls-cert {first}.crt --verifier-tls-key {first}.key"
    )
    print(f"For trying out: all of it ends in {options.days:g} days, and the CA's key is not kept.")
    return 0


def _token(options: TokenOptions) -> int:
    """Print nothing but the token."""
    from common.config.live_files import read_bytes
    from forerun.commands.dev_certs import TokenKey

    now = int(time.time())
    claims = {
        "aud": options.audience,
        "iat": now,
        "exp": now + int(options.lifetime),
        "tenant": options.tenant,
    }
    claims |= {key: value for key, value in (("iss", options.issuer), ("sub", options.device)) if value}
    print(TokenKey(read_bytes(options.key, "the key of tokens")).sign(claims))
    return 0


def _pair(stem: Path, pair: Any) -> dict[Path, tuple[bytes, bool]]:
    return {
        stem.with_name(f"{stem.name}.crt"): (pair.cert, False),
        stem.with_name(f"{stem.name}.key"): (pair.key, True),
    }


def _words(name: str, given: str) -> Sequence[str]:
    """Split a list at its commas. Raise `UserError` for an empty or a repeated word."""
    parts = [each.strip() for each in given.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise UserError(f"{name} is {given!r}; it must be different names, separated by commas")
    return parts


def _check_label(name: str, value: str) -> None:
    if not LABEL.fullmatch(value):
        raise UserError(f"{name} is {value!r}; it must be up to 64 letters, digits, '.', '_' and '-'")
