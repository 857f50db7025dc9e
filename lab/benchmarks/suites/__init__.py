"""Public programs that measure servers, run against Forerun. Each has an environment of its own, which its
first run makes below `.venv/clients` (400 to 900 MB each); nothing is fetched from a model hub."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from common.errors import UnavailableError

SCRIPTS = Path(__file__).parent

NO_HUB = "http://127.0.0.1:9"
"""Address of a model hub that nobody serves. With `HF_HUB_OFFLINE` aiperf takes a folder for a hub's name."""


async def run(name: str, folder: Path, *words: str) -> None:
    """Run the script `run_NAME.py` in `folder` until it ends. Raise `UnavailableError` if it fails."""
    command = [sys.executable, "-m", "uv", "run", "--quiet", "--python", sys.executable, "--script"]
    log = folder / f"{name}.log"
    hub = {"HF_ENDPOINT": NO_HUB, "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    with log.open("wb") as output:
        running = await asyncio.create_subprocess_exec(
            *[*command, str(SCRIPTS / f"run_{name}.py"), *words],
            cwd=folder,
            env={**os.environ, **hub, "UV_CACHE_DIR": str(Path(sys.prefix) / "clients")},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            code = await running.wait()
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()
    if code:
        end = log.read_text(errors="replace")[-2000:]
        raise UnavailableError(f"{name} ended with code {code}; its last words:\n{end}")
