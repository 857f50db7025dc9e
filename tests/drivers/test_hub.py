"""Models by hub id: the real loading code, on a hub cache that lies on this disk. No network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import demo_models

REVISION = "0" * 40
REPOSITORY = "forerun-test/pair"


def fill_cache(root: Path, files: list[Path]) -> None:
    """A hub cache as huggingface_hub leaves it: refs/main names the snapshot, which holds the files."""
    repository = root / f"models--{REPOSITORY.replace('/', '--')}"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    for file in files:
        (snapshot / file.name).symlink_to(file)


def python(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: the hub's settings are read when it is imported."""
    environment = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.torch
def test_a_target_is_loaded_by_its_hub_id(tmp_path: Path) -> None:
    fill_cache(tmp_path, sorted(demo_models.TARGET_DIR.iterdir()))
    code = "from cloud_verifier.engine.model.transformers_adapter import load_target as load"
    done = python(f"{code}; print(load('{REPOSITORY}').vocab_size)", tmp_path)
    assert done.stdout.strip() == "3072", done.stderr
