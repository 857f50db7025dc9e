"""The whole system: two processes, the bundled pair, a link between them."""

import json
from pathlib import Path

import pytest

from edge_client.formats.detokenizer import spelled
from edge_client.texts.events import TextAdded
from lab import demo_models
from lab.__main__ import main
from lab.rig import Rig, RigSettings, TextRecord, words_of
from tests.support.refusals import refuse

pytestmark = [pytest.mark.torch, pytest.mark.llama, pytest.mark.grpc]


@pytest.mark.parametrize(
    "words", ["--rtt -5", "--rtt nan", "--max-tokens 1", "--prompt ''", "--num-prompts 99"]
)
def test_nonsense_is_refused_before_anything_is_done(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(main, f"demo {words}", tmp_path, monkeypatch, capsys)


def test_the_demo_compares_identical_texts(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--num-prompts", "1", "--max-tokens", "24", "--step-floor", "0", "--rtt", "4", "--json"]
    assert main([*words, "--temperature", "0.8"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert set(report["schemes"]) == {"server_streaming", "sync_best", "heads_alone", "forerun"}
    assert all(scheme["identical"] for scheme in report["schemes"].values())
    assert report["schemes"]["server_streaming"]["target_steps_per_token"] == 1.0
    assert report["schemes"]["server_streaming"]["draft_tokens_per_token"] == 0.0
    assert report["schemes"]["forerun"]["draft_tokens_per_token"] > 0.0


async def test_a_text_survives_cuts_of_the_link() -> None:
    prompt = json.loads(demo_models.PROMPTS.read_text(encoding="utf-8"))[0]["text"]
    models = str(demo_models.TARGET_DIR), str(demo_models.DRAFT_GGUF)
    settings = RigSettings(*models, rtt_ms=5.0, step_floor_ms=40.0)  # the draft is ahead on any machine
    record, num_parts = TextRecord(), 0
    async with Rig(settings) as rig:
        async for came_at, event in rig.events(prompt, "tree", {"max_tokens": 48, "ignore_eos": True}):
            record.take(came_at, event)
            num_parts += isinstance(event, TextAdded)
            if isinstance(event, TextAdded) and num_parts in (5, 15):
                rig.link.cut()
    run = record.as_run()
    assert run["stats"]["resumes"] >= 1
    assert len(run["arrivals_ms"]) == 48
    with words_of(models[1]) as words:
        assert run["text"] == spelled(words, plain_greedy(prompt, 48))


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
