"""When this edge's own certificate ends. Python's `ssl` tells that of the other side's only, and a library
for certificates is larger than all that an edge needs beside its draft model: so the few fields before the
date are stepped over here (RFC 5280 4.1)."""

from __future__ import annotations

import datetime
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

from common.rpc.live_files import read_bytes

FIRST = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
VERSION = 0xA0
FORMATS = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""Of UTCTime and GeneralizedTime."""


def end_of_file(path: Path) -> datetime.datetime | None:
    """Of the first certificate in a PEM file; None if there is none that can be read. Raises `UserError`
    for a file that cannot be."""
    found = FIRST.search(read_bytes(path, "the TLS client certificate"))
    if found is None:
        return None
    try:
        return _end(ssl.PEM_cert_to_DER_cert(found.group().decode("ascii")))
    except (ValueError, IndexError, StopIteration):
        return None


def _end(der: bytes) -> datetime.datetime:
    """Raises `ValueError`, `IndexError` or `StopIteration` for what is no certificate."""
    (_, whole) = next(_items(der))
    (_, signed) = next(_items(whole))
    fields = [content for tag, content in _items(signed) if tag != VERSION]
    _, _, _, validity, *_ = fields  # after serial number, algorithm and issuer
    _, (tag, text) = _items(validity)
    if tag not in FORMATS:
        raise ValueError(f"a date has the tag {tag}")
    return datetime.datetime.strptime(text.decode("ascii"), FORMATS[tag]).replace(tzinfo=datetime.UTC)


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each value, one after the other (X.690 8.1)."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        yield tag, data[at : at + size]
        at += size
