"""The law of an answer: whatever breaks on the way, what comes is the whole text, once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from benchmarks.ports import refusing
from common.errors import UnavailableError, UserError
from edge_client.local_client import LocalClient
from forerun.chat.following import Following, Overlap
from forerun.chat.parts import Anew, Ended, Guess, Mode, Note, Part, Run, Text
from tests.edge_client.api.served import TOKEN, served
from tests.edge_client.api.world import alone

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
        writer.close()
        down.close()

    async with await asyncio.start_server(carry, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def read(following: Following) -> list[Part]:
    """All of it, in a thread: it blocks."""
    return await asyncio.to_thread(lambda: list(following.parts()))


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


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
        assert isinstance(ended, Ended)
        assert (ended.finish, ended.figures["tokens"]) == ("length", LENGTH)
        assert daemon.world.api.streams.store.get(following._name) is None


async def test_a_link_that_breaks_loses_nothing() -> None:
    """The daemon kept the stream; the reader goes on after the last event that it has."""
    async with served() as daemon, breaking(daemon.address) as link:
        following = follow(link, daemon.address)
        parts = await read(following)
        assert len(daemon.world.device.recent) == 1, "it was written once"
    assert text_of(parts) == ALONE
    assert following.num_resumes == 1
    assert Note("the daemon is back; the answer goes on") in parts
    assert not any(isinstance(part, Anew) for part in parts)


async def test_a_daemon_that_is_started_again_goes_on_with_the_text() -> None:
    """Nothing of the old one is left: the same request gives the same text, and what is known is skipped."""
    async with served() as old, breaking(old.address) as link, served() as new:
        following = follow(link, new.address)
        parts = await read(following)
        assert len(new.world.device.recent) == 1
    assert text_of(parts) == ALONE
    assert not any(isinstance(part, Anew) for part in parts)


async def test_a_daemon_that_stays_away_is_given_up() -> None:
    now = iter(range(0, 10_000, 7))
    async with served() as daemon, breaking(daemon.address) as link:
        following = follow(link, "127.0.0.1:1", clock=lambda: float(next(now)))
        with pytest.raises(UnavailableError, match="the answer broke off"):
            await read(following)
    assert following.text
    assert ALONE.startswith(following.text)


async def test_a_request_that_is_refused_is_not_repeated() -> None:
    async with served() as daemon:
        client = LocalClient(daemon.address, TOKEN)
        with pytest.raises(UserError, match="prompt"):
            await read(Following(lambda: client, "/v1/completions", {**BODY, "prompt": ""}))
        stranger = LocalClient(daemon.address, "another-token-here")
        with pytest.raises(UserError, match="does not let this command in"):
            await read(Following(lambda: stranger, "/v1/completions", BODY))
    with refusing() as gone, pytest.raises(UnavailableError, match="cannot be reached"):
        await read(follow(gone))


async def test_an_answer_that_is_stopped_ends_at_the_daemon() -> None:
    async with served(step_time=STEP_TIME) as daemon:
        client = LocalClient(daemon.address, TOKEN)
        following = Following(lambda: client, "/v1/completions", BODY)
        parts = following.parts()
        first = await asyncio.to_thread(lambda: next(part for part in parts if isinstance(part, Text)))
        assert ALONE.startswith(first.text)
        await asyncio.to_thread(following.stop)
        assert daemon.world.device.live == {}
        parts.close()  # type: ignore[attr-defined]  # a generator


def run(text: str) -> Text:
    return Text((Run(text, "server", len(text)),))


def taken(told: str, *parts: Part) -> list[Part]:
    overlap = Overlap(told)
    return [each for part in parts for each in (overlap.take(part) if not overlap.is_over else [part])]


def test_what_was_told_is_passed_over_to_the_character() -> None:
    assert taken("abcd", run("ab"), run("cdef"), run("g")) == [Text((Run("ef", "server", 4),)), run("g")]
    assert taken("ab", run("a"), Guess(1, ("b",)), Mode("m", "w"), run("b"), run("c")) == [
        Mode("m", "w"),
        run("c"),
    ]


def test_another_text_is_told_from_its_beginning() -> None:
    assert taken("abcd", run("ab"), run("x")) == [Anew(), Text((Run("abx", "", 1),))]
    ended = Ended("stop", {})
    assert taken("abcd", run("ab"), ended) == [Anew(), Text((Run("ab", "", 1),)), ended]
    assert taken("ab", run("ab"), ended) == [ended]
