"""Writes indexed texts to a file that only its owner may read, and reads them.

The file is an archive of numpy (`.npz`), whose parts have checksums. Nothing of it leaves the device but
token ids that are proposed.
"""

from __future__ import annotations

import io
import json
import zipfile
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError
from common.suffix_index import SuffixIndex
from edge_client.process.paths import make_private, write_private

SUFFIX = ".index"
VERSION = 3


class DamagedIndex(UserError):
    """The file is no index, or not as it was written."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """Holds an index, the `fingerprint` of its token table, and what was written `about` it."""

    index: SuffixIndex
    fingerprint: bytes
    about: Mapping[str, Any]


def write_index(
    path: Path, fingerprint: bytes, text: bytes, order: bytes, about: Mapping[str, Any] | None = None
) -> None:
    """Write a text and the order of its places, all or nothing. `about` is JSON. Raises `UserError`."""
    head = json.dumps({"version": VERSION, "fingerprint": fingerprint.hex(), **(about or {})})
    archive = io.BytesIO()
    np.savez(
        archive, head=np.array(head), text=np.frombuffer(text, np.int32), order=np.frombuffer(order, np.int32)
    )
    make_private(path.parent)
    try:
        write_private(path, archive.getvalue())
    except OSError as error:
        raise UserError(f"the index {path} cannot be written: {error.strerror or error}") from error


def read_index(path: Path) -> IndexFile:
    """Read an index. Raises `UserError` for a file that cannot be read, `DamagedIndex` for a damaged one."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:  # noqa: TID251 - no pickles
            head = json.loads(str(parts["head"]))
            if head.pop("version") != VERSION:
                raise ValueError("it has another format")
            index = SuffixIndex(parts["text"].tobytes(), array("i", parts["order"].tobytes()))
        return IndexFile(index, bytes.fromhex(head.pop("fingerprint")), head)
    except OSError as error:
        raise UserError(f"the index {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise DamagedIndex(f"the index {path} is damaged ({error}); make it anew") from error
