"""Two pairs behind one API: the request's model chooses the pair, and each text is its own target's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.sampling import SamplingParams
from edge_client.api.app import Api, ApiSettings
from edge_client.api.daemon_status import PairStatus, StatusPage
from edge_client.api.endpoints import Defaults, TextEndpoints
from edge_client.api.page import tree_routes
from edge_client.api.pairs import Pairs
from edge_client.api.response import ResponseSpec
from edge_client.api.security import Gate
from edge_client.core.effects import Fallback
from edge_client.core.verifier_choice import DraftSkill
from edge_client.formats.openai import Completion
from edge_client.network.channel import StreamSource, VerifierChannel
from edge_client.texts.device_metrics import metrics_page
from edge_client.texts.queue import Admission
from edge_client.texts.resume import Journal
from edge_client.texts.text_service import TextService, TextSettings
from tests.edge_client.api.test_durable import filled
from tests.edge_client.api.world import LETTERS, Letters, OneVerifier, Seats, events_of, world
from tests.support.tiny import EOS, VOCABULARY, running
from tests.worlds.models import target_alone

pytestmark = [pytest.mark.api, pytest.mark.grpc]

SALTS = {"one": 1, "two": 2}
"""The targets by their pairs."""

LONG: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.0, "seed": 3}


@dataclass
class TwoPairs:
    """A client of the API, and what stands behind it."""

    client: httpx.AsyncClient
    api: Api
    texts: dict[str, TextService]

    async def complete(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": "abc", **LONG, **fields}
        return await self.client.post("/v1/completions", json=body)

    async def text(self, model: str, **fields: Any) -> tuple[str, str]:
        """The model of the response, and its text."""
        found = (await self.complete(model, **fields)).json()
        return found["model"], found["choices"][0]["text"]

    async def models(self) -> list[str]:
        listed = (await self.client.get("/v1/models")).json()
        return [each["id"] for each in listed["data"]]


def alone(pair: str) -> str:
    """What a pair's target writes by itself."""
    sampling = SamplingParams(**LONG)
    text = target_alone(Letters().tokenize("abc", True), sampling, EOS, SALTS[pair])
    return "".join(LETTERS[token] for token in text)


@contextlib.asynccontextmanager
async def two_pairs(
    *,
    targets: Sequence[str] = ("first", "second"),
    drafts: Sequence[str] = ("draft", "draft"),
    pairs: Sequence[str] = ("one", "two"),
    seats: int = 8,
    step_time: float = 0.0,
    journal: Journal | None = None,
) -> AsyncIterator[TwoPairs]:
    """Two verifiers with different targets, and one API."""
    admission, found = Admission(seats, 64), list[TextEndpoints]()
    async with contextlib.AsyncExitStack() as stack:
        for pair, target, draft in zip(pairs, targets, drafts, strict=True):
            salt = SALTS.get(pair, 1)
            system = await stack.enter_async_context(running(step_time=step_time, name=target, salt=salt))
            channel = await stack.enter_async_context(VerifierChannel(system.address))
            verifier = OneVerifier(channel, await channel.describe())
            texts = TextService(Letters(), VOCABULARY, verifier, Seats(), TextSettings(), admission=admission)
            found.append(TextEndpoints(texts, Defaults(draft_name=draft), pair=pair))
        services = {each.pair: each.texts for each in found}
        status = {
            name: PairStatus(texts, Fallback.WAIT, lambda: {"state": "loaded"}, list, lambda: True)
            for name, texts in services.items()
        }
        page = StatusPage(status, {}, dict, lambda: 0.0)
        api = Api(
            Pairs(*found),
            ApiSettings(Gate()),
            status=page,
            ready=page.why_not_ready,
            metrics=metrics_page(services, dict),
            journal=journal,
            more=tree_routes(*services.values()),
        )
        transport = httpx.ASGITransport(api.app)
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", timeout=60)
        stack.push_async_callback(api.streams.close)
        yield TwoPairs(await stack.enter_async_context(client), api, services)


async def test_texts_of_both_at_once_are_each_their_own_targets() -> None:
    async with two_pairs() as it:
        models = ["one", "two", "second", "first@draft", "default", "", "two/draft"] * 2
        found = await asyncio.gather(*map(it.text, models))
        assert {texts.totals.ended["length"] for texts in it.texts.values()} == {6, 8}
    assert alone("one") != alone("two")
    texts = {"one": alone("one"), "two": alone("two")}
    texts |= {"second": alone("two"), "first@draft": alone("one"), "two/draft": found[6][1]}
    names = ["one" if model in ("", "default") else model for model in models]
    assert found == [(name, texts[name]) for name in names]


