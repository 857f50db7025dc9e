"""Chat completions: the target's own text in OpenAI's shape, whole and streamed, every option honoured."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from cloud_verifier.core.quotas import Quota, Quotas
from common.sampling import SamplingDefaults
from edge_client.api.service import Defaults
from edge_client.channel import VerifierChannel
from tests.edge_client.api.world import OneVerifier, World, alone, events_of, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]


async def test_the_text_is_the_targets() -> None:
    async with world() as found:
        body = await found.chat()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["created"] == 1_700_000_000
    assert body["model"] == "tiny@tiny-draft"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": alone(), "refusal": None}
    assert choice["index"] == 0
    assert choice["logprobs"] is None


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.8, "seed": 7},
        {"temperature": 1.2, "seed": 7, "top_k": 3},
        {"temperature": 1.0, "seed": 1, "top_p": 0.7},
        {"temperature": 1.0, "seed": 1, "min_p": 0.2},
        {"temperature": 1.0, "seed": 2, "presence_penalty": 1.5},
        {"temperature": 1.0, "seed": 2, "frequency_penalty": -1.0},
        {"temperature": 1.0, "seed": 2, "repetition_penalty": 1.3},
        {"temperature": 0.0, "logit_bias": ((3, 5.0), (4, -100.0))},
        {"temperature": 0.5, "seed": 2**63 + 5},
    ],
)
async def test_sampling_is_honoured(sampling: dict[str, Any]) -> None:
    fields = dict(sampling)
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in fields["logit_bias"]}
    async with world() as found:
        body = await found.chat(**fields)
    assert body["choices"][0]["message"]["content"] == alone(**sampling)


ADVICE = SamplingDefaults(temperature=1.2, top_k=4, top_p=0.9, min_p=0.05, repetition_penalty=1.4)


@contextlib.asynccontextmanager
async def advised(advice: SamplingDefaults = ADVICE, **more: Any) -> AsyncIterator[World]:
    """A world whose target's makers advise these values."""
    async with world(**more) as found:
        verifier = found.device.verifiers
        assert isinstance(verifier, OneVerifier)
        assert verifier.description is not None
        verifier.description = replace(verifier.description, sampling_defaults=advice)
        yield found


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"temperature": 0.8},
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
        {"temperature": 0.0, "repetition_penalty": 1.0},
    ],
    ids=str,
)
async def test_what_a_request_leaves_out_is_as_the_targets_makers_advise(named: dict[str, float]) -> None:
    async with advised() as found:
        fields: dict[str, Any] = {"temperature": None, "seed": 5, "ignore_eos": True, **named}
        body = await found.chat(**fields)
    told = {name: value for name, value in ADVICE.advised.items() if name not in named}
    sampling = {**ADVICE.advised, **named, "seed": 5, "ignore_eos": True}
    assert body["choices"][0]["message"]["content"] == alone(**sampling)
    assert body["forerun"].get("sampling_defaults", {}) == told


async def test_the_same_penalty_by_its_other_name_counts_as_named() -> None:
    async with advised() as found:
        body = await found.chat(repeat_penalty=1.0)
    assert "repetition_penalty" not in body["forerun"]["sampling_defaults"]


async def test_the_targets_defaults_can_be_switched_off_and_are_none_of_the_drafts() -> None:
    async with advised() as found:
        cards = (await found.client.get("/v1/models")).json()["data"]
        draft = await found.chat(model="tiny-draft", temperature=None, seed=5)
    async with advised(defaults=Defaults(draft_name="tiny-draft", sampling=False)) as found:
        body = await found.chat(temperature=None, seed=5)
    assert [card["meta"]["sampling_defaults"] for card in cards[:3]] == [ADVICE.advised, ADVICE.advised, {}]
    assert "sampling_defaults" not in draft["forerun"]
    assert "sampling_defaults" not in body["forerun"]
    assert body["choices"][0]["message"]["content"] == alone(temperature=1.0, seed=5)


async def test_the_same_seed_gives_the_same_text_and_none_a_new_one() -> None:
    async with world() as found:
        seeded = [await found.chat(temperature=1.0, seed=5) for _ in range(2)]
        free = [await found.chat(temperature=2.0, max_tokens=40, ignore_eos=True) for _ in range(2)]
    assert seeded[0]["choices"] == seeded[1]["choices"]
    assert free[0]["forerun"]["seed"] != free[1]["forerun"]["seed"]
    assert free[0]["choices"] != free[1]["choices"]
    assert all(0 <= each["forerun"]["seed"] < 2**53 for each in free)  # which JavaScript reads as they are
    again = alone(temperature=2.0, max_tokens=40, ignore_eos=True, seed=free[0]["forerun"]["seed"])
    assert free[0]["choices"][0]["message"]["content"] == again


async def test_a_seed_may_be_negative_as_openais_are() -> None:
    async with world() as found:
        body = await found.chat(temperature=1.0, seed=-1)
    assert body["choices"][0]["message"]["content"] == alone(temperature=1.0, seed=2**64 - 1)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_the_number_of_tokens_is_bounded(name: str) -> None:
    async with world() as found:
        fields: dict[str, Any] = {"ignore_eos": True, "max_tokens": None, name: 7}
        body = await found.chat(**fields)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}


