"""A stream is read again from any byte and any event, and comes back from the disk as it was sent."""

import asyncio
import contextlib
import json
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from edge_client.formats.api_error import ApiError
from edge_client.formats.detokenizer import TokenOrigin
from edge_client.texts.resume import Begun, Journal, ReplayStream, StreamPart, StreamStore
from tests import wording

HEAD = {"prompt": [1, 2, 3]}


def part(tokens: tuple[int, ...], *origins: TokenOrigin, **more: Any) -> StreamPart:
    return StreamPart((), Begun(tokens, origins), **more)


def written(folder: Path, name: str = "talk") -> Path:
    """A stream of two events that has not ended; its file."""
    entry = Journal(folder).begin(name, HEAD)
    entry.add(["id: 1\ndata: é\n\n".encode()], part((4, 5), TokenOrigin.DRAFTED, TokenOrigin.SERVER))
    entry.add([b"id: 2\ndata: x\n\n"], part((6,), TokenOrigin.DEVICE))
    entry.abandon()
    (path,) = folder.iterdir()
    return path


@contextlib.contextmanager
def room(most: int) -> Iterator[None]:
    """A file takes so many bytes, as on a disk that is nearly full: a write over the limit is cut short, the
    next one fails. Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_wherever_the_daemon_died_whole_events_are_left(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    path = next(tmp_path.iterdir())
    first_line = data.index(b"\n") + 1
    for length in range(first_line, len(data) + 1):
        path.write_bytes(data[:length])
        (found,) = Journal(tmp_path).recorded()
        assert len(found.frames) == data[first_line:length].count(b"\n")
        assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[]\n", b'{"name": 5}\n', b"\xff\n", b"null\n"])
def test_a_file_that_is_none_is_dropped(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path)
    path.write_bytes(content)
    assert list(Journal(tmp_path).recorded()) == []
    assert not path.exists()


def test_it_is_its_owners_alone_and_named_after_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "../../etc/passwd")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.parent == tmp_path
    Journal(tmp_path).remove("../../etc/passwd")
    assert not path.exists()


def test_a_folder_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with wording.raises(UserError):
        Journal(tmp_path / "missing")


@pytest.mark.parametrize("spare", [0, 1, 10])
def test_a_disk_that_is_full_leaves_no_part_of_a_stream_even_if_room_comes_back(
    tmp_path: Path, spare: int
) -> None:
    """A prefix, or a line glued to a torn one, would be gone on from at the next start."""
    size = written(tmp_path).stat().st_size
    entry = Journal(tmp_path).resume("talk")
    with room(size + spare):
        entry.add([b"id: 3\ndata: x\n\n"], part((6,), TokenOrigin.SERVER))
    assert entry.failure
    entry.add([b"id: 4\ndata: x\n\n"], part((6,), TokenOrigin.SERVER, is_last=True))
    assert list(Journal(tmp_path).recorded()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_cannot_begin_on_disk_leaves_no_older_one_of_its_name(tmp_path: Path) -> None:
    written(tmp_path)
    with room(10):
        entry = Journal(tmp_path).begin("talk", HEAD)
    assert entry.failure
    assert list(tmp_path.iterdir()) == []


FRAMES = [b"id: 1\ndata: a\n\n", b"id: 2\ndata: bb\n\n", b"id: 3\ndata: ccc\n\n"]


def filled(max_bytes: int = 10_000) -> ReplayStream:
    replay = ReplayStream(max_bytes=max_bytes)
    for frame in FRAMES:
        replay.restore(frame)
    return replay


async def read(replay: ReplayStream, start: int = 0) -> bytes:
    return b"".join([chunk async for chunk in replay.read(start)])


async def test_every_byte_offset_gives_the_rest() -> None:
    replay = filled()
    replay.finish()
    whole = b"".join(FRAMES)
    for start in range(len(whole) + 1):
        replay.check(start)
        assert await read(replay, start) == whole[start:]
    with pytest.raises(ApiError):
        replay.check(len(whole) + 1)


async def test_every_event_number_gives_what_came_after_it() -> None:
    replay = filled()
    replay.comment(b": waiting\n")
    replay.restore(b"id: 4\ndata: d\n\n")
    replay.finish()
    assert replay.num_events == 4
    for seen in range(4):
        rest = await read(replay, replay.offset_after(seen))
        assert rest.startswith(b"id: %d" % (seen + 1))
    assert await read(replay, replay.offset_after(4)) == b""


async def test_readers_get_what_comes_later() -> None:
    replay = ReplayStream()
    readers = [asyncio.create_task(read(replay)) for _ in range(3)]
    for frame in FRAMES:
        await asyncio.sleep(0)
        replay.restore(frame)
    replay.finish()
    assert await asyncio.gather(*readers) == [b"".join(FRAMES)] * 3


async def test_what_is_not_kept_any_more_is_refused_and_what_is_kept_is_whole() -> None:
    replay = filled(max_bytes=len(FRAMES[1]) + len(FRAMES[2]))
    with wording.raises(ApiError):
        replay.check(0)
    with wording.raises(ApiError):
        replay.offset_after(0)
    replay.finish()
    assert await read(replay, replay.offset_after(1)) == FRAMES[1] + FRAMES[2]


async def test_a_reader_that_falls_behind_what_is_kept_is_told_and_gets_no_holes() -> None:
    replay = ReplayStream(max_bytes=60)
    seen, frames = b"", [b"id: %d\ndata: %d\n\n" % (number, number) for number in range(1, 31)]
    replay.restore(frames[0])
    reader = replay.read(0)
    seen += await anext(reader)
    for frame in frames[1:]:
        replay.restore(frame)
    replay.finish()
    rest = [chunk async for chunk in reader]
    assert seen == frames[0]
    assert len(rest) == 1
    assert json.loads(rest[0].removeprefix(b"data: "))["error"]["code"] == "offset_lost"


async def test_ended_streams_are_forgotten_after_their_time() -> None:
    now = [100.0]
    store = StreamStore(60.0, lambda: now[0])
    stream = store.begin("talk")
    with wording.raises(ApiError):
        store.begin("talk")
    store.end(stream)
    assert store.begin("talk") is not stream, "the name is free after its end"
    store.end(stream := store.begin("other"))
    now[0] = 160.0
    assert store.get("other") is stream
    now[0] = 160.1
    assert store.get("other") is None


async def test_when_all_places_are_taken_the_oldest_that_ended_goes() -> None:
    now = [100.0]
    store = StreamStore(1e6, lambda: now[0])
    for number in range(StreamStore.MOST):
        now[0] += 1
        stream = store.begin(f"talk {number}")
        if number in (3, 5):
            store.end(stream)
    store.begin("one more")
    assert store.get("talk 3") is None
    assert store.get("talk 5") is not None
