"""A stream is read again from any byte and any event, by any number of readers, byte for byte."""

from __future__ import annotations

import asyncio
import json

import pytest

from edge_client.api.replay import ReplayStream, StreamStore
from edge_client.formats.api_error import ApiError
from tests import wording

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
    """The wall clock, which may jump, forgets nothing."""
    now, wall = [100.0], [0.0]
    store = StreamStore(60.0, lambda: wall[0], lambda: now[0])
    stream = store.begin("talk")
    with wording.raises(ApiError):
        store.begin("talk")
    store.end(stream)
    assert store.begin("talk") is not stream, "the name is free after its end"
    store.end(stream := store.begin("other"))
    now[0], wall[0] = 160.0, 1_700_000_000.0
    assert store.get("other") is stream
    now[0] = 160.1
    assert store.get("other") is None


async def test_when_all_places_are_taken_the_oldest_that_ended_goes() -> None:
    now = [100.0]
    store = StreamStore(1e6, lambda: 0.0, lambda: now[0])
    for number in range(StreamStore.MOST):
        now[0] += 1
        stream = store.begin(f"talk {number}")
        if number in (3, 5):
            store.end(stream)
    store.begin("one more")
    assert store.get("talk 3") is None
    assert store.get("talk 5") is not None
