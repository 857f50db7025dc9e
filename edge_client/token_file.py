"""The bearer token of the local API: a random word in a file that only its owner reads."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from common.errors import UserError

NUM_BYTES = 32
TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
"""What RFC 6750 allows, and not short enough to guess."""


def ensure_token(path: Path) -> str:
    """The token of the file; a new one where there is no file. Raises as `read_token`, and if the folder
    cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise UserError(f"the token file {path} cannot be made: {error.strerror or error}") from error
    token = secrets.token_urlsafe(NUM_BYTES)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(f"{token}\n")
    return token


def read_token(path: Path) -> str:
    """Raises `UserError` if it cannot be read, is no token, or others may read it too."""
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(1024).strip()
    except OSError as error:
        raise UserError(f"the token file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the token file {path} holds no token; remove it and start the daemon") from error
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(f"others may read the token file {path}; run: chmod 600 {path}")
    if not TOKEN.fullmatch(token):
        raise UserError(f"the token file {path} holds no token; remove it and start the daemon")
    return token
