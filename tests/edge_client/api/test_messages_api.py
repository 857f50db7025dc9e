"""`/v1/messages` of a daemon: texts, counts, models, errors, and streams that go on over restarts."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from edge_client.api.security import Gate
from edge_client.texts.text_service import Orders
from tests.edge_client.api.test_messages import assembled
from tests.edge_client.api.world import World, alone, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

PATH = "/v1/messages"
USER = {"role": "user", "content": "abc"}


async def post(found: World, path: str = PATH, **fields: Any) -> httpx.Response:
    body = {"model": "", "messages": [USER], "max_tokens": 20, "temperature": 0, **fields}
    return await found.client.post(path, json=body)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, whose names must be their types."""
    frames = [frame.splitlines() for frame in text.split("\n\n") if frame]
    events = [json.loads(frame[-1].removeprefix("data: ")) for frame in frames]
    assert [frame[-2] for frame in frames] == [f"event: {event['type']}" for event in events]
    return [event for event in events if event["type"] != "ping"]


async def test_more_tokens_than_fit_are_asked_for_by_agents_and_end_at_the_context() -> None:
    """Claude Code asks for 128,000."""
    async with world(num_slots=100) as found:
        body = (await post(found, max_tokens=128_000, ignore_eos=True)).json()
        found.describe(max_text_tokens=30)
        bounded = (await post(found, max_tokens=128_000, ignore_eos=True)).json()
        long = await post(found, messages=[{"role": "user", "content": "abc" * 50}])
    assert body["usage"]["output_tokens"] == 100 - 16 - 3
    assert body["stop_reason"] == "model_context_window_exceeded"
    assert bounded["usage"]["output_tokens"] == 30
    assert long.status_code == 400
    assert long.json()["error"]["message"].startswith("prompt is too long: ")


async def test_tokens_are_counted_after_the_template_also_if_they_are_too_many() -> None:
    async with world(template="ab{% for each in messages %}{{ each.content }}c{% endfor %}") as found:
        answer = await post(found, path=f"{PATH}/count_tokens", max_tokens=None)
        long = [{"role": "user", "content": "abc" * 300}]
        more = await post(found, path=f"{PATH}/count_tokens", messages=long)
        wrong = await post(found, path=f"{PATH}/count_tokens", messages=[])
    assert answer.json() == {"input_tokens": 6}
    assert more.json() == {"input_tokens": 903}
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "headers", "size", "status", "kind"),
    [
        (PATH, {}, 0, 401, "authentication_error"),
        (PATH, {"x-api-key": "secret"}, 5000, 413, "request_too_large"),
        (f"{PATH}/batches", {"x-api-key": "secret"}, 0, 404, "not_found_error"),
        (PATH, {"x-api-key": "secret"}, 0, 400, "invalid_request_error"),
    ],
)  # fmt: skip
async def test_errors_are_in_anthropics_shape(
    path: str, headers: dict[str, str], size: int, status: int, kind: str
) -> None:
    async with world(Gate(token="secret"), headers=headers, max_body_bytes=4000) as found:
        answer = await found.client.post(path, content=b"x" * size)
    told = answer.json()
    assert (answer.status_code, told["type"], told["error"]["type"]) == (status, "error", kind)
    assert told["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_of_a_text_is_anthropics_too(stream: bool) -> None:
    async with world() as found:
        unknown = await post(found, model="gpt-4", stream=stream)
        found.texts.orders = Orders.HALT
        halted = await post(found, stream=stream)
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    error = events_of(halted.text)[-1] if stream else halted.json()
    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")
    assert halted.status_code == (200 if stream else 503)


async def test_a_silent_stream_is_kept_alive_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claude Code gives a stream up that is silent for too long, and counts events only."""
    monkeypatch.setattr("edge_client.api.text_streams.KEEP_ALIVE_TIME", 0.001)
    async with world(step_time=0.02) as found:
        answer = await post(found, stream=True)
    assert 'event: ping\ndata: {"type": "ping"}\n\n' in answer.text
    assert [each["given"] for each in assembled(events_of(answer.text))] == [alone()]
