"""What the daemon tells about itself: the same numbers everywhere, and no word of any text."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from edge_client.daemon.totals import SUMMED
from tests.edge_client.api.world import Letters, World, events_of, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]


async def test_health_is_of_the_process_and_readiness_of_what_it_needs() -> None:
    async with world() as found:
        health = await found.client.get("/healthz")
        ready = await found.client.get("/readyz")
    assert (health.status_code, health.text) == (200, "ok\n")
    assert (ready.status_code, ready.text) == (200, "ready\n")


async def test_not_ready_says_why() -> None:
    async with world(not_ready="no verifier answers") as found:
        ready = await found.client.get("/readyz")
        health = await found.client.get("/healthz")
    assert (ready.status_code, ready.text) == (503, "no verifier answers\n")
    assert health.status_code == 200


def metrics_of(page: str) -> dict[str, float]:
    """Sample by name with its labels."""
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


IN_METRICS = {
    "tokens": "forerun_edge_tokens_total",
    "accepted": "forerun_edge_spec_decode_num_accepted_tokens_total",
    "proposed": "forerun_edge_spec_decode_num_draft_tokens_total",
    "target_steps": "forerun_edge_spec_decode_num_drafts_total",
    "wasted": "forerun_edge_wasted_tokens_total",
    "device_tokens": "forerun_edge_device_tokens_total",
    "bytes_up": "forerun_edge_bytes_up_total",
    "bytes_down": "forerun_edge_bytes_down_total",
    "resumes": "forerun_edge_resumes_total",
}
IN_SECONDS = {
    "elapsed_ms": "forerun_edge_text_seconds_total",
    "draft_ms": "forerun_edge_draft_seconds_total",
    "queue_ms": "forerun_edge_verifier_queue_seconds_total",
    "step_ms": "forerun_edge_verifier_step_seconds_total",
    "network_ms": "forerun_edge_network_seconds_total",
    "waited_ms": "forerun_edge_wait_seconds_total",
}


async def test_response_metrics_and_log_tell_the_same_numbers(caplog: pytest.LogCaptureFixture) -> None:
    told: list[dict[str, Any]] = []
    with caplog.at_level(logging.INFO, "edge_client.daemon.device"):
        async with world() as found:
            told.append((await found.chat(max_tokens=25, ignore_eos=True))["forerun"])
            streamed = await found.post_chat(stream=True, max_tokens=12, ignore_eos=True)
            told.append(events_of(streamed.text)[-1]["forerun"])
            told.append((await found.complete(max_tokens=9, forerun={"speculate": False}))["forerun"])
            metrics = metrics_of((await found.client.get("/metrics")).text)
    assert set(IN_METRICS) | set(IN_SECONDS) == set(SUMMED)
    for field, name in IN_METRICS.items():
        assert metrics[name] == sum(each[field] for each in told)
    for field, name in IN_SECONDS.items():
        assert metrics[name] * 1e3 == pytest.approx(sum(each[field] for each in told), abs=0.01)
    logged = [record.fields for record in caplog.records if record.message == "text ended"]  # type: ignore[attr-defined]
    assert len(logged) == len(told)
    for line, response in zip(logged, told, strict=True):
        for name in (*IN_METRICS, *IN_SECONDS, "mode", "acceptance_length", "estimated_speedup"):
            assert line[name] == pytest.approx(response[name], abs=0.5 if name.endswith("_ms") else 0.001)


async def test_metrics_parse_as_prometheus_reads_them() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    async with world() as found:
        await found.chat()
        page = await found.client.get("/metrics")
    names = {family.name for family in text_string_to_metric_families(page.text)}
    assert {"forerun_edge_tokens", "forerun_edge_texts", "forerun_edge_verifier_reachable"} <= names


async def test_models_are_the_pair_and_each_of_its_halves() -> None:
    async with world() as found:
        models = (await found.client.get("/v1/models")).json()
        one = (await found.client.get("/v1/models/tiny@tiny-draft")).json()
    assert [(model["id"], model["meta"]["writer"]) for model in models["data"]] == [
        ("tiny@tiny-draft", "split"),
        ("tiny", "target"),
        ("tiny-draft", "draft"),
    ]
    assert one == models["data"][0]
    assert one["meta"]["max_positions"] == 512


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
@pytest.mark.parametrize("field", ["content", "prompt"])
async def test_texts_become_tokens(path: str, field: str) -> None:
    async with world() as found:
        answer = await found.client.post(path, json={field: "abc"})
    assert answer.json() == {"tokens": [1, 2, 3], "count": 3}


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
async def test_tokens_become_texts(path: str) -> None:
    async with world() as found:
        answer = await found.client.post(path, json={"tokens": [1, 2, 3]})
        wrong = await found.client.post(path, json={"tokens": [1, 9]})
    assert answer.json() == {"content": "abc"}
    assert wrong.json()["error"]["param"] == "tokens"


@pytest.mark.parametrize("half", [b"\\ud800", b"\\uDFff", b"\\udc00\\ud800", b"\xed\xa0\x80"])
@pytest.mark.parametrize("path", ["/tokenize", "/apply-template", "/v1/completions"])
async def test_half_a_surrogate_pair_is_no_text(path: str, half: bytes) -> None:
    messages = b'"messages": [{"role": "user", "content": "%s"}]' % half
    body = {
        "/tokenize": b'{"content": "%s"}' % half,
        "/apply-template": b"{%s}" % messages,
        "/v1/completions": b'{"prompt": "abc", "max_tokens": 2, "user": "%s", "stop": "%s"}' % (half, half),
    }[path]
    async with world() as found:
        answer = await found.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


async def test_both_halves_of_a_surrogate_pair_are_a_character() -> None:
    body = b'{"prompt": "abc", "max_tokens": 2, "user": "\\ud83d\\ude00 \\\\ud800"}'
    async with world() as found:
        answer = await found.client.post("/v1/completions", content=body)
    assert answer.status_code == 200


class Patient(Letters):
    """Reads a text only when something else was answered meanwhile."""

    def __init__(self) -> None:
        self.reads, self.may_go = threading.Event(), threading.Event()

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        self._wait()
        return super().tokenize(text, parse_special)

    def piece(self, token: int) -> bytes:
        self._wait()
        return super().piece(token)

    def _wait(self) -> None:
        self.reads.set()
        assert self.may_go.wait(30), "the event loop stands still"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "abc"}),
        ("/detokenize", {"tokens": [1, 2]}),
        ("/v1/completions", {"prompt": "abc", "max_tokens": 1}),
    ],
)
async def test_others_are_answered_while_a_long_text_is_read(path: str, body: dict[str, Any]) -> None:
    async with world() as found:
        found.device.words = words = Patient()
        asking = asyncio.create_task(found.client.post(path, json=body))
        await asyncio.to_thread(words.reads.wait, 30)
        other = await found.client.get("/healthz")
        words.may_go.set()
        answer = await asking
    assert (other.status_code, answer.status_code) == (200, 200)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a" * 100_000}),
        ("/detokenize", {"tokens": [1] * 513}),
        ("/v1/completions", {"prompt": "a" * 100_000}),
        ("/v1/completions", {"prompt": [1] * 513}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 100_000}]}),
    ],
)
async def test_what_cannot_fit_is_refused_before_it_is_read(path: str, body: dict[str, Any]) -> None:
    async with world() as found:
        found.device.words = words = Patient()
        answer = await found.client.post(path, json=body)
        assert not words.reads.is_set()
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_no_word_of_a_text_is_in_log_status_or_metrics(caplog: pytest.LogCaptureFixture) -> None:
    """A canary: the prompt's letters stand in a pattern that nothing else has."""
    canary = "fedcbafedcbafedcba"
    with caplog.at_level(logging.DEBUG):
        async with world() as found:
            answers = [
                await found.post_chat(canary, stream=True),
                await found.post_chat(canary, user="somebody"),
                await found.post(canary, temperature=-1),
                await found.post(canary, stop=[canary], seed=1),
                await found.client.post("/v1/chat/completions", content=f'{{"messages": "{canary}'.encode()),
            ]
            pages = [await found.client.get(path) for path in ("/v1/status", "/metrics", "/v1/sessions")]
    assert all(answer.status_code in (200, 400) for answer in answers)
    logs = "\n".join(f"{record.getMessage()} {record.__dict__.get('fields')}" for record in caplog.records)
    ours = "\n".join(line for line in logs.splitlines() if "HTTP Request" not in line)
    for told in (ours, *(page.text for page in pages)):
        assert canary not in told
        assert json.dumps(Letters().tokenize(canary, True))[1:-1] not in told


async def test_texts_under_way_are_listed_without_their_words() -> None:
    async with world(step_time=0.01) as found:
        listed = await listed_while_writing(found)
    (session,) = listed["sessions"]
    assert session["prompt"] == 3
    assert session["verifier"] == found.system.address
    assert session["mode"] == "ahead"
    assert "abc" not in json.dumps(listed)


async def listed_while_writing(found: World) -> dict[str, Any]:
    import asyncio

    writing = asyncio.create_task(found.chat(max_tokens=60, ignore_eos=True))
    while not found.device.live:  # noqa: ASYNC110 - nothing announces it to outsiders
        await asyncio.sleep(0.001)
    listed: dict[str, Any] = (await found.client.get("/v1/sessions")).json()
    await writing
    return listed
