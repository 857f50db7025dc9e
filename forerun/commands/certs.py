"""Makes certificates and tokens for trials, `forerun certs`: a short-lived CA and a key for tokens.

A cluster uses cert-manager and a fleet an identity provider; a trial needs neither.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.config.command_line import add_command
from common.config.live_files import read_bytes
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


WORDS = "Forerun, for trying out"
"""The CA's name, which explains its certificate in a trust store."""

BACKDATED = datetime.timedelta(minutes=5)
"""How far validity starts in the past, for clocks that are behind."""

KEY_ID = "dev"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Holds a certificate and its private key, both PEM."""

    cert: bytes
    key: bytes


class Authority:
    """Signs certificates with a CA key that stays in memory, so no more can be made later."""

    def __init__(self, lifetime: datetime.timedelta) -> None:
        self._begin = datetime.datetime.now(datetime.UTC) - BACKDATED
        self._end = self._begin + BACKDATED + lifetime
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, WORDS)])
        builder = (
            self._builder(self._name, self._key.public_key(), self._end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
        )
        self._cert = builder.sign(self._key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        """Return the CA's certificate."""
        return self._cert.public_bytes(serialization.Encoding.PEM)

    def server(self, names: Sequence[str], end: datetime.datetime | None = None) -> KeyPair:
        """Issue a verifier's certificate for these host names and addresses."""
        return self._issue([_host(name) for name in names], ExtendedKeyUsageOID.SERVER_AUTH, end)

    def client(self, uris: Sequence[str], end: datetime.datetime | None = None) -> KeyPair:
        """Issue an edge's certificate. `uris` identify the edge."""
        names = [x509.UniformResourceIdentifier(uri) for uri in uris]
        return self._issue(names, ExtendedKeyUsageOID.CLIENT_AUTH, end)

    def _issue(
        self, names: Sequence[x509.GeneralName], use: x509.ObjectIdentifier, end: datetime.datetime | None
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, WORDS)])
        builder = (
            self._builder(subject, key.public_key(), end or self._end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        cert = builder.sign(self._key, hashes.SHA256())
        return KeyPair(cert.public_bytes(serialization.Encoding.PEM), _pem_of(key))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime.datetime
    ) -> x509.CertificateBuilder:
        """Return a builder with the extensions that all certificates share."""
        own = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(self._begin, end - BACKDATED))
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
        )


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Signs tokens with an Ed25519 key, PEM."""

    pem: bytes

    @classmethod
    def new(cls) -> TokenKey:
        return cls(_pem_of(ed25519.Ed25519PrivateKey.generate()))

    def jwks(self) -> dict[str, Any]:
        """Return the public half, as `--token-keys` reads it."""
        encoding = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        raw = self._private().public_key().public_bytes(*encoding)
        x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        return {
            "keys": [{"kty": "OKP", "crv": "Ed25519", "x": x, "kid": KEY_ID, "use": "sig", "alg": "EdDSA"}]
        }

    def sign(self, claims: dict[str, Any]) -> str:
        """Return a signed token with these claims."""
        return jwt.encode(claims, self._private(), algorithm="EdDSA", headers={"kid": KEY_ID})

    def _private(self) -> ed25519.Ed25519PrivateKey:
        try:
            key = serialization.load_pem_private_key(self.pem, None)
        except (ValueError, TypeError) as error:
            raise UserError(
                "the key is no private key in PEM; `forerun certs dev` makes one for tokens"
            ) from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise UserError("the key is not of the kind Ed25519; `forerun certs dev` makes one for tokens")
        return key


def spiffe_id(domain: str, tenant: str, device: str) -> str:
    """Return the URI of a client certificate."""
    return f"spiffe://{domain}/tenant/{tenant}/device/{device}"


def write_new(files: dict[Path, tuple[bytes, bool]]) -> None:
    """Write contents by path. Only the owner may read a file that is marked secret. Raise `UserError` before
    writing if a file exists."""
    there = [path for path in files if path.exists() or path.is_symlink()]
    if there:
        raise UserError(f"{there[0]} is there already, and nothing is overwritten; choose another folder")
    for path, (content, secret) in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(path, flags, 0o600 if secret else 0o644), "wb") as out:
                out.write(content)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror or error}") from error


def as_json(value: dict[str, Any]) -> bytes:
    """Format a value as an indented JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise UserError(f"--name {name!r} is no host name; use ASCII letters") from error


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Return the key usage of a CA, or of a certificate that it signs."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem_of(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# The command ----------------------------------------------------------------------------------------------


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
    print(f"For trying out: all of it ends in {options.days:g} days, and the CA's key is not kept.")
    return 0


def _token(options: TokenOptions) -> int:
    """Print nothing but the token."""
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
