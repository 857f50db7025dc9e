"""Makes certificates and tokens for trials: a short-lived CA and a key for tokens.

A cluster uses cert-manager and a fleet an identity provider; a trial needs neither.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import UserError

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

    def server(self, names: Sequence[str]) -> KeyPair:
        """Issue a verifier's certificate for these host names and addresses."""
        return self._issue([_host(name) for name in names], ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, uris: Sequence[str], end: datetime.datetime | None = None) -> KeyPair:
        """Issue an edge's certificate. `uris` identify the edge."""
        names = [x509.UniformResourceIdentifier(uri) for uri in uris]
        return self._issue(names, ExtendedKeyUsageOID.CLIENT_AUTH, end)

    def _issue(
        self,
        names: Sequence[x509.GeneralName],
        use: x509.ObjectIdentifier,
        end: datetime.datetime | None = None,
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