CLASHES = {
    "target and draft": (("same", "second"), ("same", "second"), ("one", "two")),
    "across pairs": (("same", "draft"), ("draft", "same"), ("one", "two")),
    "a pair and another's models": (("two", "one"), ("two", "one"), ("one", "two")),
    "the default's names with a tag": (("default:latest", "x"), ("x", "default:latest"), ("one", "two")),
    "a tag that clients add": (("same", "same:latest"), ("same:latest", "same"), ("one", "two")),
    "the name before a verifier's own": (("first", "target"), ("target", "target"), ("one", "two")),
    "folders that look like pairs": (("x", "org/x"), ("org/x", "x"), ("one", "org")),
    "a name that a clash would get": (("same:draft", "same"), ("same", "same:draft"), ("one", "two")),
}


@pytest.mark.parametrize(("targets", "drafts", "pairs"), CLASHES.values(), ids=CLASHES)
@pytest.mark.parametrize("is_alone", [True, False])
async def test_each_listed_name_reaches_its_own_writer(
    targets: tuple[str, str], drafts: tuple[str, str], pairs: tuple[str, str], is_alone: bool
) -> None:
    """Of a daemon with one pair as well: each writer has a name."""
    pairs = ("", "") if is_alone else pairs
    count = 1 if is_alone else 2
    async with two_pairs(targets=targets[:count], drafts=drafts[:count], pairs=pairs[:count]) as it:
        cards = (await it.client.get("/v1/models")).json()["data"]
        listed = {each["id"]: each["meta"]["writer"] for each in cards}
        assert sorted(listed.values()) == sorted(
            ["split", "target", "draft"] * count + ["split"] * (3 if not is_alone else 1)
        )
        shown = [each["name"] for each in (await it.client.get("/api/tags")).json()["models"]]
        assert [*shown, "default"] == list(listed)
        for name, writer in listed.items():
            wanted = it.api.pairs.models()[name]
            for tag in ("", ":latest"):
                pair = await it.api.pairs.of({"model": name + tag})
                assert (pair, pair.writer(name + tag)[1]) == wanted
            card = (await it.client.get(f"/v1/models/{name}")).json()
            assert card["meta"]["writer"] == writer
            assert (await it.client.post("/api/show", json={"model": name})).status_code == 200
            told = (await it.complete(name, max_tokens=2)).json()
            assert (told["forerun"]["mode"] == "device-only") is (writer == "draft")


@pytest.mark.parametrize(
    ("draft", "name", "writer"),
    [
        ("same", "same", "target"),
        ("same", "target", "target"),
        ("same", "target@same", "split"),
        ("same", "same:draft", "draft"),
        ("target", "target", "target"),
        ("target", "target:draft", "draft"),
    ],
)
async def test_a_name_never_passes_from_the_target_to_the_draft(draft: str, name: str, writer: str) -> None:
    async with two_pairs(targets=("same",), drafts=(draft,), pairs=("",)) as it:
        assert (await it.client.get(f"/v1/models/{name}")).json()["meta"]["writer"] == writer
        verifier = it.texts[""].verifiers
        assert isinstance(verifier, OneVerifier)
        verifier.description = None  # its verifier has another vocabulary now
        assert it.api.pairs.first.writer("target")[1].value == "target"
        assert it.api.pairs.first.writer(name)[1].value == writer


async def test_a_target_that_has_not_told_its_name_yet_is_waited_for() -> None:
    async with two_pairs() as it:
        verifier = it.texts["two"].verifiers
        assert isinstance(verifier, OneVerifier)
        told, verifier.description = verifier.description, None
        asking = asyncio.create_task(it.text("second"))
        while not verifier.num_waiting:  # noqa: ASYNC110 - it says nothing when it is asked
            await asyncio.sleep(0.001)
        verifier.description = told
        verifier.spoken.set()
        assert await asking == ("second", alone("two"))


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "abc"}), ("/v1/tokenize", {"content": "abc"})]
)
async def test_an_unknown_model_is_404_and_all_are_named(path: str, body: Any) -> None:
    async with two_pairs() as it:
        for model in ("gpt-4", "two/first", "three/first", "two/", "/"):
            answer = await it.client.post(path, json={**body, "model": model})
            assert answer.status_code == 404, model
            error = answer.json()["error"]
            assert (error["param"], error["code"]) == ("model", "model_not_found")
            assert all(name in error["message"] for name in await it.models())
        answer = await it.client.post(path, json={**body, "model": 3})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


