"""Finished tables as Parquet, for programs. pyarrow is of the extra `simulation`, loaded only here."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from simulator.documents import write_whole
from simulator.tables import FLAGS, TEXTS, Row

MANIFEST_KEY = "forerun.manifest"
"""Under which a file's metadata holds the sweep's manifest, as JSON."""


def write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Row], manifest: str) -> bool:
    """All of it or nothing; False where pyarrow is not installed. Raises `OSError`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    kinds = {**dict.fromkeys(TEXTS, pyarrow.string()), **dict.fromkeys(FLAGS, pyarrow.bool_())}
    schema = pyarrow.schema(
        [(column, kinds.get(column, pyarrow.float64())) for column in columns],
        metadata={MANIFEST_KEY: manifest},
    )
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), out)
    write_whole(path, out.getvalue())
    return True
