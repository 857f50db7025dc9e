"""The law of the text: every tree over a tiny vocabulary, every sampling parameter, and the distribution."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from cloud_verifier.core.effects import Reply
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import TargetInfo
from common.choice import process_logits
from common.messages import Commit, Open, Propose
from common.sampling import SamplingParams
from tests.worlds.models import FINGERPRINT, VOCAB, TinyTarget, target_alone, tiny_logits

TOKENS = (0, 1, 2)
BAN = tuple((token, -1000.0) for token in range(len(TOKENS), VOCAB))  # what is left is a vocabulary of three
PROMPT = (1, 2)
INFO = TargetInfo("tiny", VOCAB, 64, 256, (), FINGERPRINT)

Subset = tuple[int, ...]
Tree = tuple[Subset, tuple[Subset, ...]]  # the tip's children, and each child's own


def params(**fields: object) -> SamplingParams:
    return SamplingParams(**{"logit_bias": BAN, "max_tokens": 3, **fields})  # type: ignore[arg-type]


PARAMETERS = {
    "greedy": params(),
    "temperature": params(temperature=0.7),
    "hot": params(temperature=3.0),
    "top_k": params(temperature=1.0, top_k=2),
    "top_p": params(temperature=2.5, top_p=0.9),
    "min_p": params(temperature=2.5, min_p=0.1),
    "repetition": params(temperature=1.0, repetition_penalty=1.5),
    "presence": params(temperature=1.0, presence_penalty=1.0),
    "frequency": params(temperature=1.0, frequency_penalty=0.8),
    "bias": params(temperature=1.0, logit_bias=(*BAN, (0, 2.0))),
    "stop": params(temperature=1.0, stop_token_ids=(2,)),
    "all": params(
        temperature=0.9, top_k=3, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.2
    ),
}


def subsets() -> list[Subset]:
    return [s for size in range(len(TOKENS) + 1) for s in itertools.combinations(TOKENS, size)]


def trees() -> Iterator[Tree]:
    """All 729 trees of depth two over three tokens; the chains are among them."""
    for children in subsets():
        for below in itertools.product(subsets(), repeat=len(children)):
            yield children, below


def propose(tree: Tree) -> Propose:
    """The tree as one message: the tip's children first, then theirs."""
    children, below = tree
    tokens, deltas = list(children), [0] * len(children)
    for index, grandchildren in enumerate(below):
        for token in grandchildren:
            deltas.append(len(tokens) - index)
            tokens.append(token)
    return Propose(tuple(tokens), bytes(len(tokens)), tuple(deltas), anchor=len(PROMPT) - 1)


def text_with(tree: Tree, sampling: SamplingParams) -> tuple[int, ...]:
    """What a session commits that proposes this tree at once and nothing later."""
    scheduler, engine = VerifyScheduler(INFO), TinyTarget(INFO)
    scheduler.on_open(1, Open(PROMPT, sampling, FINGERPRINT), 0.0)
    scheduler.on_propose(1, propose(tree), 0.0)
    text: list[int] = []
    while (plan := scheduler.next_step(0.0)) is not None:
        scheduler.on_step_done(engine.evaluate(plan), 0.0)
        for effect in scheduler.effects():
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                text += effect.message.tokens
    return tuple(text)


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_tree_yields_the_targets_own_text(name: str) -> None:
    sampling = PARAMETERS[name]
    alone = target_alone(PROMPT, sampling, ())
    assert {text_with(tree, sampling) for tree in trees()} == {alone}


def law(sampling: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    """The target's own distribution over texts of `length` tokens, by enumeration of all of them."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        found = {
            (*text, token): chance * probability
            for text, chance in found.items()
            for token, probability in _next_token_law(sampling, text).items()
        }
    return found


def _next_token_law(sampling: SamplingParams, text: tuple[int, ...]) -> dict[int, float]:
    prompt, generated = np.array(PROMPT, np.int32), np.array(text, np.int32)
    scores = process_logits(tiny_logits(1, PROMPT + text), sampling, prompt, generated)
    weights = np.exp(scores - scores.max())
    return {token: float(weights[token] / weights.sum()) for token in TOKENS if weights[token] > 0}


# Quantile 0.9999 of chi-square by degrees of freedom; the seeds are fixed, so a pass stays a pass.
CRITICAL = {
    1: 15.14, 2: 18.42, 3: 21.11, 4: 23.51, 5: 25.74, 6: 27.86, 7: 29.88, 8: 31.83, 9: 33.72, 10: 35.56,
    11: 37.37, 12: 39.13, 13: 40.87, 14: 42.58, 15: 44.26, 16: 45.92, 17: 47.57, 18: 49.19, 19: 50.80,
    20: 52.39, 21: 53.96, 22: 55.52, 23: 57.07, 24: 58.61, 25: 60.14, 26: 61.66,
}  # fmt: skip
NUM_SEEDS = 600


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name not in ("greedy", "stop")])
def test_texts_over_seeds_follow_the_targets_law(name: str) -> None:
    base = PARAMETERS[name]
    expected = law(base, base.max_tokens)
    chain: Tree = ((0,), ((1,),))
    wide: Tree = (TOKENS, (TOKENS, TOKENS, TOKENS))
    counts: dict[tuple[int, ...], int] = dict.fromkeys(expected, 0)
    for seed in range(NUM_SEEDS):
        fields = {field: getattr(base, field) for field in base.__dataclass_fields__}
        text = text_with(wide if seed % 2 else chain, SamplingParams(**{**fields, "seed": seed}))
        counts[text] += 1  # a KeyError would be a text that the law forbids
    cells = _merged([(counts[text], NUM_SEEDS * chance) for text, chance in expected.items()])
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    assert statistic < CRITICAL[len(cells) - 1]


def _merged(cells: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Cells with fewer than five expected texts, taken together (the usual rule for chi-square)."""
    large: list[tuple[float, float]] = [(seen, mean) for seen, mean in cells if mean >= 5]
    small = [(seen, mean) for seen, mean in cells if mean < 5]
    seen, mean = sum(cell[0] for cell in small), sum(cell[1] for cell in small)
    if mean >= 5:
        large.append((seen, mean))
    elif large:
        large[0] = (large[0][0] + seen, large[0][1] + mean)
    return large
