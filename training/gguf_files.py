"""Copies the metadata of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf


def copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changes: Mapping[str, Any]) -> None:
    """Give `writer`, which has the architecture, the reader's other fields. `changes` are other values by
    name; None: the field is left out."""
    for field in reader.fields.values():
        value = changes[field.name] if field.name in changes else field.contents()
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or value is None:
            continue
        kind = field.types[0]
        item_kind = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, kind, item_kind)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what `writer` has been given, and close its file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
