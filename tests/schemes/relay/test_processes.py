"""Three processes and two emulated links: an edge, a relay with a middle model, and the verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.sampling import SamplingParams
from forerun.rig import PRIVACY, START_TIMEOUT, Processes, TextRecord
from lab import demo_models
from simulator.proxy import Link, rtt

pytestmark = [pytest.mark.slow, pytest.mark.grpc, pytest.mark.torch, pytest.mark.llama, pytest.mark.api]

DRAFT = str(demo_models.DRAFT_GGUF)
PROMPT = "The old lighthouse keeper"
SAMPLING = SamplingParams(max_tokens=48, temperature=0.8, seed=3, ignore_eos=True)


async def complete(machines: Processes, address: str, policy: str) -> dict[str, Any]:
    """One text of an edge at `address`."""
    edge, record = (
        await machines.start_edge("--verifier", address, "--draft", DRAFT, "--threads", "1", *PRIVACY),
        TextRecord(),
    )
    async for came_at, event in edge.events(PROMPT, policy, SAMPLING, recall=False):
        record.take(came_at, event)
    return record.as_run()


async def test_the_text_through_a_relay_is_the_remote_targets(tmp_path: Path) -> None:
    """The middle model is the target itself in 8 bits, so it is nearly always right."""
    from lab.demo_models.gguf_export import write_target

    middle = tmp_path / "middle-q8_0.gguf"
    write_target(middle)
    async with Processes(pin=False) as machines:
        _, target = await machines.start_verifier(
            "--model", str(demo_models.TARGET_DIR), "--threads", "1", "--step-floor", "20", *PRIVACY
        )
        async with Link.to(target, *rtt(60)) as far:
            where = ("--verifier", str(far.address), "--listen", "127.0.0.1:0", "--model", str(middle))
            relay = await machines.start("relay", "relay", *where, "--threads", "1", "--json", *PRIVACY)
            listening = (await relay.read(START_TIMEOUT))["listening"]
            async with Link.to(listening, *rtt(5)) as near:
                plain = await complete(machines, target, "off")
                relayed = await complete(machines, str(near.address), "adaptive")
                alone = await complete(machines, str(near.address), "off")
            await relay.stop()
            assert relay.code == 0
    assert relayed["text"] == alone["text"] == plain["text"]
    assert alone["stats"]["target_steps"] < plain["stats"]["target_steps"], "the middle model drafts"
    assert relayed["stats"]["accepted"] > 0, "the device drafts, too"
