"""Steps made by hand for a rule: a tree of drawn nodes, and a random target and draft to draw them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.offers import Ask, Offer
from cloud_verifier.core.rules import decide
from cloud_verifier.core.target import StepItem
from common.acceptance import Acceptance
from common.chances import Chances
from common.draft import Draft, draw, quantised
from common.sampling import SamplingParams
from tests.worlds.enumeration import law_of

Text = tuple[int, ...]
Law = dict[Text, float]
Shape = tuple["Shape", ...]  # a node's children, each with its own
FloatArray = NDArray[np.float64]

LEAF: Shape = ()
CHAIN_1: Shape = (LEAF,)
CHAIN_2: Shape = (CHAIN_1,)
CHAIN_3: Shape = (CHAIN_2,)
PAIR: Shape = (LEAF, LEAF)
ALL: Shape = (LEAF, LEAF, LEAF)
TREE: Shape = (PAIR, CHAIN_1)
TIP_AT = 4  # the position of row 0


class Models:
    """Laws and drafts after every text, drawn from `seed`; some tokens have no chance at all."""

    def __init__(self, seed: int, vocab_size: int = 3, kept: int | None = None) -> None:
        self.seed = seed
        self.vocab_size = vocab_size
        self._kept = kept or vocab_size
        self._laws: dict[tuple[str, Text], FloatArray] = {}

    def target(self, text: Text) -> FloatArray:
        """float64 [V]"""
        return self._law("target", text)

    def draft(self, text: Text) -> Draft:
        law = self._law("draft", text)
        best = [token for token in np.argsort(-law).tolist() if law[token] > 0][: self._kept]
        return quantised(best, np.log(law[best]).tolist())

    def _law(self, kind: str, text: Text) -> FloatArray:
        if (kind, text) not in self._laws:
            random = np.random.default_rng([self.seed, len(kind), *text])
            law = random.dirichlet(np.full(self.vocab_size, 0.8))
            if random.random() < 0.3:
                law[random.integers(self.vocab_size)] = 0.0
            self._laws[kind, text] = law / law.sum()
        return self._laws[kind, text]

    def completed(self, law: Law, length: int) -> Law:
        """Of texts cut at `length`, shorter ones ended by the target."""
        done: Law = {}
        begun = dict(law)
        while begun:
            text, chance = begun.popitem()
            if len(text) >= length:
                done[text[:length]] = done.get(text[:length], 0.0) + chance
                continue
            for token, share in enumerate(self.target(text).tolist()):
                if share > 0.0:
                    begun[*text, token] = begun.get((*text, token), 0.0) + chance * share
        return done


@dataclass
class Step:
    """Rows of one session, the tip first; `paths` has each row's text below the tip."""

    models: Models
    paths: list[Text] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)

    def add(self, path: Text, parent: int, offer: Offer) -> int:
        self.paths.append(path)
        self.parents.append(parent)
        self.offers.append(offer)
        return len(self.paths) - 1

    def item(self, acceptance: Acceptance, chunk: int = 0) -> StepItem:
        """As the session plans it, behind `chunk` rows of the prompt."""
        count = len(self.paths)
        above = [*range(-1, chunk - 1), chunk - 1, *(chunk + parent for parent in self.parents[1:])]
        depths = [*range(-chunk, 0), *(len(path) for path in self.paths)]
        tokens = [0] * chunk + [path[-1] if path else 0 for path in self.paths]
        return StepItem(
            session=1,
            prefix_slots=ints(range(TIP_AT - chunk)),
            tokens=ints(tokens),
            positions=ints(TIP_AT + depth for depth in depths),
            parents=ints(above),
            slots=ints(range(50, 50 + chunk + count)),
            outputs=ints(range(chunk, chunk + count)),
            sampling=SamplingParams(temperature=1.0),
            ask=Ask(acceptance, tuple(self.offers)),
        )

    def written(
        self, acceptance: Acceptance, chances: Chances | None, coupled: int = -1, chunk: int = 0
    ) -> Text:
        """What the commit walk takes from the rule's choices."""
        item = self.item(acceptance, chunk)
        own = np.full(len(self.paths), coupled, np.int32)
        choices = decide(item, own, lambda row: self.models.target(self.paths[row]), chances)
        text: Text = ()
        while text in self.paths:
            text = (*text, int(choices[self.paths.index(text)]))
        return text


Evaluated = Callable[[Text], bool]


def drawn(models: Models, shape: Shape, chances: Chances, evaluated: Evaluated = lambda path: True) -> Step:
    """A step whose nodes are drawn from the drafts; `evaluated` tells which are rows if their parents are."""
    step = Step(models)

    def grow(path: Text, parent: int, below: Shape, node: int) -> None:
        draft = models.draft(path)
        tokens = draw(draft, node, len(below), chances)
        row = step.add(path, parent, Offer(tokens, draft if below else None))
        for turn, (token, child) in enumerate(zip(tokens, below, strict=False)):
            if evaluated((*path, token)):
                grow((*path, token), row, child, node * 10 + turn + 1)

    grow((), -1, shape, 1)
    return step


def law_under(
    acceptance: Acceptance, models: Models, shape: Shape, evaluated: Evaluated = lambda path: True
) -> Law:
    """Of what one step writes, exactly."""
    return law_of(
        lambda branch: drawn(models, shape, branch, evaluated).written(acceptance, branch),
    )


def mean_length(law: Law) -> float:
    """Tokens of a step."""
    return sum(chance * len(text) for text, chance in law.items())


def ints(values: object) -> NDArray[np.int32]:
    return np.array(list(values), np.int32)  # type: ignore[call-overload]  # any iterable of ints
