"""A device without a draft model drafts from earlier texts, and says what it does."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import UnavailableError
from edge_client.api.daemon_status import PairStatus
from edge_client.api.endpoints import Defaults
from edge_client.core.effects import Fallback
from edge_client.texts.earlier import EarlierTexts
from edge_client.texts.text_service import Orders
from tests.edge_client.api.world import World, alone, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

STEP_TIME = 0.02
"""Seconds; so long that the device proposes within a step even on a busy machine."""

LONG: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True}


def mode(found: World) -> str:
    up = [{"reachable": True, "health": "ready", "why": ""}]
    service = found.api.pairs.first
    return PairStatus(found.texts, Fallback.WAIT, dict, lambda: up, lambda: service.proposes).mode_word()


async def test_a_text_is_drafted_from_an_earlier_one() -> None:
    async with world(drafts=False, earlier=EarlierTexts(1000), step_time=STEP_TIME) as found:
        texts = [await found.chat(**LONG) for _ in range(2)]
        assert mode(found) == "ahead"
    assert {each["choices"][0]["message"]["content"] for each in texts} == {alone(**LONG)}
    ours = texts[1]["forerun"]
    assert ours["accepted"] >= 10
    assert ours["target_steps"] <= 50
    assert (ours["mode"], ours["notes"]) == ("ahead", [])


async def test_the_only_model_is_the_target_and_can_be_streamed() -> None:
    async with world(drafts=False, earlier=EarlierTexts(1000)) as found:
        listed = (await found.client.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["tiny", "default"]
        await found.chat(**LONG)
        ours = (await found.chat(forerun={"speculate": False}, **LONG))["forerun"]
        assert (ours["mode"], ours["proposed"], ours["notes"]) == ("server-only", 0, [])
        found.texts.orders = Orders.DRAFT_OFF
        assert (await found.chat(**LONG))["forerun"]["proposed"] == 0
        assert mode(found) == "server-only"


@pytest.mark.parametrize("defaults", [Defaults(policy="off"), Defaults(recall=False)])
async def test_nothing_is_proposed_without_recall_or_with_the_policy_off(defaults: Defaults) -> None:
    async with world(drafts=False, earlier=EarlierTexts(1000), defaults=defaults) as found:
        await found.chat(**LONG)
        ours = (await found.chat(**LONG))["forerun"]
        assert (ours["mode"], ours["proposed"], ours["notes"]) == ("server-only", 0, [])
        assert mode(found) == "server-only"


async def test_without_a_verifier_it_refuses_whatever_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(drafts=False, defaults=Defaults(fallback=Fallback.DRAFT)) as found:
        monkeypatch.setattr(found.verifier, "refusal", lambda: UnavailableError("no verifier answers"))
        assert (await found.post_chat()).status_code == 503
