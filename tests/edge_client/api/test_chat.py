"""Completions: the target's own text in OpenAI's shape, whole and streamed, every option honoured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cloud_verifier.core.quotas import Quota, Quotas
from common.errors import UserError
from common.sampling import SamplingDefaults
from edge_client.api.endpoints import Defaults
from edge_client.network.channel import VerifierChannel
from edge_client.texts.text_service import TextSettings
from tests.edge_client.api.world import Letters, OneVerifier, Seats, World, alone, events_of, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]


NEUTRAL: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "store": False,
    "service_tier": "auto",
    "user": "somebody",
    "top_k": -1,
    "top_p": 1,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "response_format": {"type": "text"},
    "max_tokens": 20.0,
    **dict.fromkeys(("stop", "seed", "logit_bias", "stream", "stream_options", "forerun")),
}
"""What clients send though it changes nothing."""


async def test_a_chat_is_the_targets_text_in_openais_shape() -> None:
    async with world() as found:
        body = await found.chat(max_tokens=None, max_completion_tokens=7, ignore_eos=True)
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["created"] == 1_700_000_000
    assert body["model"] == "tiny@tiny-draft"
    text = alone(max_tokens=7, ignore_eos=True)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    assert body["choices"] == [{"index": 0, "logprobs": None, "finish_reason": "length", "message": message}]
    ours, usage = body["forerun"], body["usage"]
    assert [usage[f"{name}_tokens"] for name in ("prompt", "completion", "total")] == [3, 7, 10]
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": ours["accepted"],
        "rejected_prediction_tokens": ours["wasted"],
    }


async def test_a_completions_prompt_is_text_or_tokens() -> None:
    async with world() as found:
        body = await found.complete(**NEUTRAL)
        for prompt in ("abc", ["abc"], [1, 2, 3], [[1, 2, 3]]):
            body = await found.complete(prompt, **NEUTRAL)
            assert (body["choices"][0]["text"], body["usage"]["prompt_tokens"]) == (alone(), 3)
        usual = await found.complete(max_tokens=None, ignore_eos=True)
        events = events_of((await found.post(stream=True)).text)
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert usual["usage"]["completion_tokens"] == 16
    assert "".join(event["choices"][0]["text"] for event in events) == alone()
    assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")


SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.8, "seed": 7},
    {"temperature": 1.2, "seed": 7, "top_k": 3},
    {"temperature": 1.0, "seed": 1, "top_p": 0.7},
    {"temperature": 1.0, "seed": 1, "min_p": 0.2},
    {"temperature": 1.0, "seed": 2, "presence_penalty": 1.5},
    {"temperature": 1.0, "seed": 2, "frequency_penalty": -1.0},
    {"temperature": 1.0, "seed": 2, "repetition_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": ((3, 5.0), (4, -100.0))},
    {"temperature": 0.5, "seed": 2**63 + 5},
]


async def test_sampling_is_honoured() -> None:
    async with world() as found:
        for sampling in SAMPLINGS:
            bias = {str(token): value for token, value in sampling.get("logit_bias", ())}
            body = await found.chat(**sampling | ({"logit_bias": bias} if bias else {}))
            assert body["choices"][0]["message"]["content"] == alone(**sampling)
        signed = await found.chat(temperature=1.0, seed=-2)
        free: dict[str, Any] = {"temperature": 2.0, "max_tokens": 40, "ignore_eos": True}
        drawn = [await found.chat(**free, seed=seed) for seed in (-1, -1, None, None)]
    assert signed["choices"][0]["message"]["content"] == alone(temperature=1.0, seed=2**64 - 2)
    seeds = {body["forerun"]["seed"]: body["choices"][0]["message"]["content"] for body in drawn}
    assert len(seeds) == len(set(seeds.values())) == 4
    assert all(0 <= seed < 2**53 for seed in seeds)  # which JavaScript reads as they are
    assert seeds == {seed: alone(**free, seed=seed) for seed in seeds}


ADVICE = SamplingDefaults(temperature=1.2, top_k=4, top_p=0.9, min_p=0.05, repetition_penalty=1.4)


@contextlib.asynccontextmanager
async def advised(advice: SamplingDefaults = ADVICE, **more: Any) -> AsyncIterator[World]:
    """A world whose target's makers advise these values."""
    async with world(**more) as found:
        found.describe(sampling_defaults=advice)
        yield found


