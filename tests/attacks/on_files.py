"""Attacks on single functions, with real files and a real server."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from common.errors import ForerunError
from common.llama.store import parse_name, parts_of
from edge_client.api.errors import ApiError
from edge_client.api.replay import ReplayStream
from edge_client.models.fetch import SPARE, FetchSurroundings, fetch
from edge_client.models.web import Credentials
from tests.attacks.stages import Stage, expect
from tests.edge_client.small_server import Answer, Handler, serving

Over = asyncio.Event
MODEL = b"GGUF" + bytes(range(256)) * 4096
MIB = 1 << 20


def pulled(
    folder: Path, answer: Answer, sha256: str = "", free: Callable[[Path], int] | None = None
) -> ForerunError | None:
    """Fetch a model from a server that answers so. Why it failed; None if it did not."""
    with serving(answer) as address:
        hub = f"http://{address}"
        space = free or (lambda found: shutil.disk_usage(found).free)
        world = FetchSurroundings(lambda: "2026-01-02T03:04:05+00:00", lambda _: None, lambda *_: None, space)
        try:
            fetch(parse_name("hf://o/r/f.gguf", hub), folder / "f.gguf", Credentials("", hub), world, sha256)
        except ForerunError as error:
            return error
    return None


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


async def wrong_ranges(stage: Stage, over: Over) -> None:
    """A server that breaks off, and answers each question for the rest with something else."""
    asked = 0

    def answer(request: Handler) -> None:
        nonlocal asked
        asked += 1
        if asked > 60:
            request.reply(404)
        elif "Range" in request.headers:
            rest = f"bytes 7-{len(MODEL) - 1}/{len(MODEL)}"
            request.reply(206, MODEL[7:], Content_Range=rest, ETag=f'"{asked}"')
        else:
            request.begin(200, Content_Length=str(len(MODEL)), ETag='"tag"')
            request.wfile.write(MODEL[:50_000])

    error = await asyncio.to_thread(pulled, stage.folder, answer)
    expect(error is not None and asked <= 60, f"the server was asked {asked} times")


async def no_length(stage: Stage, over: Over) -> None:
    """A server that tells no length and never ends. The disk keeps its spare room."""
    part, room = parts_of(stage.folder / "f.gguf")[0], 4 * MIB
    most = room + 60 * MIB
    least = 1 << 40

    def free(folder: Path) -> int:
        return SPARE + room - (part.stat().st_size if part.exists() else 0)

    def answer(request: Handler) -> None:
        nonlocal least
        request.begin(200, ETag='"tag"')
        for block in range(0, most, MIB):
            request.wfile.write(b"GGUF" + bytes(MIB - 4) if not block else bytes(MIB))
            least = min(least, free(stage.folder))

    error = await asyncio.to_thread(pulled, stage.folder, answer, "", free)
    expect(error is not None, "a file without an end was taken for whole")
    expect(least >= SPARE - MIB, f"{(SPARE - least) >> 20} MiB of the spare room were used")


async def linked_part(stage: Stage, over: Over) -> None:
    """FILE.part is a link to a file of somebody else."""
    precious = stage.folder / "precious"
    precious.write_bytes(b"precious")
    parts_of(stage.folder / "f.gguf")[0].symlink_to(precious)
    await asyncio.to_thread(pulled, stage.folder, lambda request: request.reply(200, MODEL))
    expect(precious.read_bytes() == b"precious", "the file behind the link was written to")


async def redirects(stage: Stage, over: Over) -> None:
    """Redirects out of the web and without end, packed answers, and another file than was asked for."""
    places = ("file:///etc/passwd", "ftp://127.0.0.1/x", "data:,GGUF", "http://192.0.2.1/x", "/again")
    for number, place in enumerate(places):
        folder, away = stage.folder / f"redirect{number}", _redirecting(place)
        error = await asyncio.to_thread(pulled, folder, away)
        expect(error is not None, f"a redirect to {place} was followed")
    packed: Answer = lambda request: request.reply(200, MODEL, Content_Encoding="gzip")  # noqa: E731
    expect(await asyncio.to_thread(pulled, stage.folder / "packed", packed) is not None, "gzip was taken")
    other = hashlib.sha256(b"other").hexdigest()
    plain: Answer = lambda request: request.reply(200, MODEL)  # noqa: E731
    error = await asyncio.to_thread(pulled, stage.folder / "hash", plain, other)
    expect(error is not None, "a file of another hash was taken")
    expect(not (stage.folder / "hash" / "f.gguf").exists(), "a file of another hash has the model's name")


def _redirecting(place: str) -> Answer:
    return lambda request: request.reply(302, Location=place)


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