async def test_without_a_number_a_text_may_fill_the_context() -> None:
    async with world() as found:
        body = await found.chat(ignore_eos=True, max_tokens=None)
    assert body["usage"]["total_tokens"] == 512
    assert body["choices"][0]["finish_reason"] == "length"


async def test_without_a_number_a_text_may_fill_the_slots_where_there_are_fewer_than_positions() -> None:
    async with world(num_slots=100) as found:
        body = await found.chat(ignore_eos=True, max_tokens=None)
        card = (await found.client.get("/v1/models")).json()["data"][0]["meta"]
        over = await found.post_chat(max_tokens=card["max_positions"])
    assert body["usage"]["total_tokens"] == card["max_positions"] == 100 - 16
    assert body["choices"][0]["finish_reason"] == "length"
    assert (over.status_code, over.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_verifier_that_does_not_tell_what_it_admits_is_taken_at_its_positions() -> None:
    async with world() as found:
        verifier = found.device.verifiers
        assert isinstance(verifier, OneVerifier)
        assert verifier.description is not None
        told = replace(verifier.description, max_session_positions=None, max_positions=10**6)
        verifier.description = told  # and it has 4096 slots and 512 positions
        body = await found.chat(ignore_eos=True, max_tokens=100)
        refused = await found.post_chat(max_tokens=None)
        verifier.description = replace(told, max_positions=512)
        whole = await found.chat(ignore_eos=True, max_tokens=None)
    assert body["usage"]["completion_tokens"] == 100
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert whole["usage"]["total_tokens"] == 512


async def test_a_quota_bounds_texts_that_name_no_length() -> None:
    async with world() as found:
        found.system.worker.set_quotas(Quotas(default=Quota(max_tokens=30)))
        verifier = found.device.verifiers
        assert isinstance(verifier, OneVerifier)
        async with VerifierChannel(found.system.address) as channel:
            told = await channel.describe()
        assert verifier.description is not None
        verifier.description = replace(verifier.description, max_text_tokens=told.max_text_tokens)
        body = await found.chat(ignore_eos=True, max_tokens=None)
        over = await found.post_chat(max_tokens=31)
        drafted = await found.chat(model="tiny-draft", ignore_eos=True, max_tokens=31)
    assert drafted["usage"]["completion_tokens"] == 31, "no verifier writes it"
    assert body["usage"]["completion_tokens"] == 30
    assert (over.status_code, over.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("as_list", [False, True])
async def test_a_text_ends_before_a_stop_string(length: int, as_list: bool) -> None:
    whole = alone(ignore_eos=True, max_tokens=60, temperature=1.0, seed=4)
    stop = whole[10 : 10 + length]
    async with world() as found:
        body = await found.chat(
            ignore_eos=True, max_tokens=60, temperature=1.0, seed=4, stop=[stop, "zz"] if as_list else stop
        )
        usual = await found.chat(ignore_eos=True, max_tokens=60, temperature=1.0, seed=4)
    assert usual["choices"][0]["message"]["content"] == whole
    assert body["choices"][0]["message"]["content"] == whole[: whole.find(stop)]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["forerun"]["stopped_by"] == stop


async def test_stop_tokens_end_a_text_and_are_none_of_it() -> None:
    whole = alone(ignore_eos=True)
    async with world() as found:
        body = await found.chat(stop_token_ids=[4], ignore_eos=True)
    assert body["choices"][0]["message"]["content"] == whole.split("d")[0]


async def test_who_asks_a_daemon_that_has_just_begun_waits_for_the_targets_first_word() -> None:
    messages = [{"role": "user", "content": "abc"}]
    asked = {"model": "tiny@tiny-draft", "messages": messages, "max_tokens": 20, "temperature": 0}
    async with world() as found:
        usual = (await found.client.post("/v1/chat/completions", json=asked)).json()
        verifier = found.device.verifiers
        assert isinstance(verifier, OneVerifier)
        described, verifier.description = verifier.description, None
        asking = asyncio.create_task(found.client.post("/v1/chat/completions", json=asked))
        while not verifier.num_waiting:  # noqa: ASYNC110  # a count announces nothing
            await asyncio.sleep(0)
        verifier.description = described
        verifier.spoken.set()
        answer = await asking
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == usual["choices"]
    assert answer.json()["model"] == "tiny@tiny-draft"


async def test_messages_go_through_the_targets_template() -> None:
    messages = [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        {"role": "assistant", "content": "e"},
        {"role": "user", "content": "f", "name": "somebody"},
    ]
    async with world() as found:
        answer = await found.client.post(
            "/v1/chat/completions", json={"messages": messages, "max_tokens": 9, "temperature": 0}
        )
        prompt = await found.client.post("/v1/apply-template", json={"messages": messages})
    assert prompt.json() == {"prompt": "abcdef"}
    assert answer.json()["choices"][0]["message"]["content"] == alone("abcdef", max_tokens=9)


async def test_a_developers_message_is_the_systems() -> None:
    template = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    async with world(template=template) as found:
        answer = await found.client.post(
            "/v1/apply-template", json={"messages": [{"role": "developer", "content": "be brief"}]}
        )
    assert answer.json() == {"prompt": "be brief"}


async def test_a_stream_brings_the_same_text_in_openais_order() -> None:
    async with world() as found:
        answer = await found.post_chat(stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    first, *middle, last, usage = events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in middle)
    assert text == alone()
    assert all(event["choices"][0]["finish_reason"] is None for event in (first, *middle))
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] in ("stop", "length")
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 3
    assert {event["id"] for event in events} == {first["id"]}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


async def test_usage_stands_in_its_own_chunk_only_if_asked_for() -> None:
    async with world() as found:
        without = events_of((await found.post_chat(stream=True)).text)
        with_it = events_of((await found.post_chat(stream=True, stream_options={"include_usage": True})).text)
    assert not any("usage" in event for event in without)
    assert ["usage" in event for event in with_it] == [False] * (len(with_it) - 1) + [True]


async def test_events_are_numbered() -> None:
    async with world() as found:
        answer = await found.post_chat(stream=True)
    numbers = [int(line[4:]) for line in answer.text.splitlines() if line.startswith("id: ")]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_the_last_chunk_says_how_it_went() -> None:
    async with world() as found:
        events = events_of((await found.post_chat(stream=True, max_tokens=30, ignore_eos=True)).text)
    ours = events[-1]["forerun"]
    assert ours["mode"] == "ahead"
    assert ours["tokens"] == 30
    assert 0 < ours["target_steps"] <= 30
    assert ours["accepted"] + ours["target_steps"] >= 30
    assert ours["proposed"] == ours["accepted"] + ours["wasted"]
    assert ours["bytes_up"] > 0
    assert ours["bytes_down"] > 0
    assert ours["rtt_p50_ms"] > 0
    assert ours["elapsed_ms"] >= ours["first_token_ms"] > 0


async def test_who_wrote_each_token_is_told_if_asked_for() -> None:
    async with world() as found:
        body = await found.chat(max_tokens=30, ignore_eos=True, forerun={"origins": True})
        events = events_of(
            (
                await found.post_chat(stream=True, max_tokens=30, ignore_eos=True, forerun={"origins": True})
            ).text
        )
    runs = body["forerun"]["origins"]
    assert "".join(text for text, _, _ in runs) == body["choices"][0]["message"]["content"]
    counts = {origin: sum(n for _, each, n in runs if each == origin) for origin in ("drafted", "server")}
    assert counts["drafted"] == body["forerun"]["accepted"]
    assert sum(counts.values()) == 30
    streamed = [run for event in events for run in event.get("forerun", {}).get("origins", [])]
    assert "".join(text for text, _, _ in streamed) == "".join(text for text, _, _ in runs)


async def test_speculation_can_be_turned_off_for_one_request() -> None:
    async with world() as found:
        body = await found.chat(max_tokens=30, ignore_eos=True, forerun={"speculate": False})
    assert body["choices"][0]["message"]["content"] == alone(max_tokens=30, ignore_eos=True)
    assert body["forerun"]["mode"] == "server-only"
    assert body["forerun"]["proposed"] == 0
    assert body["forerun"]["target_steps"] == 30


@pytest.mark.parametrize("policy", ["tree", "chain", "sync:4", "off", "adaptive"])
async def test_any_growth_policy_gives_the_same_text(policy: str) -> None:
    async with world() as found:
        body = await found.chat(max_tokens=30, ignore_eos=True, forerun={"policy": policy, "recall": False})
    assert body["choices"][0]["message"]["content"] == alone(max_tokens=30, ignore_eos=True)


async def test_a_pair_can_be_asked_for_as_target_only_or_as_draft_only() -> None:
    async with world() as found:
        target = await found.chat(model="tiny", max_tokens=30, ignore_eos=True)
        draft = await found.chat(model="tiny-draft", max_tokens=30, ignore_eos=True)
    assert target["forerun"]["mode"] == "server-only"
    assert target["choices"][0]["message"]["content"] == alone(max_tokens=30, ignore_eos=True)
    assert draft["forerun"]["mode"] == "device-only"
    assert draft["forerun"]["device_tokens"] == 30
    assert draft["forerun"]["target_steps"] == 0
    assert [origin for _, origin, _ in draft["forerun"]["origins"]] == ["device"]


async def test_texts_run_side_by_side() -> None:
    import asyncio

    async with world() as found:
        bodies = await asyncio.gather(
            *(found.chat(temperature=1.0, seed=seed, ignore_eos=True, max_tokens=40) for seed in range(8))
        )
    for seed, body in enumerate(bodies):
        expected = alone(temperature=1.0, seed=seed, ignore_eos=True, max_tokens=40)
        assert body["choices"][0]["message"]["content"] == expected
