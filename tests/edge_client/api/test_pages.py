"""What the daemon tells about itself: the same numbers everywhere, and no word of any text."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from typing import Any

import pytest

from common.privacy import Privacy
from edge_client.api.daemon_status import PairStatus, StatusPage
from edge_client.api.endpoints import LONG_TEXT
from edge_client.core.effects import Fallback
from edge_client.texts.device_metrics import SECONDS, SUMS
from edge_client.texts.figures import SUMMED
from edge_client.texts.text_service import TextSettings
from tests.edge_client.api.world import Letters, events_of, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]


@pytest.mark.parametrize(
    ("why", "status", "text"), [("", 200, "ready\n"), ("no verifier answers", 503, "no verifier answers\n")]
)
async def test_health_is_of_the_process_and_readiness_of_what_it_needs(
    why: str, status: int, text: str
) -> None:
    async with world(not_ready=why) as found:
        health = await found.client.get("/healthz")
        ready = await found.client.get("/readyz")
    assert (health.status_code, health.text) == (200, "ok\n")
    assert (ready.status_code, ready.text) == (status, text)


def metrics_of(page: str) -> dict[str, float]:
    """Sample by name with its labels."""
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


async def test_response_metrics_and_log_tell_the_same_numbers(caplog: pytest.LogCaptureFixture) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    told: list[dict[str, Any]] = []
    with caplog.at_level(logging.INFO, "edge_client.texts.text_service"):
        async with world() as found:
            told.append((await found.chat(max_tokens=25, ignore_eos=True))["forerun"])
            streamed = await found.post_chat(stream=True, max_tokens=12, ignore_eos=True)
            told.append(events_of(streamed.text)[-1]["forerun"])
            told.append((await found.complete(max_tokens=9, forerun={"speculate": False}))["forerun"])
            page = (await found.client.get("/metrics")).text
    metrics = metrics_of(page)
    assert {family.name for family in text_string_to_metric_families(page)} >= {"forerun_edge_texts"}
    assert set(SUMS) | set(SECONDS) == set(SUMMED)
    for field, (name, _) in SUMS.items():
        assert metrics[f"{name}_total"] == sum(each[field] for each in told)
    for field, (name, _) in SECONDS.items():
        expected = sum(each[field] for each in told)
        assert metrics[f"{name}_total"] * 1e3 == pytest.approx(expected, abs=0.01)
    logged = [record.fields for record in caplog.records if record.message == "text ended"]  # type: ignore[attr-defined]
    assert len(logged) == len(told)
    for line, response in zip(logged, told, strict=True):
        for name in (*SUMMED, "mode", "acceptance_length", "estimated_speedup"):
            assert line[name] == pytest.approx(response[name], abs=0.5 if name.endswith("_ms") else 0.001)


class Slow(Letters):
    """Takes a while to read a text."""

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        time.sleep(0.1)
        return super().tokenize(text, parse_special)


@pytest.mark.parametrize("stream", [False, True])
async def test_times_begin_when_the_request_arrives_and_never_exceed_the_clients(stream: bool) -> None:
    async with world() as found:
        found.texts.words = Slow()
        asked_at = time.monotonic()
        answer = await found.post(stream=stream)
        took = (time.monotonic() - asked_at) * 1e3
    ours = (events_of(answer.text)[-1] if stream else answer.json())["forerun"]
    assert 100 <= ours["waited_ms"] <= ours["first_token_ms"] <= ours["elapsed_ms"] <= took
    rest = ours["elapsed_ms"] - ours["waited_ms"] - ours["queue_ms"] - ours["step_ms"]
    assert ours["other_ms"] == pytest.approx(rest, abs=0.01)


@pytest.mark.parametrize(
    ("told", "shown"), [("/srv/models/tiny", "tiny"), ("../tiny/", "tiny"), ("org/tiny", "org/tiny")]
)
async def test_a_models_id_holds_no_path_and_what_was_good_before_stays_good(told: str, shown: str) -> None:
    async with world() as found:
        described, found.verifier.description = found.verifier.description, None
        before = [each["id"] for each in (await found.client.get("/v1/models")).json()["data"]]
        found.verifier.description = described
        found.describe(model=told)
        after = [each["id"] for each in (await found.client.get("/v1/models")).json()["data"]]
        answers = [await found.post(model=each) for each in (*before, *after, told)]
    assert after[:2] == [f"{shown}@tiny-draft", shown]
    assert [answer.status_code for answer in answers] == [200] * len(answers)


@pytest.mark.parametrize(("base", "field"), [("", "content"), ("/v1", "prompt")])
async def test_texts_become_tokens_and_tokens_texts(base: str, field: str) -> None:
    async with world() as found:
        answer = await found.client.post(f"{base}/tokenize", json={field: "abc"})
        back = await found.client.post(f"{base}/detokenize", json={"tokens": [1, 2, 3]})
        wrong = await found.client.post(f"{base}/detokenize", json={"tokens": [1, 9]})
    assert answer.json() == {"tokens": [1, 2, 3], "count": 3}
    assert back.json() == {"content": "abc"}
    assert wrong.json()["error"]["param"] == "tokens"


async def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    """A conversation would be refused for ever, and nobody can mend what a tool has cut off."""
    content = b'"a\\ud83d \\uDe00\\uD83d \\ud83d\\ude00 \\\\ud800"'
    async with world(template="{{ messages[0].content }}") as found:
        body = b'{"messages": [{"role": "user", "content": %s}], "user": "\\udc00"}' % content
        told = await found.client.post("/apply-template", content=body)
        bytes_ = await found.client.post("/v1/completions", content=b'{"prompt": "\xed\xa0\x80"}')
    assert told.json() == {"prompt": "a\ufffd \ufffd\ufffd 😀 \\ud800"}
    assert (bytes_.status_code, bytes_.json()["error"]["code"]) == (400, "invalid_json")


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
        found.texts.words = words = Patient()
        asking = asyncio.create_task(found.client.post(path, json=body))
        await asyncio.to_thread(words.reads.wait, 30)
        other = await found.client.get("/healthz")
        words.may_go.set()
        answer = await asking
    assert (other.status_code, answer.status_code) == (200, 200)


class SlowAtLong(Patient):
    """Reads a short text at once."""

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        read = super().tokenize if len(text) > LONG_TEXT else Letters().tokenize
        return read(text, parse_special)


async def test_long_texts_leave_threads_to_short_ones() -> None:
    """There are 32 threads at most, and four more than processors."""
    async with world() as found:
        found.describe(max_positions=2**20, max_session_positions=2**20)
        found.texts.words = words = SlowAtLong()
        body = {"content": "a" * (LONG_TEXT + 1)}
        asking = [asyncio.create_task(found.client.post("/tokenize", json=body)) for _ in range(40)]
        await asyncio.to_thread(words.reads.wait, 30)
        async with asyncio.timeout(20):
            short = await found.client.post("/tokenize", json={"content": "abc"})
        for given_up in asking[:20]:  # their threads go on
            given_up.cancel()
        async with asyncio.timeout(20):
            again = await found.client.post("/tokenize", json={"content": "cba"})
        words.may_go.set()
        answers = await asyncio.gather(*asking[20:])
    assert {short.status_code, again.status_code, *(each.status_code for each in answers)} == {200}
    assert all(each.json()["count"] == LONG_TEXT + 1 for each in answers)


async def test_what_cannot_fit_is_refused_before_it_is_read() -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/tokenize", {"content": "a" * 100_000}),
        ("/detokenize", {"tokens": [1] * 513}),
        ("/v1/completions", {"prompt": "a" * 100_000}),
        ("/v1/completions", {"prompt": [1] * 513}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 100_000}]}),
    ]
    async with world() as found:
        found.texts.words = words = Patient()
        for path, body in bodies:
            answer = await found.client.post(path, json=body)
            assert not words.reads.is_set()
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


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


async def test_texts_under_way_are_told_without_their_words_and_with_their_privacy() -> None:
    """The verifier insists on no more than is asked for here: off is asked for, and padded holds."""
    async with world(settings=TextSettings(privacy=Privacy.OFF), step_time=0.01) as it:
        page = StatusPage(
            {"": PairStatus(it.texts, Fallback.WAIT, dict, list, lambda: True)},
            {},
            lambda: {"broker": ""},
            lambda: 0.0,
        )
        fields: dict[str, Any] = {"ignore_eos": True, "forerun": {"speculate": False}}
        text = asyncio.create_task(it.complete("abc", max_tokens=500, **fields))
        async with asyncio.timeout(30):
            while not (streams := page()["streams"]):  # noqa: ASYNC110 - the page is what announces it
                await asyncio.sleep(0.005)
        told = page()
        listed = (await it.client.get("/v1/sessions")).json()
        text.cancel()  # it would take 5 s
        await asyncio.wait({text})
        assert page()["streams"] == []
    assert told["privacy"] == "off"
    (one,) = streams
    assert (one["up"], one["down"], one["verifier"]) == ("padded", "padded", it.system.address)
    (session,) = listed["sessions"]
    assert (session["prompt"], session["verifier"]) == (3, it.system.address)
    assert "abc" not in json.dumps(listed)


@pytest.mark.parametrize("fallback", list(Fallback))
async def test_a_daemon_whose_draft_fits_no_verifier_is_not_ready_and_says_why(fallback: Fallback) -> None:
    why = "its token 5 is another"
    unfit = {"health": "unfit", "reachable": False, "why": why}
    async with world() as it:
        page = PairStatus(it.texts, fallback, dict, lambda: [unfit], lambda: True)
        assert why in page.why_not_ready()
