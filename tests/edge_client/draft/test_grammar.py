"""A draft under a grammar proposes what the grammar allows, ranked as without it."""

import asyncio
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from common.errors import ForerunError, UserError
from common.grammar import json_schema_grammar
from common.llama.model import LlamaModel, LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion, Reroot, StartDrafter
from edge_client.draft.group import DraftGroup, MemberDrafter
from edge_client.draft.seats import DraftPool
from edge_client.texts.alone import AloneRun
from lab.demo_models import DRAFT_GGUF
from tests import wording
from tests.edge_client.draft.tree_world import (
    GREEDY,
    TOLERANCE,
    TreeWorld,
    check_group,
    exact_settings,
    from_scratch,
)

pytestmark = [pytest.mark.llama, pytest.mark.grammar]

WORDS = "start: /(the|an|x[0-9]{2} )+/"
SAMPLED = SamplingParams(temperature=0.9, seed=3)


@pytest.fixture(scope="module")
def oracle(model: Path) -> Iterator[MemberDrafter]:
    """Knows no grammar and names every token, the end token too."""
    with LlamaRuntime(exact_settings(model, n_seq_max=2)) as loaded:
        yield MemberDrafter(DraftGroup(loaded, 1, loaded.num_vocab))


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SAMPLED, replace(SAMPLED, presence_penalty=0.5, logit_bias=((260, 3.0),))],
    ids=["greedy", "sampled", "adjusted"],
)
def test_candidates_are_the_best_of_those_allowed(
    runtime: LlamaRuntime, drafter: MemberDrafter, oracle: MemberDrafter, sampling: SamplingParams
) -> None:
    matcher = runtime.grammars.matcher(WORDS)
    world = TreeWorld(drafter, Random(1), replace(sampling, grammar=WORDS))
    world.start([5, 6, 7])
    for _ in range(25):
        nodes = world.random_rows()
        for node, found in zip(nodes, world.expand(nodes), strict=True):
            generated = world.text_of(node)[3:]
            allowed = matcher.allowed(np.array(generated, np.int32))
            if allowed is None:
                assert found.tokens == ()
            elif not sampling.presence_penalty:  # the oracle cannot tell the prompt from the text
                check_best(found, from_scratch(oracle, world.text_of(node), sampling), allowed)
            else:
                assert found.tokens
                assert allowed[list(found.tokens)].all()
        expanded = [node for node, found in world.expanded.items() if found.tokens]
        for parent in world.chance.sample(expanded, min(2, len(expanded))):
            world.expand([world.child(parent, world.expanded[parent].tokens[0])])
        if world.chance.random() < 0.3 and (line := fitting_line(world)):
            world.reroot(line)


def fitting_line(world: TreeWorld) -> list[tuple[int, int]]:
    """A path that a verifier could commit: down best candidates as far as they were expanded."""
    for path in world.paths.values():
        above = [world.tip, *path[:-1]]
        if all(world.tokens[node] in world.expanded[up].tokens for up, node in zip(above, path, strict=True)):
            return [(node, world.tokens[node]) for node in path]
    return []


def check_best(
    found: Expansion, every: Expansion, allowed: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> None:
    wanted = [
        (token, score) for token, score in zip(every.tokens, every.scores, strict=True) if allowed[token]
    ]
    wanted = wanted[: max(1, len(found.tokens))]
    assert len(found.tokens) == min(5, int(allowed.sum()))
    np.testing.assert_allclose(found.scores, [score for _, score in wanted], atol=TOLERANCE)
    assert all(map(math.isfinite, found.scores))
    assert set(found.tokens) <= set(np.flatnonzero(allowed).tolist())


def test_without_llguidance_the_draft_says_what_is_missing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with LlamaModel(exact_settings(model), weights=False) as tokens:
        with wording.raises(UserError):
            tokens.grammars.check(WORDS)
        monkeypatch.delitem(sys.modules, "llguidance")
        tokens.grammars.check(WORDS)


def test_a_refused_grammar_ends_that_sessions_drafting_only(runtime: LlamaRuntime) -> None:
    runtime.clear()
    group = DraftGroup(runtime, 2)
    group.begin(0, StartDrafter((1, 2), 0, SamplingParams(grammar="start: nothing")))
    group.begin(1, StartDrafter((1, 2), 0, SamplingParams(grammar=WORDS)))
    for member in (0, 1):
        group.ask(member, [DraftRow(0, None, 2, 1)])
    refused, sound = (answer.outcome for answer in group.turn())
    assert isinstance(refused, UserError)
    assert not isinstance(sound, ForerunError)
    assert sound[0].tokens
    group.reroot(1, Reroot(((1, sound[0].tokens[0]),), ()))
    check_group(group)


async def test_the_draft_alone_writes_texts_that_fit_their_schema() -> None:
    """The demo draft through a pool, two texts at once, one of them free."""

    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "ids": {"enum": [1, 22]}},
        "x-guidance": {"whitespace_flexible": False},
        "required": ["name", "ids"],
        "additionalProperties": False,
    }
    free = SamplingParams(temperature=0.8, seed=2, max_tokens=40, ignore_eos=True)
    bound = replace(free, grammar=json_schema_grammar(schema), max_tokens=120, ignore_eos=False)
    settings = LlamaSettings(str(DRAFT_GGUF), n_ctx=512, n_seq_max=16, n_batch=64, threads=1)
    with LlamaRuntime(settings) as runtime:
        async with DraftPool(runtime, 2) as pool:
            prompt = runtime.tokenize("Once there was", False)

            async def text(sampling: SamplingParams) -> list[int]:
                run = AloneRun(pool.seat(), prompt, sampling, runtime.eos_ids)
                return [token async for shown in run.shown() for token in shown.tokens]

            texts = await asyncio.gather(text(bound), text(free))
        written = b"".join(runtime.piece(token) for token in texts[0] if token not in runtime.eos_ids)
    found = json.loads(written)
    assert set(found) == {"name", "ids"}
    assert found["ids"] in (1, 22)
    assert len(texts[1]) == 40
