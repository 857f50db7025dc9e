"""Laws of `forerun edge complete` and `pipe`: the text is the target's own, and the events hold all of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.errors import UnavailableError
from common.sampling import SamplingParams
from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.network.single import SingleVerifier
from edge_client.texts.events import ModeChanged, PreviewAdded, PreviewWithdrawn, TextAdded
from edge_client.texts.text_request import TextRequest, Writer
from edge_client.texts.text_service import TextService, TextSettings
from forerun.commands.edge import _print_event, write_text
from tests.drivers.tiny import EOS, VOCABULARY, running
from tests.edge_client.api.world import LETTERS, Letters, Seats
from tests.worlds.models import target_alone

pytestmark = [pytest.mark.api, pytest.mark.grpc]

PROMPT = (1, 2, 3)
SAMPLING = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
ONE_SLOT = TextSettings(seats=1, patience=0.05, first_backoff=0.01, max_attempts=2, max_preview=6)


@contextlib.asynccontextmanager
async def texts_at(address: str) -> AsyncIterator[TextService]:
    async with SingleVerifier(address) as verifier:
        with contextlib.suppress(UnavailableError):
            await verifier.ask(VOCABULARY)
        yield TextService(Letters(), VOCABULARY, verifier, Seats(1), ONE_SLOT)


def read(lines: str) -> tuple[str, list[str]]:
    """The text and the preview of who follows the events of a pipe."""
    text, preview = "", list[str]()
    for line in lines.splitlines():
        event = json.loads(line)
        match event["event"]:
            case "text":
                text += event["text"]
                del preview[:1]
            case "preview":
                assert event["start"] == len(text) + len(preview)
                preview += event["pieces"]
            case "withdraw":
                del preview[event["start"] - len(text) :]
    return text, preview


@pytest.mark.parametrize("policy", ["tree", "off"])
async def test_the_record_and_the_events_hold_the_targets_text(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running() as system, texts_at(system.address) as texts:
        for _ in range(2):  # the slot is free again
            request = TextRequest(PROMPT, SAMPLING, policy=policy, revises=True)
            record, error = await write_text(texts, request, _print_event)
            assert error is None
            told: dict[str, Any] = json.loads(json.dumps(record))
            assert tuple(told["tokens"]) == target_alone(PROMPT, SAMPLING, EOS)
            assert read(capsys.readouterr().out) == (told["text"], [])
            assert len(told["arrivals_ms"]) == len(told["tokens"])
            assert told["stats"]["committed"] == 24
            assert (told["stats"]["proposed"] > 0) is (policy == "tree")


async def test_the_draft_models_own_text_has_a_record_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    async with texts_at("127.0.0.1:1") as texts:
        record, error = await write_text(
            texts, TextRequest(PROMPT, SAMPLING, writer=Writer.DRAFT), _print_event
        )
    assert error is None
    assert set(record) == {"tokens", "text", "arrivals_ms", "ended", "stats"}
    assert (record["stats"]["accepted"], record["stats"]["target_steps"]) == (24, 0)
    assert read(capsys.readouterr().out) == (record["text"], [])


async def test_without_a_verifier_the_record_tells_the_preview_from_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with texts_at("127.0.0.1:1") as texts:
        record, error = await write_text(texts, TextRequest(PROMPT, SAMPLING, revises=True), _print_event)
    assert isinstance(error, UnavailableError)
    assert record["tokens"] == ()
    assert record["error"] == str(error)
    spelled = "".join(LETTERS[token] for token in record["preview"]["tokens"])
    assert (record["preview"]["text"], "".join(read(capsys.readouterr().out)[1])) == (spelled, spelled)


def test_each_event_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    spans = TextSpan("a", TokenOrigin.DRAFTED), TextSpan("b", TokenOrigin.SERVER)
    for event in (
        TextAdded(spans),
        ModeChanged("m", "w"),
        PreviewAdded(2, ("c", "d")),
        PreviewWithdrawn(3),
    ):
        _print_event(event)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"event": "text", "text": "a", "drafted": True},
        {"event": "text", "text": "b", "drafted": False},
        {"event": "mode", "mode": "m", "why": "w"},
        {"event": "preview", "start": 2, "pieces": ["c", "d"]},
        {"event": "withdraw", "start": 3},
    ]
