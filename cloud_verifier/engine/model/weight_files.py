"""Checks a target model's weights before transformers reads them: whole safetensors files, nothing else.

Weights in other formats are pickles, which run code when read, so they are never an alternative. The
safetensors library refuses a file whose header does not account for every byte once, with known types and
shapes. An error names the faulty file, before seconds are spent on loading.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from common.errors import UserError

ENDING = ".safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX = 1 << 26
"""Bytes of the index; the largest models name some hundred thousand tensors."""

_LENGTH_BYTES = 8  # of a file's header, before it


def check_weights(source: str, folder: Path) -> None:
    """Raise `UserError` unless the folder's weights are whole safetensors files."""
    try:
        files = sorted(folder.glob(f"*{ENDING}"))
        if not files:
            raise UserError(f"{folder} holds no *{ENDING}")
        index = folder / INDEX
        if index.is_file():
            _check_index(index)
        else:
            for path in files:
                check_file(path)
    except (OSError, UserError) as error:
        raise UserError(
            f"cannot load the target model '{source}': {error}. Fetch or convert the model again; only "
            "safetensors are read, as other formats can run code"
        ) from error


def check_file(path: Path) -> frozenset[str]:
    """Return the names of the file's tensors. Raises `UserError` if it is damaged."""
    try:
        with safe_open(path, framework="np") as weights:
            names = frozenset(weights.keys())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path.name} is no whole safetensors file ({error})") from error
    with path.open("rb") as file:
        _json(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")), f"the header of {path.name}")
    return names


def _check_index(index: Path) -> None:
    """Check that each file in the index exists and has the named tensors; other files are ignored."""
    with index.open("rb") as file:
        text = file.read(MAX_INDEX + 1)
    if len(text) > MAX_INDEX:
        raise UserError(f"{index.name} is longer than {MAX_INDEX:,} bytes")
    listed = _json(text, index.name)
    places = listed.get("weight_map") if isinstance(listed, dict) else None
    if not isinstance(places, dict) or {type(place) for place in places.values()} != {str}:
        raise UserError(f"{index.name} has no weight_map of tensors' names and files' names")
    for name in sorted(set(places.values())):
        if name != Path(name).name or not (index.parent / name).is_file():
            raise UserError(f"{index.name} names {name!r}, which is not in its folder")
        lacking = {tensor for tensor, place in places.items() if place == name}
        lacking -= check_file(index.parent / name)
        if lacking:
            raise UserError(f"{name} has no tensor {min(lacking)!r}, which {index.name} lists there")


def _json(text: bytes, what: str) -> Any:
    """Parse JSON in which each name occurs once. Raises `UserError`."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise UserError(f"{what} has a name twice")
        return fields

    try:
        return json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} is no JSON in UTF-8 ({str(error)[:120]})") from error
