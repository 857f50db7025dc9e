"""When no verifier is there a stream waits, fails or goes on with the device's model, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from common.sampling import SamplingParams
from edge_client.texts.text_service import TextSettings
from simulator.proxy import Link
from tests.edge_client.api.world import LETTERS, Letters, Seats, World, alone, world
from tests.support.tiny import EOS
from tests.worlds.models import target_alone

pytestmark = [pytest.mark.api, pytest.mark.grpc]

SAMPLING: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 300, "ignore_eos": True}
WITH_A_VERIFIER = ("ahead", "server-only")
"""Whether drafting pays is the governor's to say; here only who is there counts."""

SOON = TextSettings(patience=1.0)
"""Long enough that no busy machine counts as a lost verifier."""


@dataclass
class WatchedStream:
    """A stream as it comes, and the link below it."""

    world: World
    link: Link
    events: list[dict[str, Any]]

    @property
    def text(self) -> str:
        return "".join(
            choice["delta"].get("content", "")
            for event in self.events
            for choice in event.get("choices", ())
            if "delta" in choice
        )

    @property
    def runs(self) -> list[tuple[str, str]]:
        """Text and origin, piece by piece."""
        return [
            (text, origin)
            for event in self.events
            for text, origin, _ in event.get("forerun", {}).get("origins", ())
        ]

    def ours(self, name: str) -> list[Any]:
        """What our own object said under this name, in order."""
        found = [event.get("forerun", {}) for event in self.events]
        return [each[name] for each in found if name in each]

    async def cut(self) -> None:
        await self.link.disable()
        self.link.cut()

    async def stream(self, **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """Ask for a text and read it as it comes."""
        name = {"x-conversation-id": "talk"}
        messages = [{"role": "user", "content": "abc"}]
        body = {"messages": messages, "stream": True, **SAMPLING, **fields}
        asking = asyncio.create_task(self.world.client.post("/v1/chat/completions", json=body, headers=name))
        while (stream := self.world.api.streams.store.get("talk")) is None:  # noqa: ASYNC110 - it begins soon
            await asyncio.sleep(0.001)
        async for chunk in stream.read(0):
            for line in chunk.decode().splitlines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    yield self.events[-1]
        await asking


@contextlib.asynccontextmanager
async def watched(step_time: float = 0.003) -> AsyncIterator[WatchedStream]:
    async with contextlib.AsyncExitStack() as stack:
        links = list[Link]()

        async def through(address: str) -> str:
            links.append(await stack.enter_async_context(Link.to(address)))
            return str(links[0].address)

        found = await stack.enter_async_context(
            world(settings=SOON, step_time=step_time, through=through, seats=Seats(step_time=0.02))
        )
        yield WatchedStream(found, links[0], [])


async def test_waiting_the_text_is_the_targets_and_the_mode_is_told() -> None:
    async with watched() as found:
        async for event in found.stream(forerun={"fallback": "wait", "origins": True}):
            if len(found.text) >= 20 and not found.ours("why"):
                await found.cut()
            if event.get("forerun", {}).get("mode") == "waiting":
                await found.link.enable()
    assert found.text == alone(**SAMPLING)
    modes = found.ours("mode")
    assert "waiting" in modes
    assert modes[-1] in WITH_A_VERIFIER
    assert "device" not in {origin for _, origin in found.runs}
    assert found.ours("resumes")[-1] >= 1


async def test_failing_the_stream_ends_with_an_error_and_what_was_written_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "edge_client.formats.api_error")
    async with watched() as found:
        async for _ in found.stream(forerun={"fallback": "fail"}):
            if len(found.text) >= 20:
                await found.cut()
        before = await found.world.post_chat(forerun={"fallback": "fail"})
        await found.link.enable()
    assert (before.status_code, "retry-after" in before.headers) == (503, True)
    error = found.events[-1]["error"]
    assert error["code"] == "verifier_unavailable"
    logged = [each.getMessage() for each in caplog.records if each.name == "edge_client.formats.api_error"]
    assert [error["message"], before.json()["error"]["message"]] == [
        line.partition("verifier_unavailable: ")[2] for line in logged
    ]
    assert alone(**SAMPLING).startswith(found.text)


async def test_drafting_the_device_goes_on_marked_and_the_target_says_where_it_differs() -> None:
    async with watched() as found:
        was_cut = False
        async for _ in found.stream(forerun={"fallback": "draft", "origins": True}):
            if len(found.text) >= 20 and not was_cut:
                was_cut = True
                await found.cut()
            if sum(len(text) for text, origin in found.runs if origin == "device") >= 12:
                await found.link.enable()
    text, whole = found.text, alone(**SAMPLING)
    assert not any("replace" in why for why in found.ours("why")), "what a client has read stays"
    assert len(text) == SAMPLING["max_tokens"]
    assert "".join(run for run, _ in found.runs) == text
    texts = [run for run, origin in found.runs if origin == "device"]
    assert sum(map(len, texts)) == found.ours("device_tokens")[-1] >= 12
    assert found.ours("mode")[-1] in WITH_A_VERIFIER
    differences = found.ours("difference")
    if not differences:
        assert text == whole, "the device guessed all that the target would have written"
    for each in differences:
        place = each["place"]
        assert each["device"][0] != each["target"][0]
        assert text[place:].startswith(each["device"])
        assert after(text[:place]).startswith(each["target"]), "what the target writes there"
    last = text.rindex(texts[-1]) + len(texts[-1])
    assert text[last:] == after(text[:last]), "from there on the text is the target's own again"


def after(text: str) -> str:
    """What the tiny target writes after the prompt and this text, to the same greatest length."""
    prompt = Letters().tokenize("abc", True)
    written = [LETTERS.index(letter) for letter in text]
    whole = target_alone(prompt, SamplingParams(**SAMPLING), EOS, begun=written)
    return "".join(LETTERS[token] for token in whole[len(written) :])
