"""The law of the text: every tree over a tiny vocabulary gives the target's text, under every parameter."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.core.scheduler import VerifyScheduler
from common.messages import Open, Propose
from common.sampling import SamplingParams
from tests.support.played import played
from tests.worlds.models import FINGERPRINT, VOCAB, TinyTarget, target_alone

pytestmark = pytest.mark.slow

PROMPT = (1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2)  # it repeats itself, for verifiers that guess
INFO = TargetInfo("tiny", VOCAB, 64, 200, (), FINGERPRINT)
TOKENS = (0, 1, 2)
BAN = tuple((token, -1000.0) for token in range(len(TOKENS), VOCAB))  # what is left is a vocabulary of three

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


def text_with(tree: Tree, sampling: SamplingParams, blend: float | None = None) -> tuple[int, ...]:
    """What a session commits that proposes this tree at once and nothing later. With `blend` the verifier has
    a drafter of its own, as good as that says."""
    info = INFO if blend is None else replace(INFO, guess_depth=3)
    scheduler, engine = VerifyScheduler(info), TinyTarget(info, blend=blend or 0.0)
    scheduler.on_open(1, Open(PROMPT, sampling, FINGERPRINT), 0.0)
    scheduler.on_propose(1, propose(tree), 0.0)
    text = played(scheduler, engine, step_time=0.030)[1]
    assert not scheduler.sessions
    return tuple(text)


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_tree_yields_the_targets_own_text(name: str) -> None:
    sampling = PARAMETERS[name]
    alone = target_alone(PROMPT, sampling, ())
    assert {text_with(tree, sampling) for tree in trees()} == {alone}


@pytest.mark.parametrize("blend", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", PARAMETERS)
def test_every_tree_beside_own_guesses_yields_the_targets_own_text(name: str, blend: float) -> None:
    sampling = replace(PARAMETERS[name], max_tokens=6)
    alone = target_alone(PROMPT, sampling, ())
    some = itertools.islice(trees(), 0, None, 64)
    assert {text_with(tree, sampling, blend) for tree in some} == {alone}
