"""A manifest names what the job would take of a folder, by its hashes, and nothing that it would refuse."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from lab.tools import model_manifest
from lab.tools.chart import ROOT

TARGET = ROOT / "lab" / "demo_models" / "target"
BASE = "https://models.internal/demo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model as it lies on a disk, with what comes beside one."""
    found = Path(shutil.copytree(TARGET, tmp_path / "model"))
    (found / "README.md").write_text("about")
    (found / "modeling_x.py").write_text("code")
    (found / "pytorch_model.bin").write_bytes(b"weights")
    (found / ".cache").mkdir()
    (found / ".cache" / "x.json").write_text("{}")
    (found / "a b").mkdir()
    (found / "a b" / "notes.txt").write_text("notes")
    return found


def made(folder: Path, capsys: pytest.CaptureFixture[str], base: str = BASE) -> list[dict[str, object]]:
    assert model_manifest.main([str(folder), "--from", base]) == 0
    files: list[dict[str, object]] = json.loads(capsys.readouterr().out)["files"]
    return files


def test_it_names_what_would_be_taken_and_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {str(each["path"]) for each in made(folder, capsys)}
    assert names == {path.name for path in TARGET.iterdir()} | {"a b/notes.txt"}


@pytest.mark.parametrize("base", [BASE, f"{BASE}/"])
def test_each_file_has_its_address_size_and_hash(
    folder: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {each["path"]: each for each in made(folder, capsys, base)}
    weights = (folder / "model.safetensors").read_bytes()
    assert found["model.safetensors"] == {
        "path": "model.safetensors",
        "url": f"{BASE}/model.safetensors",
        "sha256": hashlib.sha256(weights).hexdigest(),
        "size": len(weights),
    }
    assert found["a b/notes.txt"]["url"] == f"{BASE}/a%20b/notes.txt"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("config.json", None, "names no model"),
        ("model.safetensors", b"PK", "is no safetensors file"),
    ],
)
def test_what_the_job_would_refuse_is_refused_at_once(
    folder: Path, name: str, data: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if data is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(data)
    assert model_manifest.main([str(folder), "--from", BASE]) == 1
    told = capsys.readouterr()
    assert said in told.err
    assert not told.out
