"""Runs the scripts of `deploy/docker`, for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCKER = ROOT / "deploy" / "docker"


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What came of a command, with variables beside this process' own."""
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
