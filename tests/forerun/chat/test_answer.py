"""An answer comes event by event; what breaks it or ends it early is raised, and ends its text."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.errors import CapacityError, LocalError, PeerError, UnavailableError, UserError
from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.process.client import LocalClient
from edge_client.texts.events import (
    DifferenceFound,
    ModeChanged,
    NoteAdded,
    PreviewAdded,
    PreviewWithdrawn,
    TextAdded,
    TextEnded,
    TextEvent,
    ThoughtAdded,
)
from forerun.chat.answer import answer, read_events
from tests import wording
from tests.edge_client.api.served import TOKEN, served
from tests.edge_client.api.world import alone
from tests.support.listener import listening
from tests.support.ports import refusing

pytestmark = [pytest.mark.api, pytest.mark.grpc]

LENGTH = 48
BODY = {
    "prompt": "abc",
    "max_tokens": LENGTH,
    "temperature": 0,
    "seed": 1,
    "ignore_eos": True,
    "stream": True,
    "forerun": {"origins": True},
}
ALONE = alone("abc", max_tokens=LENGTH, ignore_eos=True)
STEP_TIME = 0.01  # seconds: the text is still being written when the link is cut


FEW = 1200
"""Bytes that a link lets through before it breaks: an answer's head and a few of its events."""


@contextlib.asynccontextmanager
async def breaking(address: str) -> AsyncIterator[str]:
    """A link to `address` that breaks in the middle of an answer; yields where it begins."""
    host, _, port = address.rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection(host, int(port))
        down.write(await reader.readuntil(b"\r\n\r\n") + await reader.read(4096))
        writer.write(await up.readexactly(FEW))
        await writer.drain()
        down.close()

    async with listening(carry) as broken:
        yield broken


async def read(address: str, token: str = TOKEN, **more: Any) -> list[TextEvent]:
    """All of an answer, in a thread: it blocks."""
    client = LocalClient(address, token)
    return await asyncio.to_thread(lambda: list(answer(client, "/v1/completions", BODY | more)))


async def test_an_answer_comes_whole() -> None:
    async with served() as daemon:
        parts = await read(daemon.address)
    assert "".join(part.text for part in parts if isinstance(part, TextAdded)) == ALONE
    ended = parts[-1]
    assert isinstance(ended, TextEnded)
    assert (ended.finish, ended.figures["tokens"]) == ("length", LENGTH)


async def test_an_answer_that_breaks_off_is_told() -> None:
    async with served() as daemon, breaking(daemon.address) as link:
        with wording.raises(UnavailableError):
            await read(link)


async def test_a_request_that_is_refused_is_told() -> None:
    async with served() as daemon:
        with wording.raises(UserError):
            await read(daemon.address, prompt="")
        with wording.raises(UserError):
            await read(daemon.address, "another-token-here")
    with refusing() as gone, wording.raises(UnavailableError):
        await read(gone)


async def test_an_answer_that_is_stopped_ends_at_the_daemon() -> None:
    async with served(step_time=STEP_TIME) as daemon:
        parts = answer(LocalClient(daemon.address, TOKEN), "/v1/completions", BODY)
        first = await asyncio.to_thread(lambda: next(part for part in parts if isinstance(part, TextAdded)))
        assert ALONE.startswith(first.text)
        await asyncio.to_thread(parts.close)
        while daemon.world.texts.live:  # noqa: ASYNC110 - nothing announces that a client's leaving was seen
            await asyncio.sleep(0.01)


def chunk(ours: Any = None, **choice: Any) -> list[TextEvent]:
    return list(read_events({"choices": [choice], **({} if ours is None else {"forerun": ours})}))


def test_text_of_both_endpoints_is_told_by_writer() -> None:
    origins = {"origins": [["ab", "drafted", 2], ["c", "server", 1]]}
    expected = [TextAdded((TextSpan("ab", TokenOrigin.DRAFTED, 2), TextSpan("c", TokenOrigin.SERVER, 1)))]
    assert chunk(origins, delta={"content": "abc"}) == expected
    assert chunk(origins, text="abc") == expected
    assert chunk(text="abc") == [TextAdded((TextSpan("abc", None, 1),))]
    assert chunk(delta={"role": "assistant", "content": ""}) == []
    assert chunk(delta={"reasoning_content": "hm"}) == [ThoughtAdded("hm")]


def test_the_end_has_the_figures() -> None:
    assert chunk({"tokens": 3}, delta={}, finish_reason="stop") == [TextEnded("stop", {"tokens": 3})]


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (
            {"mode": "ahead", "notes": ["nothing is drafted: no file"]},
            [NoteAdded("nothing is drafted: no file")],
        ),
        ({"mode": "device-only", "why": "no server"}, [ModeChanged("device-only", "no server")]),
        ({"guess": {"start": 3, "texts": ["a", "b"]}}, [PreviewAdded(3, ("a", "b"))]),
        ({"retract": 0}, [PreviewWithdrawn(0)]),
        ({"difference": {"place": 2, "device": "x", "target": "y"}}, [DifferenceFound(2, "x", "y")]),
    ],
)
def test_what_openai_has_no_words_for(ours: Any, expected: list[TextEvent]) -> None:
    assert chunk(ours, delta={}) == expected


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"message": "m", "type": "invalid_request_error"}, UserError),
        ({"message": "m", "type": "rate_limit_error"}, CapacityError),
        ({"message": "m", "type": "server_error", "code": "verifier_unavailable"}, UnavailableError),
        ({"message": "m", "type": "server_error", "code": "internal_error"}, LocalError),
        ("what", PeerError),
    ],
)
def test_an_error_is_raised_as_what_it_is(told: object, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        list(read_events({"error": told}))


@pytest.mark.parametrize("chunk", [7, {"choices": 7}, {"choices": [{}], "forerun": {"guess": {"start": 1}}}])
def test_nonsense_is_the_daemons_fault(chunk: object) -> None:
    with pytest.raises(PeerError):
        list(read_events(chunk))
