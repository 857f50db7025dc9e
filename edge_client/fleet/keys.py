"""Ed25519 keys of a fleet: files, signatures, and their verification (RFC 8032, by libsodium).

A file has one line, `forerun-fleet-private-key HEX` or `forerun-fleet-public-key HEX`: 32 bytes each.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from common.errors import UserError
from edge_client.fleet.document import Sign, Verify

PRIVATE, PUBLIC = "forerun-fleet-private-key", "forerun-fleet-public-key"

KEY = re.compile(r"[0-9a-f]{64}")


def verifier(key: bytes) -> Verify:
    """Return a function that verifies this public key's signatures; an empty key rejects all."""
    known = VerifyKey(key) if key else None

    def verify(message: bytes, signature: bytes) -> bool:
        try:
            return known is not None and known.verify(message, signature) == message
        except (BadSignatureError, ValueError):  # ValueError: a signature of another length
            return False

    return verify


def signer(private_key: bytes) -> Sign:
    key = SigningKey(private_key)
    return lambda message: key.sign(message).signature


def generate(path: Path) -> bytes:
    """Write a new pair to `path` (mode 0600) and `path`.pub. Return the public key. Raise `UserError` rather
    than replace a file: a lost key cannot be replaced remotely."""
    key = SigningKey.generate()
    public = bytes(key.verify_key)
    pair = ((path, PRIVATE, bytes(key), 0o600), (public_path(path), PUBLIC, public, 0o644))
    for file, kind, content, mode in pair:
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise UserError(f"{file} cannot be written: {error.strerror}; choose another name") from error
        with os.fdopen(handle, "w") as out:
            out.write(f"{kind} {content.hex()}\n")
    return public


def public_path(path: Path) -> Path:
    return path.with_name(path.name + ".pub")


def read_private(path: Path) -> bytes:
    """Return the private key. Raise `UserError`, also for a file that other users may read."""
    key = _read(path, PRIVATE)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise UserError(f"other users may read the private key {path}; run `chmod 600 {path}`")
    return key


def read_public(text: str) -> bytes:
    """Return the key of a public key's file, or of its 64 hex digits. Raise `UserError`."""
    return bytes.fromhex(text) if KEY.fullmatch(text) else _read(Path(text), PUBLIC)


def _read(path: Path, kind: str) -> bytes:
    try:
        with path.open("rb") as file:
            words = file.read(1024).decode("ascii", "replace").split()
    except OSError as error:
        raise UserError(f"the key {path} cannot be read: {error.strerror}") from error
    if len(words) != 2 or words[0] != kind or not KEY.fullmatch(words[1]):
        raise UserError(f"{path} is not a {kind} file; make one with `forerun fleet keys`")
    return bytes.fromhex(words[1])
