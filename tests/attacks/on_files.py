"""Attacks on single functions, with real files and a real server."""

from __future__ import annotations

import asyncio
import sys

from edge_client.api.replay import ReplayStream
from edge_client.formats.api_error import ApiError
from tests.attacks.stages import Stage, expect

Over = asyncio.Event


async def reader_behind(stage: Stage, over: Over) -> None:
    """A reader that stands still while the stream goes on, far beyond what is kept."""
    replay, frames = ReplayStream(max_bytes=1000), [b"id: %d\ndata: %d\n\n" % (n, n) for n in range(1, 200)]
    got = b""
    for frame in frames[:5]:
        replay.restore(frame)
    try:
        async for chunk in replay.read(0):
            if not got:
                for frame in frames[5:]:
                    replay.restore(frame)
                replay.finish()
            got += chunk
            expect(len(got) < 10**6, "the reader gets more than there is")
    except ApiError as error:
        expect(error.code == "offset_lost", f"the reader was told {error.code}")
        return
    if b"event: error" in got or b'"error"' in got:
        got = got[: got.index(b"error")].rpartition(b"\n\n")[0]
    expect(b"".join(frames).startswith(got), f"the reader got holes or repetitions in {len(got)} bytes")


async def damaged_models(stage: Stage, over: Over) -> None:
    """GGUF files with damaged headers, counts, shapes and bytes."""
    command = (sys.executable, "-m", "tests.fuzz.model_files", "--cases", "60")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(90):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    expect(process.returncode == 0, said.decode()[-300:])
