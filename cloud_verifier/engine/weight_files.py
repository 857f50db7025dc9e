"""A target model's weights, checked before transformers reads them: safetensors, whole, and nothing else.

Weights in other formats are pickles, which run code when they are read, so they are never a way out. Of each
safetensors file the header is read with a bound on every number: eight bytes of length, then JSON that names
each tensor's type, shape and bytes. They must fill the file exactly, once: no holes, no overlaps, no end
behind the file's end. What is wrong is told with the file's name, before seconds are spent on loading.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError

ENDING = ".safetensors"
INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
MAX_HEADER = 100_000_000
"""Bytes; the format's own limit."""

MAX_INDEX = 1 << 26
"""Bytes of the index; the largest models name some hundred thousand tensors."""

MAX_FILES = 4096
MAX_DIMS = 16  # no model has more than five
METADATA = "__metadata__"

BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32,
    "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64,
}  # fmt: skip
"""Bits of a value, by the format's names."""


def check_weights(source: str, folder: Path) -> None:
    """Raise `UserError` unless the folder's weights are whole safetensors files."""
    try:
        _check(folder)
    except OSError as error:
        raise UserError(
            f"cannot load the target model '{source}': {error.filename} cannot be read: {error.strerror}"
        ) from error
    except _Damage as error:
        raise UserError(
            f"cannot load the target model '{source}': {error}. Fetch or convert the model again; only "
            "safetensors are read, as other formats can run code"
        ) from error


def check_file(path: Path) -> frozenset[str]:
    """The names of its tensors. Raises `UserError` if it is damaged."""
    try:
        return _tensors_of(path)
    except _Damage as error:
        raise UserError(str(error)) from error


class _Damage(Exception):
    """What is wrong, as a clause that names the file."""


def _check(folder: Path) -> None:
    files = sorted(folder.glob(f"*{ENDING}"))
    if not files:
        raise _Damage(f"{folder} holds no *{ENDING}")
    if len(files) > MAX_FILES:
        raise _Damage(f"{folder} holds {len(files):,} files of weights, and {MAX_FILES:,} is the most")
    index = folder / INDEX
    if index.is_file():
        _check_index(index, {path.name: path for path in files})
    else:
        for path in files:
            _tensors_of(path)


def _check_index(index: Path, files: Mapping[str, Path]) -> None:
    """Each file that it names is there and has what it says; others are not loaded, and not looked at."""
    with index.open("rb") as file:
        text = file.read(MAX_INDEX + 1)
    if len(text) > MAX_INDEX:
        raise _Damage(f"{index.name} is longer than {MAX_INDEX:,} bytes")
    found = _json(text, index.name)
    places = found.get("weight_map") if isinstance(found, dict) else None
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(each, str) for each in places.values())
    ):
        raise _Damage(f"{index.name} has no weight_map of tensors' names and files' names")
    for name in sorted(set(places.values())):
        if name not in files:
            raise _Damage(f"{index.name} names {name!r}, which is not in its folder")
        lacking = {tensor for tensor, place in places.items() if place == name} - _tensors_of(files[name])
        if lacking:
            raise _Damage(f"{name} has no tensor {min(lacking)!r}, which {index.name} says it has")


def _tensors_of(path: Path) -> frozenset[str]:
    """Names of its tensors; raises `_Damage`."""
    size = path.stat().st_size
    header, data = _header(path, size)
    spans = list[tuple[int, int, str]]()
    for name, entry in header.items():
        if name == METADATA:
            _check_metadata(entry, path.name)
        else:
            spans.append((*_span(entry, f"the tensor {name!r} of {path.name}"), name))
    _check_cover(spans, data, path.name)
    return frozenset(name for _, _, name in spans)


def _header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """The header, and how many bytes follow it."""
    with path.open("rb") as file:
        head = file.read(LENGTH_BYTES)
        length = int.from_bytes(head, "little")
        if len(head) < LENGTH_BYTES or length > size - LENGTH_BYTES:
            raise _Damage(f"{path.name} is cut off: {size:,} bytes, and its header should have {length:,}")
        if length > MAX_HEADER:
            raise _Damage(f"{path.name} has a header of {length:,} bytes, and {MAX_HEADER:,} is the most")
        found = _json(file.read(length), f"the header of {path.name}")
    if not isinstance(found, dict):
        raise _Damage(f"the header of {path.name} is no JSON object")
    return found, size - LENGTH_BYTES - length


def _json(text: bytes, what: str) -> Any:
    """With each name once. Raises `_Damage`."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise _Damage(f"{what} has a name twice")
        return found

    try:
        return json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:120]
        raise _Damage(f"{what} is no JSON in UTF-8 ({reason})") from error


def _check_metadata(found: object, file: str) -> None:
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise _Damage(f"the metadata of {file} are no texts")


def _span(entry: object, what: str) -> tuple[int, int]:
    """First byte and the one behind the last."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _Damage(f"{what} is not told by dtype, shape and data_offsets")
    bits = BITS.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if bits is None:
        raise _Damage(f"{what} has the unknown type {str(entry['dtype'])[:40]!r}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_counts(shape) or len(shape) > MAX_DIMS:
        raise _Damage(f"{what} has an impossible shape")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _Damage(f"{what} has impossible data_offsets")
    start, stop = offsets
    if math.prod(shape) * bits != (stop - start) * 8:
        raise _Damage(f"{what} has {stop - start:,} bytes, which its type and shape do not fill")
    return start, stop


def _are_counts(found: object) -> bool:
    """Whether it is a list of numbers that a file's size could be."""
    return isinstance(found, list) and all(type(each) is int and 0 <= each < 1 << 63 for each in found)


def _check_cover(spans: Iterable[tuple[int, int, str]], data: int, file: str) -> None:
    """Every byte belongs to one tensor."""
    at = 0
    for start, stop, name in sorted(spans):
        if start != at:
            raise _Damage(f"the tensor {name!r} of {file} begins at byte {start:,}, where {at:,} should be")
        at = stop
    if at != data:
        raise _Damage(f"{file} has {data:,} bytes of tensors, and its header tells of {at:,}")
