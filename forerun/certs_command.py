"""`forerun certs`: certificates and tokens for trying out."""

from __future__ import annotations

import argparse
import datetime
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError

if TYPE_CHECKING:
    pass

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

MAX_DAYS = 90
"""Beyond that something is no trial any more, and wants a CA that is looked after."""

DEV = """\
Makes, in a new folder, all that a trial of TLS needs:

  ca.crt                    the CA; its key is forgotten at once
  tls.crt, tls.key          the verifier's certificate and key
  TENANT-DEVICE.crt, .key   one pair for each device: its URI says whose it is
  token-keys.json           the public key of tokens (--token-keys)
  token-signing.key         its private half, for `forerun certs token`

These are for trying out. A device whose key was stolen stays welcome until its certificate ends, or until a
verifier's --denied file names it.

  forerun certs dev --out certs --name localhost,127.0.0.1 --tenant acme --device d1,d2"""

TOKEN = """\
Signs a token with the key that `forerun certs dev` has made, and prints it. For trying out: in earnest an
identity provider makes them.

  forerun certs token --key certs/token-signing.key --tenant acme --audience forerun > token"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("certs", help="make certificates and tokens for trying out")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_dev(actions)
    _add_token(actions)


def _add_dev(actions: Any) -> None:
    parser = actions.add_parser(
        "dev",
        help="a CA, a verifier's certificate and devices' certificates",
        description=DEV,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--out", type=Path, required=True, metavar="DIR", help="folder for the files; none may be there")
    option("--name", required=True, metavar="HOST[,HOST]", help="under which the verifier is reached")
    option("--tenant", default="dev", metavar="T", help="whose the devices are (%(default)s)")
    option("--device", default="device", metavar="D[,D]", help="their names (%(default)s)")
    option("--domain", default="forerun.dev", metavar="DOMAIN", help="SPIFFE trust domain (%(default)s)")
    option("--days", type=float, default=7.0, metavar="N", help="until all of it ends (%(default)g)")
    parser.set_defaults(run=run_dev)


def _add_token(actions: Any) -> None:
    parser = actions.add_parser(
        "token",
        help="sign a token",
        description=TOKEN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--key", type=Path, required=True, metavar="FILE", help="token-signing.key of `forerun certs dev`")
    option("--tenant", required=True, metavar="T", help="whose the device is")
    option("--device", default="", metavar="D", help="told as the token's subject (none)")
    option("--audience", required=True, metavar="WHO", help="as the verifier's --token-audience")
    option("--issuer", default="", metavar="WHO", help="as the verifier's --token-issuer (none)")
    option("--lifetime", type=float, default=600.0, metavar="S", help="seconds until it ends (%(default)g)")
    parser.set_defaults(run=run_token)


def run_dev(options: argparse.Namespace) -> int:
    """Raises `UserError` before anything is written."""
    _need_libraries()
    from forerun.dev_certs import Authority, TokenKey, as_json, spiffe_id, write_new

    if not 0 < options.days <= MAX_DAYS:
        raise UserError(f"--days is {options.days:g}; it must be above 0, and {MAX_DAYS} at most")
    devices = _words("--device", options.device)
    for name, value in (("--tenant", options.tenant), *(("--device", each) for each in devices)):
        _check_label(name, value)
    if not re.fullmatch(r"[a-z0-9._-]{1,255}", options.domain):
        raise UserError(f"--domain {options.domain!r} is no trust domain: a-z, 0-9, '.', '_' and '-'")
    authority = Authority(datetime.timedelta(days=options.days))
    out, tokens = options.out, TokenKey.new()
    files = {
        out / "ca.crt": (authority.pem, False),
        **_pair(out / "tls", authority.server(_words("--name", options.name))),
        out / "token-keys.json": (as_json(tokens.jwks()), False),
        out / "token-signing.key": (tokens.pem, True),
    }
    for device in devices:
        uri = spiffe_id(options.domain, options.tenant, device)
        files.update(_pair(out / f"{options.tenant}-{device}", authority.client([uri])))
    write_new(files)
    _tell(files, options.days)
    return 0


def run_token(options: argparse.Namespace) -> int:
    """Prints nothing but the token."""
    _need_libraries()
    from common.rpc.live_files import read_bytes
    from forerun.dev_certs import TokenKey

    _check_label("--tenant", options.tenant)
    if not 0 < options.lifetime < float("inf"):
        raise UserError(f"--lifetime is {options.lifetime:g}; it must be above 0")
    now = int(time.time())
    claims: dict[str, Any] = {"aud": options.audience, "iat": now, "exp": now + int(options.lifetime)}
    claims["tenant"] = options.tenant
    claims.update({key: value for key, value in (("iss", options.issuer), ("sub", options.device)) if value})
    print(TokenKey(read_bytes(options.key, "the key of tokens")).sign(claims))
    return 0


def _pair(stem: Path, pair: Any) -> dict[Path, tuple[bytes, bool]]:
    return {
        stem.with_name(f"{stem.name}.crt"): (pair.cert, False),
        stem.with_name(f"{stem.name}.key"): (pair.key, True),
    }


def _tell(files: dict[Path, tuple[bytes, bool]], days: float) -> None:
    for path, (_, secret) in files.items():
        print(f"{path}{'  (secret)' if secret else ''}")
    print(f"For trying out: all of it ends in {days:g} days, and the CA's key is forgotten.")


def _words(name: str, given: str) -> Sequence[str]:
    """Of a list with commas. Raises `UserError` for an empty one, and for a word that comes twice."""
    found = [each.strip() for each in given.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise UserError(f"{name} is {given!r}; it must be names with commas between, each once")
    return found


def _check_label(name: str, value: str) -> None:
    if not LABEL.fullmatch(value):
        raise UserError(f"{name} is {value!r}; it must be up to 64 letters, digits, '.', '_' and '-'")


def _need_libraries() -> None:
    try:
        import cryptography
        import jwt  # noqa: F401 - only to see whether it is there
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[verifier]'") from error
    del cryptography