async def test_what_a_request_leaves_out_is_as_the_targets_makers_advise() -> None:
    given: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
        {"temperature": 0.0, "repetition_penalty": 1.0},
    ]
    async with advised() as found:
        for named in given:
            body = await found.chat(**{"temperature": None, "seed": 5, "ignore_eos": True, **named})
            told = {name: value for name, value in ADVICE.advised.items() if name not in named}
            sampling = {**ADVICE.advised, **named, "seed": 5, "ignore_eos": True}
            assert body["choices"][0]["message"]["content"] == alone(**sampling)
            assert body["forerun"].get("sampling_defaults", {}) == told


async def test_the_targets_defaults_can_be_switched_off_and_are_none_of_the_drafts() -> None:
    async with advised() as found:
        cards = (await found.client.get("/v1/models")).json()["data"]
        draft = await found.chat(model="tiny-draft", temperature=None, seed=5)
        named = await found.chat(repeat_penalty=1.0)
    async with advised(defaults=Defaults(draft_name="tiny-draft", sampling=False)) as found:
        body = await found.chat(temperature=None, seed=5)
    assert "repetition_penalty" not in named["forerun"]["sampling_defaults"]
    assert [card["meta"]["sampling_defaults"] for card in cards[:3]] == [ADVICE.advised, ADVICE.advised, {}]
    assert "sampling_defaults" not in draft["forerun"]
    assert "sampling_defaults" not in body["forerun"]
    assert body["choices"][0]["message"]["content"] == alone(temperature=1.0, seed=5)


async def test_a_completion_of_minus_one_token_fills_the_slots() -> None:
    async with world(num_slots=100) as found:
        full = await found.complete(ignore_eos=True, max_tokens=-1)
    assert full["usage"]["total_tokens"] == 100 - 16


