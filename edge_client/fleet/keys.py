"""Ed25519 keys of a fleet: files, signatures, and their check (RFC 8032, by libsodium).

A file has one line, `forerun-fleet-private-key HEX` or `forerun-fleet-public-key HEX`: 32 bytes each. Devices
get public keys only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from common.errors import UserError
from edge_client.core.fleet.orders import Sign, Verify
from edge_client.fleet.settings import KEY_SIZE

PRIVATE, PUBLIC = "forerun-fleet-private-key", "forerun-fleet-public-key"


def verifier(keys: Sequence[bytes]) -> Verify:
    """Whether one of these public keys made a signature; none of no keys."""
    known = [VerifyKey(key) for key in keys]

    def verify(message: bytes, signature: bytes) -> bool:
        return any(_made_by(key, message, signature) for key in known)

    return verify


def signer(private_key: bytes) -> Sign:
    """Signs with the key."""
    key = SigningKey(private_key)
    return lambda message: key.sign(message).signature


def public_of(private_key: bytes) -> bytes:
    """The public key that belongs to it."""
    return bytes(SigningKey(private_key).verify_key)


def generate(path: Path) -> bytes:
    """Write a new pair to `path` (mode 0600) and `path`.pub; the public key. Raises `UserError`."""
    key = bytes(SigningKey.generate())
    _write(path, f"{PRIVATE} {key.hex()}\n", 0o600)
    public = public_of(key)
    _write(public_path(path), f"{PUBLIC} {public.hex()}\n", 0o644)
    return public


def public_path(path: Path) -> Path:
    """Where the public half lies."""
    return path.with_name(path.name + ".pub")


def read_private(path: Path) -> bytes:
    """Raises `UserError`, also for a file that others may read."""
    key = _read(path, PRIVATE)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise UserError(f"others may read the private key {path}; run `chmod 600 {path}`")
    return key


def read_public(text: str) -> bytes:
    """Of a public key's file, or of its 64 hexadecimal digits. Raises `UserError`."""
    return _bytes(text, text) if len(text) == 2 * KEY_SIZE and _is_hex(text) else _read(Path(text), PUBLIC)


def _made_by(key: VerifyKey, message: bytes, signature: bytes) -> bool:
    try:
        key.verify(message, signature)
    except (BadSignatureError, ValueError):  # ValueError: a signature of another length
        return False
    return True


def _read(path: Path, kind: str) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(1024).decode("ascii", "replace").split()
    except OSError as error:
        raise UserError(f"the key {path} cannot be read: {error.strerror}") from error
    if len(found) != 2 or found[0] != kind:
        raise UserError(f"{path} is no {kind} file; `forerun fleet keygen` writes them")
    return _bytes(found[1], str(path))


def _bytes(text: str, where: str) -> bytes:
    if not _is_hex(text) or len(text) != 2 * KEY_SIZE:
        raise UserError(f"{where} does not hold a key of {2 * KEY_SIZE} hexadecimal digits")
    return bytes.fromhex(text)


def _is_hex(text: str) -> bool:
    return bool(text) and all(one in "0123456789abcdef" for one in text)


def _write(path: Path, text: str, mode: int) -> None:
    """Never over a file that is there: a lost key is a fleet that obeys nobody."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UserError(f"{path} is there already; choose another name, or move it away") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(handle, "w") as file:
        file.write(text)
