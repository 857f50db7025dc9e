"""A daemon that is stopped in the middle of a named stream goes on with it: byte for byte one stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge_client.formats.detokenizer import TextSpan
from edge_client.formats.message import ArgumentsAdded, CallBegun, ContentAdded, MessagePart, ReasoningAdded
from edge_client.texts.resume import Journal
from edge_client.texts.text_service import Orders
from lab.benchmarks.daemon import Reading
from lab.benchmarks.stream_forms import FORMS
from tests.edge_client.api.test_messages import assembled
from tests.edge_client.api.world import World, alone, events_of, world
from tests.edge_client.texts.test_resume import room

pytestmark = [pytest.mark.api, pytest.mark.grpc]

SAMPLED: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "seed": 3}
WHOLE = alone(max_tokens=60, **SAMPLED)
LONG: dict[str, Any] = {"max_tokens": 60, "stream": True, **SAMPLED}
OPTIONS: dict[str, Any] = {"options": {"num_predict": 60, **SAMPLED}}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}]}
PROMPT = {"prompt": "abc"}
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {**MESSAGES, **LONG, **USAGE},
    "/v1/completions": {**PROMPT, **LONG, **USAGE},
    "/v1/responses": {"input": "abc", "max_output_tokens": 60, "stream": True, **SAMPLED},
    "/v1/messages": {**MESSAGES, **LONG},
    "/api/chat": {**MESSAGES, **OPTIONS},
    "/api/generate": {**PROMPT, **OPTIONS},
}
COMPLETIONS = ("/v1/completions", "/api/generate")
"""Endpoints without calls."""

NAME = {"x-conversation-id": "talk"}


@contextlib.asynccontextmanager
async def daemon(folder: Path) -> AsyncIterator[World]:
    async with world(step_time=0.005, journal=Journal(folder)) as found:
        found.api.streams.go_on()
        yield found


async def post(found: World, path: str = CHAT, **fields: Any) -> httpx.Response:
    return await found.client.post(path, json={**BODIES[path], **fields}, headers=NAME)


async def again_of(found: World) -> httpx.Response:
    return await found.client.get("/v1/stream", params={"conv_id": "talk"})


async def begin(found: World, num_tokens: int, path: str = CHAT, **fields: Any) -> bytes:
    """Ask for a named stream; what came of it when it had so many tokens."""
    asking = asyncio.create_task(post(found, path, **fields))
    while not any(len(live.answer.tokens) >= num_tokens for live in found.texts.live.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)  # tokens are announced to the stream's readers alone
    asking.cancel()
    stream = found.api.streams.store.get("talk")
    assert stream is not None
    return b"".join(stream._from(0))


def filled(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def read(path: str, content: bytes) -> Reading:
    """A whole stream, whose events are numbered without a gap and which has one end."""
    reading = Reading("talk", FORMS[path])
    reading.feed(content)
    assert reading.done
    return reading


@pytest.mark.parametrize(
    ("path", "ours"),
    [(CHAT, {"origins": True}), (CHAT, {"reference": ["abcdef" * 10, "fed"]}), ("/api/chat", {})],
)
async def test_a_stream_goes_on_over_a_restart(tmp_path: Path, path: str, ours: dict[str, Any]) -> None:
    async with daemon(tmp_path) as found:
        before = await begin(found, 25, path, forerun=ours)
    async with daemon(tmp_path) as found:
        answer = await again_of(found)
    assert answer.content.startswith(before)
    assert answer.headers["content-type"].startswith(
        "application/x-ndjson" if path.startswith("/api/") else "text/event-stream"
    )
    told = read(path, answer.content).told()
    assert (told.text, told.finish) in {
        (WHOLE, reason) for reason in ("length", "max_tokens", "max_output_tokens")
    }


class LettersReader:
    """Reads "a" as reasoning, "b" as a whole call, and other letters as content."""

    def __init__(self) -> None:
        self.num_reasoning = 0
        self._num_calls = 0

    def feed(self, spans: Sequence[TextSpan]) -> list[MessagePart]:
        return [part for span in spans for letter in span.text for part in self._read(letter)]

    def finish(self, is_cut: bool = False) -> list[MessagePart]:
        return []

    def _read(self, letter: str) -> list[MessagePart]:
        if letter == "a":
            self.num_reasoning += 1
            return [ReasoningAdded((TextSpan("a", None),))]
        if letter == "b":
            self._num_calls += 1
            return [CallBegun(self._num_calls - 1, "f"), ArgumentsAdded(self._num_calls - 1, '{"x": 1}')]
        return [ContentAdded((TextSpan(letter, None),))]


@pytest.fixture
def _reads_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.api.response.MessageReader", lambda form: LettersReader())


def put_together(path: str, events: Sequence[Any]) -> Any:
    """The reasoning and the calls that a client puts together."""
    if path == "/v1/messages":
        return assembled([event for event in events if event["type"] != "ping"])
    if path == "/v1/responses":
        return events[-1]["response"]["output"]
    parts = [
        part
        for event in events
        for part in [event.get("message"), *(choice.get("delta") for choice in event.get("choices", ()))]
        if part
    ]
    thought = "".join(part.get("reasoning_content") or part.get("thinking") or "" for part in parts)
    return thought, [call for part in parts for call in part.get("tool_calls") or ()]


@pytest.mark.usefixtures("_reads_letters")
@pytest.mark.parametrize("path", BODIES)
async def test_all_parts_are_whole_and_once_wherever_the_daemon_was_killed(tmp_path: Path, path: str) -> None:
    """Each line of the file may have been the last."""
    async with daemon(tmp_path) as found:
        first = await post(found, path)
    reading = read(path, first.content)
    whole = put_together(path, reading.events)
    assert reading.told().text == "".join(letter for letter in WHOLE if letter not in "ab")
    num_calls = 0 if path in COMPLETIONS else WHOLE.count("b")
    assert len(re.findall("""["']x["']""", str(whole))) == num_calls
    (file,) = filled(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    for last in sorted({*range(2, len(lines), 7), *range(len(lines) - 3, len(lines) + 1)}):
        file.write_bytes(b"".join(lines[:last]))
        async with daemon(tmp_path) as found:
            again = await again_of(found)
        frames = (frame for line in lines[1:last] for frame in json.loads(line).get("f", ()))
        assert again.content.startswith("".join(frames).encode()), "what readers may have seen"
        reread = read(path, again.content)
        assert (reread.told(), put_together(path, reread.events)) == (reading.told(), whole)
        if last == len(lines):
            assert again.content == first.content


async def test_others_have_their_turn_while_a_text_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_client.texts.answer.PIECE", 5, raising=False)
    async with daemon(tmp_path) as found:
        await begin(found, 25)
    async with daemon(tmp_path) as found:
        counts = [0]
        async with asyncio.timeout(30):
            while counts[-1] < 25:
                await asyncio.sleep(0)
                counts.append(sum(len(live.answer.tokens) for live in found.texts.live.values()))
    assert max(after - before for before, after in pairwise(counts)) < 25


async def test_comments_count_over_a_restart_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers come back with a number of bytes, and comments are among them."""
    monkeypatch.setattr("edge_client.api.text_streams.KEEP_ALIVE_TIME", 0.001)
    async with daemon(tmp_path) as found:
        before = await begin(found, 20)
    monkeypatch.undo()
    async with daemon(tmp_path) as found:
        answer = await again_of(found)
    assert b": waiting" in before
    assert answer.content.startswith(before)
    events_of(answer.text)


HELD_BACK = f"{alone(max_tokens=9, ignore_eos=True, temperature=1.0, seed=3)[-2:]}ffffff"
"""The end of a text begins it, so that end is only sent when no further token comes."""


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 3, "max_tokens": 9, "stop": [HELD_BACK]},
        {"logprobs": True, "top_logprobs": 2, "max_tokens": 20, "stop": ["ffff", "edd", "eeb"]},
    ],
    ids=["choices", "log probabilities"],
)
async def test_text_that_was_held_back_comes_once_wherever_the_daemon_was_killed(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with daemon(tmp_path) as found:
        first = await post(found, **fields)
    (file,) = filled(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    for last in range(2, len(lines) + 1):
        file.write_bytes(b"".join(lines[:last]))
        async with daemon(tmp_path) as found:
            again = await again_of(found)
        assert (told(again), logprobs_of(again)) == (told(first), logprobs_of(first))


async def test_texts_of_several_prompts_go_on_over_a_restart(tmp_path: Path) -> None:
    prompts = ["abc", "fed"]
    async with daemon(tmp_path) as found:
        before = await begin(found, 5, "/v1/completions", prompt=prompts)
    async with daemon(tmp_path) as found:
        answer = await again_of(found)
    assert answer.content.startswith(before)
    events = events_of(answer.text)
    choices = [choice for event in events for choice in event["choices"]]
    for at, prompt in enumerate(prompts):
        text = "".join(choice["text"] for choice in choices if choice["index"] == at)
        assert text == alone(prompt, max_tokens=60, **SAMPLED | {"seed": SAMPLED["seed"] + at})
    assert events[-1]["usage"]["prompt_tokens"] == 6


def logprobs_of(answer: httpx.Response) -> list[Any]:
    choices = (choice for event in events_of(answer.text) for choice in event["choices"])
    return [entry for each in choices for entry in (each["logprobs"] or {}).get("content", ())]


def told(answer: httpx.Response) -> tuple[dict[int, str], list[tuple[int, str]], list[int]]:
    """The text of each choice, its end, and the tokens in usages."""
    events = events_of(answer.text)
    texts, ends = dict[int, str](), list[tuple[int, str]]()
    for choice in (choice for event in events for choice in event["choices"]):
        at = choice["index"]
        assert at not in [ended for ended, _ in ends]  # nothing comes after an end
        texts[at] = texts.get(at, "") + choice["delta"].get("content", "")
        if choice["finish_reason"]:
            ends.append((at, choice["finish_reason"]))
    usages = [event["usage"]["completion_tokens"] for event in events if event.get("usage")]
    return texts, sorted(ends), usages


async def test_an_error_that_ended_a_stream_stays_its_end(tmp_path: Path) -> None:
    async with daemon(tmp_path) as found:
        found.texts.orders = Orders.HALT
        first = await post(found)
    async with daemon(tmp_path) as found:
        again = await again_of(found)
    assert b'"error"' in first.content
    assert again.content == first.content


async def test_a_stream_that_had_ended_is_read_again_after_a_restart(tmp_path: Path) -> None:
    async with daemon(tmp_path) as found:
        first = await post(found)
    async with daemon(tmp_path) as found:
        again = await again_of(found)
        assert not found.texts.live
        await found.client.delete("/v1/stream", params={"conv_id": "talk"})
        assert not filled(tmp_path)
        await begin(found, 5)
        await found.client.delete("/v1/stream", params={"conv_id": "talk"})
    assert again.content == first.content
    async with daemon(tmp_path) as found:
        gone = await again_of(found)
    assert gone.status_code == 404, "a deleted stream does not come back"


async def test_a_stream_that_is_kept_gets_no_error_when_the_daemon_stops(tmp_path: Path) -> None:
    async with daemon(tmp_path) as found:
        await begin(found, 20)
        stream = found.api.streams.store.get("talk")
        assert stream is not None
        assert stream.task is not None
        found.api.stop()
        await asyncio.wait([stream.task])
        assert b"daemon_stopping" not in b"".join(stream._from(0))
        assert not stream.done, "its readers come back to the next daemon"


@pytest.mark.parametrize("most", [0, 4000])
async def test_a_text_is_whole_on_a_full_disk_and_its_name_is_free_again(tmp_path: Path, most: int) -> None:
    async with daemon(tmp_path) as found:
        for _ in range(2):
            with room(most):
                answer = await post(found)
            reading = read(CHAT, answer.content)
            assert reading.told().text == WHOLE
            notes = [note for event in reading.events for note in event.get("forerun", {}).get("notes", [])]
            assert sum("kept on disk" in note for note in notes) == 1


async def test_a_file_that_is_none_of_ours_leaves_its_name_free(tmp_path: Path) -> None:
    async with daemon(tmp_path) as found:
        await begin(found, 5)
    (file,) = filled(tmp_path)
    file.write_bytes(file.read_bytes().replace(b'"writer": "split"', b'"writer": "nobody"'))
    async with daemon(tmp_path) as found:
        answer = await post(found)
    assert answer.status_code == 200
