"""The child beside a verifier: tokens are compared first, and texts are written only if they are the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forerun.doctor.child import Asked
from forerun.doctor.draft import Told, ask_child

pytestmark = [pytest.mark.llama, pytest.mark.grpc]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.edge_client.llama.tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("draft") / "tiny.gguf")


async def child(asked: Asked) -> Told:
    return await asyncio.to_thread(ask_child, asked)


async def test_another_tokenizer_is_named_by_its_first_token(tiny: Path) -> None:
    from tests.drivers.tiny import running

    async with running() as system:
        told = await child(Asked(path=str(tiny), context=512, address=system.address))
    assert told.end == ""
    assert told.stages["tokens"]["same"] is False
    assert "the draft's tokenizer is not the target's: id 0 is" in told.stages["tokens"]["words"]
    assert told.plain is None


async def test_a_verifier_that_goes_away_is_told(tiny: Path) -> None:
    told = await child(Asked(path=str(tiny), context=512, address="127.0.0.1:1"))
    assert (told.number("steps", "step_ms") or 0.0) > 0, "what was found out before stands"
    assert "cannot be reached" in told.end


def test_without_a_file_only_the_processor_is_asked_about() -> None:
    told = ask_child(Asked())
    assert list(told.stages) == ["system"]


async def test_the_draft_is_ranked_by_the_targets_own_text(tiny: Path) -> None:
    """The walk counts how often the draft's best token is the text's: on its own greedy text, always."""
    from common.sampling import SamplingParams
    from edge_client.core.drafter import DraftRow, Reroot
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings
    from forerun.doctor.child import _draft_steps

    with LlamaRuntime(LlamaSettings(str(tiny), n_ctx=512)) as runtime:
        drafter = LlamaDrafter(runtime)
        prompt = tuple(runtime.tokenize("the and", True))
        drafter.start(prompt, 1, SamplingParams())
        way = list(prompt)
        for number in range(1, 13):
            (expansion,) = drafter.expand([DraftRow(number, None, way[-1], len(way) - 1)])
            way.append(expansion.tokens[0])
            drafter.reroot(Reroot(((number + 1, way[-1]),), ()))
        own = tuple(way[len(prompt) :])
        found = _draft_steps(drafter, prompt, own)
        others = _draft_steps(drafter, prompt, tuple((token + 1) % 256 for token in own))
    assert (found["right"], found["of"]) == (12, 12)
    assert others["right"] < 12