async def test_without_a_number_a_text_may_fill_the_slots_where_there_are_fewer_than_positions() -> None:
    async with world(num_slots=100) as found:
        body = await found.chat(ignore_eos=True, max_tokens=None)
        card = (await found.client.get("/v1/models")).json()["data"][0]["meta"]
        over = await found.post_chat(max_tokens=card["max_positions"])
    assert body["usage"]["total_tokens"] == card["max_positions"] == 100 - 16
    assert body["choices"][0]["finish_reason"] == "length"
    assert (over.status_code, over.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "--slots" in over.json()["error"]["message"]
    async with world() as found:
        over = await found.post_chat(max_tokens=10**6)
    assert "--slots" not in over.json()["error"]["message"], "the model itself takes no more"


async def test_a_text_that_is_too_long_for_an_old_answer_of_the_verifier_has_it_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as found:
        found.describe(max_session_positions=8)

        async def heard(self: OneVerifier, patience: float) -> None:
            found.describe(max_session_positions=512)

        refused = await found.post_chat(max_tokens=100)
        monkeypatch.setattr(OneVerifier, "heard", heard)
        taken = await found.post_chat(max_tokens=100)
    assert (refused.status_code, taken.status_code) == (400, 200)


async def test_a_quota_bounds_texts_that_name_no_length() -> None:
    async with world() as found:
        found.system.worker.set_quotas(Quotas(default=Quota(max_tokens=30)))
        async with VerifierChannel(found.system.address) as channel:
            found.describe(max_text_tokens=(await channel.describe()).max_text_tokens)
        body = await found.chat(ignore_eos=True, max_tokens=None)
        over = await found.post_chat(max_tokens=31)
        drafted = await found.chat(model="tiny-draft", ignore_eos=True, max_tokens=31)
    assert drafted["usage"]["completion_tokens"] == 31, "no verifier writes it"
    assert body["usage"]["completion_tokens"] == 30
    assert (over.status_code, over.json()["error"]["param"]) == (400, "max_tokens")


async def test_log_probabilities_are_told_in_the_shape_of_each_endpoint() -> None:
    async with world() as found:
        chat = await found.chat(logprobs=True, top_logprobs=2, max_tokens=5, ignore_eos=True)
        text = await found.complete(logprobs=2, max_tokens=5, ignore_eos=True)
    entries, columns = chat["choices"][0]["logprobs"]["content"], text["choices"][0]["logprobs"]
    assert (
        [each["token"] for each in entries] == columns["tokens"] == list(alone(max_tokens=5, ignore_eos=True))
    )
    assert [each["logprob"] for each in entries] == columns["token_logprobs"]
    assert {len(each["top_logprobs"]) for each in entries} == {2}
    assert [len(each) for each in columns["top_logprobs"]] == [2] * 5
    assert columns["text_offset"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("as_list", [False, True])
async def test_a_text_ends_before_a_stop_string_or_token(as_list: bool) -> None:
    fields: dict[str, Any] = {"ignore_eos": True, "max_tokens": 60, "temperature": 1.0, "seed": 4}
    whole = alone(**fields)
    stop = whole[10:12]
    async with world() as found:
        body = await found.chat(**fields, stop=[stop, "zz"] if as_list else stop)
        by_token = await found.chat(stop_token_ids=[4], ignore_eos=True)
    assert body["choices"][0]["message"]["content"] == whole[: whole.find(stop)]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["forerun"]["stopped_by"] == stop
    assert by_token["choices"][0]["message"]["content"] == alone(ignore_eos=True).split("d")[0]


async def test_figures_and_origins_tell_how_it_went() -> None:
    fields: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "forerun": {"origins": True}}
    async with world() as found:
        body = await found.chat(**fields)
        events = events_of((await found.post_chat(stream=True, **fields)).text)
    ours, runs = body["forerun"], body["forerun"]["origins"]
    assert (ours["mode"], ours["tokens"]) == ("ahead", 30)
    assert 0 < ours["target_steps"] <= 30 <= ours["accepted"] + ours["target_steps"]
    assert ours["proposed"] == ours["accepted"] + ours["wasted"]
    assert min(ours["bytes_up"], ours["bytes_down"], ours["rtt_p50_ms"]) > 0
    assert ours["elapsed_ms"] >= ours["first_token_ms"] > 0
    assert events[-1]["forerun"].keys() == ours.keys() - {"origins"}
    assert "".join(text for text, _, _ in runs) == body["choices"][0]["message"]["content"]
    counts = {origin: sum(n for _, each, n in runs if each == origin) for origin in ("drafted", "server")}
    assert counts["drafted"] == ours["accepted"]
    assert sum(counts.values()) == 30
    streamed = [run for event in events for run in event.get("forerun", {}).get("origins", [])]
    assert "".join(text for text, _, _ in streamed) == "".join(text for text, _, _ in runs)


@pytest.mark.parametrize("by_target_alone", [{"forerun": {"speculate": False}}, {"model": "tiny"}])
async def test_a_pair_can_be_asked_for_as_target_only_or_as_draft_only(
    by_target_alone: dict[str, Any],
) -> None:
    async with world() as found:
        target = await found.chat(max_tokens=30, ignore_eos=True, **by_target_alone)
        draft = await found.chat(model="tiny-draft", max_tokens=30, ignore_eos=True)
    assert target["choices"][0]["message"]["content"] == alone(max_tokens=30, ignore_eos=True)
    ours = target["forerun"]
    assert (ours["mode"], ours["proposed"], ours["target_steps"]) == ("server-only", 0, 30)
    ours = draft["forerun"]
    assert (ours["mode"], ours["device_tokens"], ours["target_steps"]) == ("device-only", 30, 0)
    assert [origin for _, origin, _ in ours["origins"]] == ["device"]


# While the draft model is being loaded ----------------------------------------------------------------------

LONG: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True}


