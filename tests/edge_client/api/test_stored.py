"""Responses are kept within their limits, and over a restart of the daemon where streams are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge_client.api.response import ResponseSpec
from edge_client.api.stored import StoredResponses
from edge_client.formats.api_error import ApiError
from edge_client.formats.dialect import Heading, Json
from edge_client.formats.fields import Fields
from edge_client.formats.message import MessageForm
from edge_client.formats.responses import Responses
from edge_client.texts.resume import Journal
from tests.edge_client.api.test_durable import WHOLE, again_of, begin, filled
from tests.edge_client.api.test_responses import check, create, parsed, text_of
from tests.edge_client.api.world import World, alone, world

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.sdk]

PATH = "/v1/responses"


@contextlib.asynccontextmanager
async def daemon(folder: Path) -> AsyncIterator[World]:
    for each in ("journal", "responses"):
        (folder / each).mkdir(exist_ok=True)
    stored = StoredResponses(folder=folder / "responses")
    async with world(step_time=0.005, journal=Journal(folder / "journal"), stored=stored) as found:
        found.api.streams.go_on()
        yield found


async def test_a_stream_goes_on_after_a_stop_and_can_be_continued(tmp_path: Path) -> None:
    async with daemon(tmp_path) as found:
        await begin(found, 30, PATH)
    async with daemon(tmp_path) as found:
        again = await again_of(found)
        events = [parsed(frame) for frame in again.content.strip().split(b"\n\n")]
        check(events)
        response = events[-1]["response"]
        assert (await found.client.get(f"{PATH}/{response['id']}")).json() == response
        more = await create(found, input="d", previous_response_id=response["id"])
    assert text_of(response) == WHOLE
    assert text_of(more) == alone(f"abc{WHOLE}d", temperature=0)
    async with daemon(tmp_path) as found:
        last = await create(found, input="e", previous_response_id=more["id"])
    assert text_of(last) == alone(f"abc{WHOLE}d{text_of(more)}e", temperature=0)


async def test_a_stream_that_is_removed_keeps_no_response(tmp_path: Path) -> None:
    async with daemon(tmp_path) as found:
        await begin(found, 1, PATH)
        await found.client.delete("/v1/stream", params={"conv_id": "talk"})
        while found.texts.live:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not filled(tmp_path / "responses")


class Wall:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def keep(
    kept_by: StoredResponses, number: int, text: str = "abc", output: Sequence[Json] = (), **fields: Any
) -> str:
    """Keep a response with this text. Returns its id."""
    name = f"resp_{number}"
    form = Responses.parse(Fields({"input": text, **fields})).form
    heading = Heading(name, 0, "m", "fp", form)
    spec = ResponseSpec(Responses, heading, (), MessageForm(), "", origins=False)
    kept_by.ended(spec, {"response": {"id": name, "output": list(output)}})
    return name


def is_kept(store: StoredResponses, name: str) -> bool:
    with contextlib.suppress(ApiError):
        return bool(store.get(name)["id"] == name)
    return False


def test_a_response_is_kept_for_its_time_over_a_restart(tmp_path: Path) -> None:
    wall = Wall()
    store = StoredResponses(60.0, tmp_path, wall=wall)
    first = keep(store, 1)
    wall.now += 40
    second = keep(store, 2)
    for each in (store, StoredResponses(60.0, tmp_path, wall=wall)):
        assert is_kept(each, first)
    wall.now += 40
    for each in (store, StoredResponses(60.0, tmp_path, wall=wall)):
        assert not is_kept(each, first)
        assert is_kept(each, second)
    assert [file.stem for file in tmp_path.iterdir()] == [second]


def test_the_oldest_are_dropped_first(tmp_path: Path) -> None:
    store = StoredResponses(folder=tmp_path, most=2)
    names = [keep(store, number) for number in range(3)]
    assert [is_kept(store, each) for each in names] == [False, True, True]
    assert {each.stem for each in tmp_path.iterdir()} == {*names[1:]}
    store = StoredResponses(max_bytes=2000)
    names = [keep(store, number, "x" * 700) for number in range(3)]
    assert [is_kept(store, each) for each in names] == [False, True, True]
    assert not is_kept(store, keep(store, 9, "x" * 3000))
    assert is_kept(store, names[2]), "one that is too large drops no other"


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    keep(StoredResponses(folder=tmp_path), 1)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damaged", [b"", b"{}", b"[]", b'{"at": 1', b'{"at": "x", "items": [], "response": {"output": []}}']
)
def test_a_damaged_file_is_dropped(tmp_path: Path, damaged: bytes) -> None:
    name = keep(StoredResponses(folder=tmp_path), 1)
    (tmp_path / "resp_2.json").write_bytes(damaged)
    (tmp_path / "resp_3.half").write_bytes(b"{}")
    (tmp_path / "folder").mkdir()
    assert is_kept(StoredResponses(folder=tmp_path), name)
    assert sorted(each.stem for each in tmp_path.iterdir()) == ["folder", name]