async def test_all_pairs_share_one_queue() -> None:
    async with two_pairs(seats=1, step_time=0.005) as it:
        first = asyncio.create_task(it.text("one"))
        while not it.texts["one"].live:  # noqa: ASYNC110 - nothing announces its beginning
            await asyncio.sleep(0.001)
        second = asyncio.create_task(it.text("two"))
        async with asyncio.timeout(30):
            while it.api.pairs.admission.num_waiting != 1:  # noqa: ASYNC110 - nothing announces this either
                await asyncio.sleep(0.001)
        assert not it.texts["two"].live
        sessions = (await it.client.get("/v1/sessions")).json()
        assert [(each["pair"]) for each in sessions["sessions"]] == ["one"]
        assert sessions["waiting"] == 1
        assert [await first, await second] == [("one", alone("one")), ("two", alone("two"))]


async def test_status_and_metrics_tell_the_pairs_apart() -> None:
    async with two_pairs() as it:
        for _ in range(2):
            await it.text("two")
        await it.text("one")
        told = (await it.client.get("/v1/status")).json()
        lines = (await it.client.get("/metrics")).text.splitlines()
    assert {name: pair["totals"]["tokens"] for name, pair in told["pairs"].items()} == {
        "one": 60.0,
        "two": 120.0,
    }
    assert told["totals"]["tokens"] == 180.0
    assert told["texts"]["ended"] == {"length": 3}
    assert 'forerun_edge_tokens_total{pair="two"} 120.0' in lines
    assert 'forerun_edge_texts_total{ended="length",pair="one"} 1.0' in lines


async def begun_stream(folder: Path, model: str) -> bytes:
    """Begin a named stream of this model, and stop its daemon in the middle of it."""
    async with two_pairs(journal=Journal(folder), step_time=0.01) as it:
        headers = {"x-conversation-id": "talk"}
        body = {"model": model, "prompt": "abc", "stream": True, **LONG}
        asking = asyncio.create_task(it.client.post("/v1/completions", json=body, headers=headers))
        async with asyncio.timeout(30):
            while not any(  # noqa: ASYNC110 - tokens are announced to the stream's readers alone
                len(live.answer.tokens) > 5 for texts in it.texts.values() for live in texts.live.values()
            ):
                await asyncio.sleep(0.001)
        asking.cancel()
        stream = it.api.streams.store.get("talk")
        assert stream is not None
        return b"".join(stream._from(0))


async def test_a_stream_goes_on_with_its_pair_after_a_restart(tmp_path: Path) -> None:
    before = await begun_stream(tmp_path, "second")
    async with two_pairs(journal=Journal(tmp_path)) as it:
        assert it.api.streams.go_on() == 1
        answer = await it.client.get("/v1/stream", params={"conv_id": "talk"})
    assert answer.content.startswith(before)
    assert "".join(each["choices"][0]["text"] for each in events_of(answer.text)) == alone("two")


async def test_a_stream_of_a_pair_that_is_gone_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await begun_stream(tmp_path, "two")
    with caplog.at_level(logging.WARNING):
        async with two_pairs(journal=Journal(tmp_path), pairs=("one", "three")) as it:
            assert it.api.streams.go_on() == 0
            answer = await it.client.get("/v1/stream", params={"conv_id": "talk"})
    assert answer.status_code == 404
    assert any("two" in record.getMessage() for record in caplog.records)
    assert filled(tmp_path) == []


async def test_one_ready_pair_is_enough_and_else_each_says_why() -> None:
    unfit = {"health": "unfit", "reachable": False, "why": "its token 5 is another"}
    fit = {"health": "ready", "reachable": True, "why": ""}
    async with two_pairs() as it:
        texts = it.texts["one"]

        def why(*verifiers: dict[str, Any]) -> str:
            pairs = {
                name: PairStatus(texts, Fallback.WAIT, dict, lambda each=each: [each], lambda: True)  # type: ignore[misc]
                for name, each in zip(SALTS, verifiers, strict=True)
            }
            return StatusPage(pairs, {}, dict, lambda: 0.0).why_not_ready()

        assert why(unfit, fit) == why(fit, unfit) == ""
        assert all(name in why(unfit, unfit) for name in SALTS)


async def test_a_text_keeps_the_target_that_its_prompt_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the journal, from which a later run continues it."""
    async with world() as found:
        found.describe(model="/srv/models/m")
        targets, route = list[str](), found.verifier.route

        def asked(key: str, skill: DraftSkill, target: str) -> StreamSource:
            targets.append(target)
            return route(key, skill, target)

        monkeypatch.setattr(found.verifier, "route", asked)
        await found.complete()
        assert targets == ["m"]
        spec = await found.api.pairs.first.read(Completion, {"prompt": "abc"})
    told = json.loads(json.dumps(spec.to_json()))
    again = ResponseSpec.from_json(told, (), frozenset())
    assert [each.target for each in again.requests] == ["m"]