async def writing(found: World, num_tokens: int) -> None:
    """Until the only text has so many tokens."""
    while not any(len(live.answer.tokens) >= num_tokens for live in found.texts.live.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)  # readers of the stream alone are told


async def test_it_begins_at_once_and_drafts_when_the_model_comes() -> None:
    seats = Seats()
    seats.loaded.clear()
    async with world(seats=seats, step_time=0.004) as found:
        asking = asyncio.create_task(found.post_chat(stream=True, forerun={"policy": "tree"}, **LONG))
        await writing(found, 20)
        assert seats.num_taken == 0
        seats.loaded.set()
        events = events_of((await asking).text)
    ours = events[-1]["forerun"]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == alone(**LONG)
    assert ours["accepted"] > 0
    assert ours["target_steps"] < 120
    assert ours["notes"] == []


async def test_a_draft_without_a_seat_leaves_the_text_to_the_verifier_and_says_so() -> None:
    async with world(seats=Seats(most=0)) as found:
        ours = (await found.chat())["forerun"]
    assert (ours["mode"], ours["notes"]) == ("server-only", ["nothing is drafted: all seats are taken"])


async def test_a_model_that_cannot_be_loaded_leaves_the_text_to_the_verifier() -> None:
    seats = Seats()
    seats.loaded.clear()
    seats.failure = UserError("the file is broken")
    async with world(seats=seats, step_time=0.004) as found:
        asking = asyncio.create_task(found.chat(**LONG))
        await writing(found, 20)
        seats.loaded.set()
        body = await asking
    assert body["choices"][0]["message"]["content"] == alone(**LONG)
    assert body["forerun"]["notes"] == ["nothing is drafted: the file is broken"]
    assert body["forerun"]["mode"] == "server-only"


async def test_the_drafts_own_text_waits_for_it_and_a_text_that_ends_before_takes_no_seat() -> None:
    seats = Seats()
    seats.loaded.clear()
    async with world(seats=seats) as found:
        body = await found.chat(max_tokens=5, ignore_eos=True)
        asking = asyncio.create_task(found.chat(model="tiny-draft", **LONG))
        await asyncio.sleep(0.1)  # longer than a text waits that can begin without
        assert not asking.done()
        seats.loaded.set()
        drafted = await asking
        again = await found.chat(max_tokens=5, ignore_eos=True)
    assert drafted["forerun"]["device_tokens"] == 120
    assert body["choices"] == again["choices"]


# Several choices --------------------------------------------------------------------------------------------


async def test_each_choice_is_the_targets_text_with_a_seed_of_its_own() -> None:
    """Whole and streamed, with more choices than seats."""
    asked: dict[str, Any] = {"n": 5, "temperature": 1.0, "seed": 7, "ignore_eos": True}
    texts = [alone(temperature=1.0, seed=7 + at, ignore_eos=True) for at in range(5)]
    async with world(settings=TextSettings(seats=2)) as found:
        whole = await found.chat(**asked)
        events = events_of((await found.post_chat(stream=True, **asked)).text)
        completion = await found.complete(**asked)
    assert [each["message"]["content"] for each in whole["choices"]] == texts
    assert [each["text"] for each in completion["choices"]] == texts
    choices = [choice for event in events for choice in event["choices"]]
    streamed = [
        "".join(each["delta"].get("content", "") for each in choices if each["index"] == at)
        for at in range(5)
    ]
    assert streamed == texts
    assert sorted(each["index"] for each in choices if each["finish_reason"]) == [0, 1, 2, 3, 4]
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["completion_tokens"] == 5 * 20


PROMPTS = ["abc", "fed", "abcabc"]


