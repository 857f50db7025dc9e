"""Makes items of step plans by hand: rows below a prefix, each of which wants its choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cloud_verifier.core.engine_protocol import IntArray, StepItem
from common.choice import History
from common.grammar import json_schema_grammar
from common.sampling import SamplingParams

GREEDY = SamplingParams()


def ints(values: Sequence[int] | IntArray) -> IntArray:
    return np.array(values, dtype=np.int32)


def item_of(
    session: int,
    tokens: Sequence[int] | IntArray,
    prefix: Sequence[int] | IntArray,
    slots: Sequence[int] | IntArray,
    parents: Sequence[int],
    sampling: SamplingParams = GREEDY,
) -> StepItem:
    """Return rows of `tokens` in `slots` below a prefix that is held in the slots `prefix`."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return StepItem(
        session=session,
        prefix_slots=ints(prefix),
        tokens=ints(tokens),
        positions=ints(depths) + np.int32(len(prefix)),
        parents=ints(parents),
        slots=ints(slots),
        outputs=ints(range(len(tokens))),
        sampling=sampling,
    )


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SAMPLINGS = {
    "greedy": SamplingParams(),
    "T 0.8": SamplingParams(0.8, seed=1),
    "top-p 0.9": SamplingParams(0.8, top_p=0.9, seed=1),
    "penalties": SamplingParams(0.8, repetition_penalty=1.1, frequency_penalty=0.2, seed=1),
    "schema": SamplingParams(0.8, seed=1, grammar=json_schema_grammar(SCHEMA)),
}
"""The ways to choose a token whose cost is measured."""


def sampled(item: StepItem, sampling: SamplingParams, tokens: IntArray) -> StepItem:
    """Return the item with another sampling, as the scheduler would plan it: the context is the prompt."""
    context = len(item.prefix_slots)
    prompt, nothing = tokens[:context], np.zeros(0, np.int32)
    changed = replace(item, sampling=sampling)
    if sampling.reads_text:
        history = History.of(sampling, prompt, nothing) if sampling.has_penalties else None
        changed = replace(changed, prompt=prompt, generated=nothing, history=history)
    return changed
