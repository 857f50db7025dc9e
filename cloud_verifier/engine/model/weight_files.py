"""Checks that a target model's folder holds whole safetensors files, before transformers reads them.

Weights in other formats are pickles, which run code when read, so they are never an alternative. The
safetensors library refuses a file whose header does not account for every byte once, with known types and
shapes. An error names the faulty file, before seconds are spent on loading.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from common.errors import UserError


def check_weights(source: str, folder: Path) -> None:
    """Raise `UserError` unless the folder's weights are whole safetensors files."""
    files = sorted(folder.glob("*.safetensors"))
    try:
        if not files:
            raise UserError(f"{folder} holds no *.safetensors")
        for path in files:
            check_file(path)
    except UserError as error:
        raise UserError(
            f"cannot load the target model '{source}': {error}. Fetch or convert the model again; only "
            "safetensors are read, as other formats can run code"
        ) from error


def check_file(path: Path) -> None:
    """Raise `UserError` if the file is damaged."""
    try:
        with safe_open(path, framework="np"):
            pass
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path.name} is no whole safetensors file ({error})") from error