@pytest.mark.parametrize("prompts", [PROMPTS, [Letters().tokenize(each, True) for each in PROMPTS]])
async def test_several_prompts_have_the_texts_of_requests_of_their_own(prompts: list[Any]) -> None:
    """Choice `prompt * n + choice` has the seed so far from the first one's."""
    asked: dict[str, Any] = {"n": 2, "temperature": 1.0, "seed": 7, "ignore_eos": True, "logprobs": 2}
    async with world(settings=TextSettings(seats=2)) as found:
        whole = await found.complete(prompts, **asked)
        streamed = await found.post(prompts, stream=True, stream_options={"include_usage": True}, **asked)
        singly = [
            await found.complete(prompt, **asked | {"n": 1, "seed": 7 + 2 * at + choice})
            for at, prompt in enumerate(prompts)
            for choice in range(2)
        ]
    own = [each["choices"][0] for each in singly]
    assert whole["choices"] == [{**each, "index": at} for at, each in enumerate(own)]
    assert [each["text"] for each in own[::2]] == [
        alone(prompt, temperature=1.0, seed=7 + 2 * at, ignore_eos=True) for at, prompt in enumerate(PROMPTS)
    ]
    *events, last = events_of(streamed.text)
    choices = [choice for event in events for choice in event["choices"]]
    for at, each in enumerate(own):
        parts = [choice for choice in choices if choice["index"] == at]
        assert "".join(part["text"] for part in parts) == each["text"]
        offsets = [offset for part in parts if part["logprobs"] for offset in part["logprobs"]["text_offset"]]
        assert offsets == each["logprobs"]["text_offset"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [each["finish_reason"]]
    for usage in (whole["usage"], last["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3 + 3 + 6, 6 * 20)


async def test_each_of_several_prompts_may_be_as_long_as_fits() -> None:
    """A prompt's length bounds its own texts alone."""
    async with world() as found:
        whole = await found.complete(["a" * 500, "abc"], max_tokens=None, logprobs=0, ignore_eos=True)
        most = await found.complete(["a" * 500, "abc"], max_tokens=-1, logprobs=0, ignore_eos=True)
    assert [len(each["logprobs"]["tokens"]) for each in whole["choices"]] == [12, 16]
    assert [len(each["logprobs"]["tokens"]) for each in most["choices"]] == [12, 509]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_of_several_choices_is_read_once(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world() as found:
        await found.post_chat("abc" * 20, n=4, stream=stream)
    logged = [each.fields["cached"] for each in caplog.records if each.message == "text ended"]  # type: ignore[attr-defined]
    assert sorted(logged) == [0, 59, 59, 59]


async def test_choices_that_find_no_place_are_refused_as_a_whole() -> None:
    async with world(settings=TextSettings(seats=1, max_waiting=1)) as found:
        refused = [await found.post_chat(n=3, stream=stream) for stream in (False, True)]
        assert (found.texts.admission.num_active, found.texts.admission.num_waiting) == (0, 0)
        assert (await found.post_chat(n=2)).status_code == 200
    assert [each.status_code for each in refused] == [429, 429]


# Tools and reasoning in the history -------------------------------------------------------------------------

SHOWN = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for message in messages %}{{ message.content }}{{ message.reasoning_content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}{% if enable_thinking is false %}f{% endif %}"
)
CALLED = '<tool_call>{"name": "b", "arguments": {"x": "c"}}</tool_call>'


async def prompt_of(found: World, **body: Any) -> str:
    answer = await found.client.post("/v1/apply-template", json=body)
    assert answer.status_code == 200, answer.text
    prompt: str = answer.json()["prompt"]
    return prompt


async def test_the_template_gets_tools_calls_results_and_reasoning() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "b", "arguments": '{"x": "c"}'}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "reasoning_content": "d", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "e"}]},
        {"role": "tool", "tool_call_id": "1"},  # clients leave out an empty text
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with world(template=SHOWN) as found:
        for more, before, after in (
            ({}, "", ""),
            ({"tools": tools}, "[f]", ""),
            ({"tools": tools, "tool_choice": "none"}, "", ""),
            ({"reasoning_effort": "none"}, "", "f"),
            ({"chat_template_kwargs": {"enable_thinking": False}}, "", "f"),
        ):
            assert await prompt_of(found, messages=messages, **more) == f"{before}ad{CALLED}e{after}"
