"""Attacks by files."""

from __future__ import annotations

import asyncio
import sys

from lab.demo_models import DRAFT_GGUF
from tests.attacks.stages import Stage, expect


async def damaged_target(stage: Stage, over: asyncio.Event) -> None:
    """A GGUF target whose header claims no layers, which llama.cpp answers with an abort."""
    content, path = bytearray(DRAFT_GGUF.read_bytes()), stage.folder / "damaged.gguf"
    at = content.find(b"llama.block_count") + 21
    content[at : at + 4] = bytes(4)
    path.write_bytes(content)
    command = (sys.executable, "-m", "forerun", "verify", "--model", str(path), "--listen", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(90):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    expect(process.returncode == 2, f"it ended with code {process.returncode}: {said.decode()[-300:]}")
    sentence = said.decode().strip().splitlines()[-1]
    expect(sentence.startswith("forerun: "), f"no sentence, but {said.decode()[-300:]}")
