"""Callers whom the operator lets in no more, although their certificate or token is good: a list in a file.

Short lives are the first answer to what was stolen; this is for the time until they end. A line denies one:

    tenant acme                                      all calls of a tenant
    uri spiffe://example.org/tenant/acme/device/d1   all certificates of a device
    serial 3f:a0:11:...                              one certificate, as `openssl x509 -serial` prints it
    token 0c5e1f                                     one token, by its claim `jti`

Empty lines and what follows a # that begins a word are for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cloud_verifier.identity import MARKS, SERIAL, Who
from common.errors import Code, UserError
from common.rpc.live_files import LiveFiles, read_bytes

DENIED = "the file of denied callers"

HEX = re.compile(r"(?:0x)?([0-9a-f]+(?::[0-9a-f]+)*)", re.IGNORECASE)

COMMENT = re.compile(r"(?:^|\s)#.*$")


@dataclass(frozen=True, slots=True)
class Denied:
    """What the file says: kinds of marks, and the mark."""

    marks: frozenset[tuple[str, str]] = frozenset()

    def why(self, who: Who) -> UserError | None:
        """What is told to somebody who is denied; None to others. It does not say by which line."""
        if self.marks.isdisjoint(who.marks()):
            return None
        words = "the operator of this verifier lets this certificate, token or tenant in no more"
        return UserError(f"{words}; ask there for a new one", Code.PERMISSION_DENIED)


NOBODY = Denied()


def live_denied(path: Path) -> LiveFiles[Denied]:
    """As the file is now. Raises `UserError`."""
    return LiveFiles(DENIED, (path,), lambda: read_denied(path))


def read_denied(path: Path) -> Denied:
    """Raises `UserError` that names the line. One that could not be understood might be the one that counts,
    so then the whole file is not taken."""
    try:
        text = read_bytes(path, DENIED).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{DENIED} {path} is no text: {error}") from None
    if text and not text.endswith("\n"):
        raise UserError(f"{DENIED} {path} ends within a line; end it, or wait until it is written")
    lines = enumerate(text.splitlines(), 1)
    found = (
        _mark(COMMENT.sub("", line).split(), f"{DENIED} {path}, line {number},") for number, line in lines
    )
    return Denied(frozenset(mark for mark in found if mark is not None))


def _mark(words: list[str], where: str) -> tuple[str, str] | None:
    if not words:
        return None
    if len(words) != 2 or words[0] not in MARKS:
        raise UserError(f"{where} is not understood; it must be one of {', '.join(MARKS)}, and a word")
    kind, value = words
    return kind, _serial(value, where) if kind == SERIAL else value


def _serial(value: str, where: str) -> str:
    """In the one form that `Who` has, however a tool has printed it."""
    found = HEX.fullmatch(value.removeprefix("serial="))
    if found is None:
        raise UserError(f"{where} names no serial number; write it in hex, with or without colons")
    return f"{int(found[1].replace(':', ''), 16):x}"
