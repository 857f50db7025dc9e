"""The whole system: two processes, the bundled pair, a link between them."""

from __future__ import annotations

import json
import sys
from unittest.mock import create_autospec

import pytest

from common.errors import LocalError
from forerun.cli import main
from forerun.commands import demo
from forerun.doctests import Outcome, Verdict
from forerun.rig import Rig, RigSettings
from lab import demo_models
from tests import wording

pytestmark = [pytest.mark.torch, pytest.mark.llama, pytest.mark.grpc]


def test_the_demo_compares_identical_texts(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--num-prompts", "1", "--max-tokens", "24", "--step-floor", "0", "--rtt", "4", "--json"]
    assert main([*words, "--temperature", "0.8", "--ignore-eos"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert set(report["schemes"]) == {"server_streaming", "sync_best", "heads_alone", "forerun"}
    assert all(scheme["identical"] for scheme in report["schemes"].values())
    assert report["schemes"]["server_streaming"]["target_steps_per_token"] == 1.0
    assert report["schemes"]["server_streaming"]["draft_tokens_per_token"] == 0.0
    assert report["schemes"]["forerun"]["draft_tokens_per_token"] > 0.0
    assert {outcome["verdict"] for outcome in report["doctests"]} <= {"passed", "failed", "refused"}


async def test_a_text_survives_cuts_of_the_link_and_the_pipe_a_request_that_is_refused() -> None:
    prompt = json.loads(demo_models.PROMPTS.read_text(encoding="utf-8"))[0]["text"]
    models = str(demo_models.TARGET_DIR), str(demo_models.DRAFT_GGUF)
    settings = RigSettings(*models, rtt_ms=5.0, step_floor_ms=40.0)  # the draft is ahead on any machine
    sampling = {"max_tokens": 48, "ignore_eos": True}
    async with Rig(settings) as rig:
        pieces, ahead = 0, list[str]()
        async for event in rig.events(prompt, "tree", sampling, ahead=True):
            pieces += event["event"] == "text"
            ahead += [event["text"]] if event["event"] == "ahead" else []
            if event["event"] == "text" and pieces in (10, 30):
                rig.link.cut()
        for bad in ({"max_tokens": 2.5}, {"ignore_eos": "no"}, {"wrong": 1}):
            with wording.raises(LocalError):
                await rig.complete("x = 1", "tree", bad)
        done = await rig.complete("x = 1", "tree", {"max_tokens": 3, "ignore_eos": True})
    assert event["stats"]["resumes"] >= 1
    assert event["tokens"] == plain_greedy(prompt, 48)
    starts = [text[:8] for text in ahead if len(text) >= 8]
    assert any(start in event["text"] for start in starts), "some of the draft's words come true"
    assert len(done["tokens"]) == 3


def plain_greedy(prompt: str, count: int) -> list[int]:
    """What transformers alone writes: the model's own code, sdpa attention, no cache, float32, argmax."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_models.TARGET_DIR)
    model = AutoModelForCausalLM.from_pretrained(demo_models.TARGET_DIR, dtype=torch.float32)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    start = ids.shape[1]
    with torch.inference_mode():
        for _ in range(count):
            best = model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
            ids = torch.cat([ids, best.view(1, 1)], dim=1)
    return list(ids[0, start:].tolist())


def test_the_doctests_of_what_was_written_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    demo._print_doctests([])
    demo._print_doctests([Outcome("f", Verdict.PASSED), Outcome("g", Verdict.FAILED, "g(1) is 2, not 3")])
    assert capsys.readouterr().out == "\ndoctests: 1 of 2 functions pass\n  ✓ f\n  ✗ g: g(1) is 2, not 3\n"


@pytest.mark.parametrize(
    ("answer", "wants"), [("y", True), ("Yes", True), ("", False), ("n", False), (EOFError, False)]
)
def test_the_page_is_offered_to_whoever_is_there(
    answer: str | type[Exception], wants: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = create_autospec(input, side_effect=[answer])
    monkeypatch.setattr("builtins.input", asked)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert demo._wants_page() is wants
    assert "browser" in asked.call_args[0][0]
