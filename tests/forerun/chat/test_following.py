"""The law of an answer: whatever breaks on the way, what comes is the whole text, once."""

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
from forerun.chat.following import Following, read_events
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


async def read(following: Following) -> list[TextEvent]:
    """All of it, in a thread: it blocks."""
    return await asyncio.to_thread(lambda: list(following.events()))


def text_of(parts: list[TextEvent]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextAdded))


def follow(*addresses: str, **more: Any) -> Following:
    """An answer of the first address; after each loss the next one is asked, and at last the last again."""
    left = list(addresses)
    finds = lambda: LocalClient(left.pop(0) if len(left) > 1 else left[0], TOKEN)  # noqa: E731
    return Following(finds, "/v1/completions", BODY, sleep=lambda pause: None, **more)


async def test_an_answer_comes_whole_and_is_forgotten_by_the_daemon() -> None:
    async with served() as daemon:
        following = follow(daemon.address)
        parts = await read(following)
        assert text_of(parts) == ALONE == following.text
        ended = parts[-1]
        assert isinstance(ended, TextEnded)
        assert (ended.finish, ended.figures["tokens"]) == ("length", LENGTH)
        assert daemon.world.api.streams.store.get(following.name) is None


async def test_a_link_that_breaks_loses_nothing() -> None:
    """The daemon kept the stream; the reader goes on after the last event that it has."""
    async with served() as daemon, breaking(daemon.address) as link:
        following = follow(link, daemon.address)
        parts = await read(following)
        assert len(daemon.world.texts.recent) == 1, "it was written once"
    assert text_of(parts) == ALONE
    assert NoteAdded("the daemon is back; the answer goes on") in parts


async def test_a_daemon_that_was_restarted_has_lost_the_answer() -> None:
    async with served() as old, breaking(old.address) as link, served() as new:
        following = follow(link, new.address)
        with wording.raises(UnavailableError):
            await read(following)
    assert following.text, "what came stays"


async def test_a_daemon_that_stays_away_is_given_up() -> None:
    now = iter(range(0, 10_000, 7))
    async with served() as daemon, breaking(daemon.address) as link:
        following = follow(link, "127.0.0.1:1", clock=lambda: float(next(now)))
        with wording.raises(UnavailableError):
            await read(following)
    assert following.text
    assert ALONE.startswith(following.text)


async def test_a_request_that_is_refused_is_not_repeated() -> None:
    async with served() as daemon:
        client = LocalClient(daemon.address, TOKEN)
        with wording.raises(UserError):
            await read(Following(lambda: client, "/v1/completions", {**BODY, "prompt": ""}))
        stranger = LocalClient(daemon.address, "another-token-here")
        with wording.raises(UserError):
            await read(Following(lambda: stranger, "/v1/completions", BODY))
    with refusing() as gone, wording.raises(UnavailableError):
        await read(follow(gone))


async def test_an_answer_that_is_stopped_ends_at_the_daemon() -> None:
    async with served(step_time=STEP_TIME) as daemon:
        client = LocalClient(daemon.address, TOKEN)
        following = Following(lambda: client, "/v1/completions", BODY)
        parts = following.events()
        first = await asyncio.to_thread(lambda: next(part for part in parts if isinstance(part, TextAdded)))
        assert ALONE.startswith(first.text)
        await asyncio.to_thread(following.stop)
        assert daemon.world.texts.live == {}
        parts.close()  # type: ignore[attr-defined]  # a generator


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
