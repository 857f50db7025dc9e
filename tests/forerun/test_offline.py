"""The whole system without a server for a while: the guess is shown, the text is the target's own."""

import pytest

from edge_client.texts.events import PreviewAdded, PreviewWithdrawn, TextAdded
from lab import demo_models
from lab.rig import Rig, RigSettings, TextRecord
from training.prompts import bundled

pytestmark = [pytest.mark.torch, pytest.mark.llama, pytest.mark.grpc]

SAMPLING = {"max_tokens": 96, "ignore_eos": True}


async def test_a_text_goes_on_through_an_outage_and_is_the_targets_own() -> None:
    """The link breaks after ten tokens and returns when twenty are guessed."""
    prompt, record = bundled()[0], TextRecord()
    num_tokens, num_guessed, guess = 0, 0, list[str]()
    settings = RigSettings(str(demo_models.TARGET_DIR), str(demo_models.DRAFT_GGUF), rtt_ms=5.0)
    async with Rig(settings) as rig:
        alone = await rig.complete(prompt, "off", SAMPLING)
        async for came_at, event in rig.events(prompt, "adaptive", SAMPLING, revise=True):
            record.take(came_at, event)
            match event:
                case TextAdded():
                    came = sum(span.num_tokens for span in event.spans)
                    if num_tokens < 10 <= num_tokens + came:
                        await rig.link.disable()
                        rig.link.cut()
                    num_tokens += came
                    del guess[:came]
                case PreviewAdded():
                    assert event.start == num_tokens + len(guess)
                    guess += event.texts
                    num_guessed += len(event.texts)
                    if len(guess) >= 20:
                        await rig.link.enable()
                case PreviewWithdrawn():
                    del guess[event.start - num_tokens :]
    run = record.as_run()
    assert guess == []
    assert num_guessed >= 20
    assert run["text"] == alone["text"]
    assert "device-only" in [change["mode"] for change in run["modes"]]
