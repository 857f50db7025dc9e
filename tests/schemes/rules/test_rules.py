"""Laws of acceptance rules: the target's law is written, how much is accepted, what lossy rules let pass."""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import Ask, Offer, StepItem
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.rules import decide
from common.acceptance import TOTAL, Acceptance, AcceptanceRule, Draft
from common.chances import Chances, SeededChances
from common.choice import choose
from common.errors import LocalError, UserError
from common.sampling import SamplingParams
from schemes.rules import spectr
from schemes.rules.drafts import draw, quantised
from schemes.rules.row_laws import residual
from schemes.rules.trained_judge import FEATURES, Judge, features
from tests.worlds.enumeration import distance, law_of

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
FORK: Shape = (CHAIN_2, CHAIN_1)
FOUR: Shape = (TREE, PAIR, CHAIN_1)
SHAPES: dict[str, Shape] = {
    "nothing": LEAF,
    "one": CHAIN_1,
    "two": CHAIN_2,
    "three": CHAIN_3,
    "pair": PAIR,
    "all": ALL,
    "tree": TREE,
    "fork": FORK,
}
TIP_AT = 4  # the position of row 0

EXACT = 1e-12
REJECTION, SPECINFER, BLOCK = map(
    Acceptance, (AcceptanceRule.REJECTION, AcceptanceRule.SPECINFER, AcceptanceRule.BLOCK)
)
SPECTR, SPECTR_OT = map(Acceptance, (AcceptanceRule.SPECTR, AcceptanceRule.SPECTR_OT))
JUDGE = AcceptanceRule.JUDGE
TYPICAL, TOPK_GAP, BILD = AcceptanceRule.TYPICAL, AcceptanceRule.TOPK_GAP, AcceptanceRule.BILD


class Models:
    """Laws and drafts after every text, drawn from `seed`; some tokens have no chance at all."""

    def __init__(self, seed: int, vocab_size: int = 3, kept: int | None = None) -> None:
        self.seed = seed
        self.vocab_size = vocab_size
        self._kept = kept or vocab_size
        self._laws: dict[tuple[str, Text], FloatArray] = {}

    def write(self, kind: str, text: Text, *law: float) -> None:
        """Set the law of "target" or "draft" after a text."""
        self._laws[kind, text] = np.array(law)

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
    judge: Judge | None = None
    temperature: float = 1.0
    copies: dict[int, int] = field(default_factory=dict)
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
            sampling=SamplingParams(self.temperature),
            ask=Ask(acceptance, tuple(self.offers), self.judge, self.copies),
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


def drawn(
    models: Models,
    shape: Shape,
    chances: Chances,
    evaluated: Evaluated = lambda path: True,
    replaces: bool = False,
) -> Step:
    """A step whose nodes are drawn from the drafts; `evaluated` tells which are rows if their parents are.
    With replacement a token that is drawn again is the row that it was."""
    step = Step(models)

    def grow(path: Text, parent: int, below: Shape, node: int) -> None:
        draft = models.draft(path)
        tokens = draw(draft, node, len(below), chances, replaces)
        row = step.add(path, parent, Offer(tokens, draft if below else None))
        for turn, (token, child) in enumerate(zip(tokens, below, strict=False)):
            if evaluated((*path, token)) and (*path, token) not in step.paths:
                grow((*path, token), row, child, node * 10 + turn + 1)

    grow((), -1, shape, 1)
    return step


def law_under(
    acceptance: Acceptance, models: Models, shape: Shape, evaluated: Evaluated = lambda path: True
) -> Law:
    """Of what one step writes, exactly."""
    replaces = acceptance.rule.replaces
    return law_of(
        lambda branch: drawn(models, shape, branch, evaluated, replaces).written(acceptance, branch),
    )


def mean_length(law: Law) -> float:
    """Tokens of a step."""
    return sum(chance * len(text) for text, chance in law.items())


def ints(values: object) -> NDArray[np.int32]:
    return np.array(list(values), np.int32)  # type: ignore[call-overload]  # any iterable of ints


# What rules look at -----------------------------------------------------------------------------------------


def fork() -> Step:
    made = Step(Models(0))
    tip = made.add((), -1, Offer((1, 2)))
    made.add((1,), tip, Offer())
    below = made.add((2,), tip, Offer((1,)))
    made.add((2, 1), below, Offer())
    return made


def test_what_is_left_over_is_a_law_and_where_nothing_is_the_law_stays() -> None:
    left = residual(np.array([0.5, 0.3, 0.2]), np.array([0, 2]), np.array([0.25, 0.75]))
    assert left == pytest.approx([0.25 / 0.55, 0.3 / 0.55, 0.0])
    law = np.array([0.25, 0.75, 0.0])
    assert residual(law, np.array([0, 1]), np.array([0.25, 0.75])) is law


def test_rows_off_the_path_keep_the_coupled_choice() -> None:
    made = fork()
    made.models.write("target", (), 0.0, 0.0, 1.0)
    made.models.write("target", (2,), 1.0, 0.0, 0.0)
    made.judge = a_judge(log_rank=1.0)
    for acceptance in map(Acceptance, set(AcceptanceRule) - {AcceptanceRule.COUPLED}):
        choices = decide(
            made.item(acceptance),
            np.array([2, 77, 0, 99], np.int32),
            lambda row: made.models.target(made.paths[row]),
        )
        assert choices.tolist() == [2, 77, 0, 99]


# Lossless rules ---------------------------------------------------------------------------------------------


def error_of(
    acceptance: Acceptance,
    models: Models,
    shape: Shape,
    length: int = 4,
    evaluated: Evaluated = lambda path: True,
) -> float:
    written = models.completed(law_under(acceptance, models, shape, evaluated), length)
    return distance(written, models.completed({(): 1.0}, length))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "acceptance", [REJECTION, SPECINFER, BLOCK, SPECTR, SPECTR_OT], ids=lambda each: each.title
)
def test_what_is_written_has_the_targets_law(acceptance: Acceptance, shape: str) -> None:
    for seed in range(4):
        assert error_of(acceptance, Models(seed), SHAPES[shape]) < EXACT


def dense(draft: Draft, vocab_size: int = 3) -> FloatArray:
    """float64 [V]"""
    q = np.zeros(vocab_size)
    q[list(draft.tokens)] = np.array(draft.counts) / TOTAL
    return q


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_best_selection_of_many_tokens_is_reached(count: int) -> None:
    """The greatest chance is 1 - max of q(S)^k - p(S), over all beginnings S of the order of p / q."""
    random = np.random.default_rng(count)
    for _ in range(10):
        targets, q = random.dirichlet(np.full(40, 0.5)) * 0.9, random.multinomial(216, [1 / 40] * 40) + 1
        shares = q / 256
        selection = spectr._selection(targets, shares, count)
        parts = spectr._parts(shares, selection, count)
        lengths = [sum(high - low for low, high in part) for part in parts]
        assert lengths == pytest.approx(shares.tolist(), abs=EXACT)
        edges = sorted(place for part in parts for place in part)
        assert all(stop == pytest.approx(start, abs=EXACT) for (_, stop), (start, _) in pairwise(edges))
        weights = [sum(high**count - low**count for low, high in part) for part in parts]
        order = np.argsort(targets / shares)
        excess = shares[order].cumsum() ** count - targets[order].cumsum()
        assert np.minimum(targets, weights).sum() == pytest.approx(1.0 - max(0.0, excess.max()), abs=EXACT)


@pytest.mark.parametrize("lenience", [1.0, 0.8, 0.5, 0.1])
def test_lenience_accepts_more_and_is_lossless_only_at_1(lenience: float) -> None:
    """No token gets likelier than its chance over the lenience (Leviathan et al. 2023, A.5)."""
    lenient, errors = Acceptance(AcceptanceRule.LENIENCE, lenience=lenience), list[float]()
    for seed in range(6):
        models = Models(seed)
        law = law_under(lenient, models, CHAIN_1)
        assert mean_length(law) >= mean_length(law_under(REJECTION, models, CHAIN_1)) - EXACT
        first = models.completed(law, 1)
        errors.append(distance(first, models.completed({(): 1.0}, 1)))
        for (token,), chance in first.items():
            assert chance <= models.target(())[token] / lenience + EXACT
    assert max(errors) < EXACT if lenience == 1.0 else max(errors) > 0.02


@pytest.mark.parametrize("shape", [CHAIN_1, PAIR, CHAIN_2, (CHAIN_1, CHAIN_1)], ids=["1", "2", "1x1", "2x1"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 0.5), (0.3, 1.0), (1e-9, 0.0), (1.0, 2.0)])
def test_contrastive_writes_its_own_law_where_the_draft_is_known(
    alpha: float, beta: float, shape: Shape
) -> None:
    """softmax of (1 + beta) log p - beta log q over the tokens with p >= alpha max p, and p after the last
    drafts."""
    acceptance, depth = Acceptance(AcceptanceRule.CONTRASTIVE, alpha=alpha, beta=beta), 1 + bool(shape[0])
    for seed in range(4):
        models, own = Models(seed), Models(seed)
        for text in [(), (0,), (1,), (2,)][: 1 if depth == 1 else 4]:
            p, q = models.target(text), np.maximum(dense(models.draft(text)), 1 / 512)
            scores = [
                (1 + beta) * np.log(p[token]) - beta * np.log(q[token])
                if p[token] >= alpha * p.max() > 0 < p[token]
                else -np.inf
                for token in range(3)
            ]
            own.write("target", text, *np.exp(scores) / np.exp(scores).sum())
        law = own.completed(law_under(acceptance, models, shape), 3)
        assert distance(law, own.completed({(): 1.0}, 3)) < EXACT


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_contrastive_is_the_algorithm_of_its_paper(temperature: float) -> None:
    """Algorithm 2 of O'Brien and Lewis (2023), by hand, with alpha 0.1 and beta 0.5.

    Expert logits are ln 8, ln 7 and ln 0.5, the amateur's ln 3/4, ln 1/8 and ln 1/8: the third token is below
    ln 0.1 + ln 8, and of the others 8^1.5 (3/4)^-0.5 = 26.128 and 7^1.5 (1/8)^-0.5 = 52.383 remain.
    """
    models = Models(0)
    models.write("target", (), 8 / 15.5, 7 / 15.5, 0.5 / 15.5)
    draft = Draft((0, 1, 2), (192, 32, 32))
    law = Counter[int]()
    for seed in range(1 if temperature == 0.0 else 4000):
        step, chances = Step(models, temperature=temperature), SeededChances(seed)
        step.add((), -1, Offer(draw(draft, 1, 1, chances), draft))
        (token,) = step.written(Acceptance(AcceptanceRule.CONTRASTIVE), chances, coupled=0)[:1]
        law[token] += 1
    if temperature == 0.0:
        assert list(law) == [1]
    else:
        assert law[1] / law.total() == pytest.approx(52.383 / 78.511, abs=0.03)
        assert law[2] == 0


def test_greedy_contrastive_writes_the_targets_best_where_no_draft_is_known() -> None:
    models = Models(0)
    models.write("target", (), 0.4, 0.35, 0.25)
    for seed in range(20):
        step = Step(models, temperature=0.0)
        step.add((), -1, Offer())
        assert step.written(Acceptance(AcceptanceRule.CONTRASTIVE), SeededChances(seed), coupled=0)[:1] == (
            0,
        )


# Lossy rules ------------------------------------------------------------------------------------------------

LAW = (0.5, 0.3, 0.15, 0.05, 0.0)


def a_judge(threshold: float = 0.5, bias: float = 0.0, **weights: float) -> Judge:
    """A judge that reads the named features as they are."""
    own = tuple(weights.pop(name, 0.0) for name in FEATURES)
    assert not weights, "all are features"
    return Judge((0.0,) * len(FEATURES), (1.0,) * len(FEATURES), own, bias, threshold)


def taken(
    acceptance: Acceptance,
    offered: tuple[int, ...],
    own: int,
    law: tuple[float, ...] = LAW,
    judge: Judge | None = None,
) -> Text:
    """What is written where `offered` children hang below the tip and the target writes `own`."""
    models = Models(0, vocab_size=len(law))
    models.write("target", (), *law)
    step = Step(models, judge)
    step.add((), -1, Offer(offered))
    return step.written(acceptance, None, coupled=own)


@pytest.mark.parametrize(
    ("acceptance", "tokens"),
    [
        (Acceptance(TYPICAL, epsilon=0.3, delta=1.0), [0]),  # the chance must be above epsilon, not at it
        (Acceptance(TYPICAL, epsilon=0.29, delta=1.0), [0, 1]),
        (Acceptance(TYPICAL, epsilon=0.3, delta=0.09), [0, 1, 2, 3]),  # entropy 1.14: 0.09 e^-1.14 = 0.029
        (Acceptance(TYPICAL, epsilon=0.3, delta=0.3), [0, 1, 2]),
        (Acceptance(TYPICAL, epsilon=1.0, delta=0.0), [0, 1, 2, 3]),
        (Acceptance(TOPK_GAP, top=1, gap=9.0), [0]),
        (Acceptance(TOPK_GAP, top=3, gap=9.0), [0, 1, 2]),
        (Acceptance(TOPK_GAP, top=5, gap=1.0), [0, 1]),  # log(0.5 / 0.15) is 1.2
        (Acceptance(TOPK_GAP, top=5, gap=1.21), [0, 1, 2]),
        (Acceptance(TOPK_GAP, top=5, gap=1e9), [0, 1, 2, 3]),
        (Acceptance(BILD, rollback=0.5), []),  # -log 0.5 is 0.69
        (Acceptance(BILD, rollback=0.7), [0]),
        (Acceptance(BILD, rollback=2.0), [0, 1, 2]),
        (Acceptance(BILD, rollback=1e9), [0, 1, 2, 3]),
    ],
    ids=lambda each: each.title if isinstance(each, Acceptance) else "",
)
def test_what_passes_is_what_the_definition_says(acceptance: Acceptance, tokens: list[int]) -> None:
    assert [token for token in range(5) if taken(acceptance, (token,), -1) == (token,)] == tokens


@pytest.mark.parametrize("rule", [TOPK_GAP, BILD], ids=lambda rule: rule.title)
def test_the_targets_own_choice_comes_first_then_the_eldest_that_is_good_enough(rule: AcceptanceRule) -> None:
    acceptance = Acceptance(rule)
    assert taken(acceptance, (0, 1, 3), own=3) == (3,)
    assert taken(acceptance, (0, 1, 3), own=4) == (0,)
    assert taken(acceptance, (), own=2) == taken(acceptance, (4,), own=2) == (2,), "none is good enough"


def test_typical_takes_the_longest_path_of_typical_tokens_and_the_likeliest_of_equals() -> None:
    """Held against all paths of random trees, as Medusa's programs compare their candidates."""
    acceptance, lengths = Acceptance(TYPICAL, epsilon=0.25, delta=1.0), set[int]()
    for seed in range(60):
        models = Models(seed, vocab_size=4)
        step = drawn(models, FOUR, SeededChances(seed))

        def good(path: Text, models: Models = models) -> list[float]:
            laws = [models.target(path[:place]) for place in range(len(path))]
            chances = [float(law[token]) for law, token in zip(laws, path, strict=True)]
            bounds = [np.exp((law[law > 0] * np.log(law[law > 0])).sum()) for law in laws]
            passed = all(chance > min(0.25, bound) for chance, bound in zip(chances, bounds, strict=True))
            return chances if passed else []

        offered = [
            (*path, token)
            for path, offer in zip(step.paths, step.offers, strict=True)
            for token in offer.tokens
            if good((*path, token))
        ]
        best = max(offered, key=lambda path: (len(path), np.prod(good(path))), default=())
        lengths.add(len(best))
        written = step.written(acceptance, None, coupled=9)  # the own choice is no child
        assert written == (*best, 9)[: len(written)]
        assert len(written) >= len(best)
    assert lengths >= {1, 2, 3}


# The rule `judge` -------------------------------------------------------------------------------------------


def test_a_judge_reads_chances_entropy_and_rank() -> None:
    entropy = -sum(chance * math.log(chance) for chance in LAW if chance)
    row = features(np.array(LAW), 2)
    assert row == pytest.approx([math.log(0.15), math.log(0.5), entropy, math.log(3)])
    assert features(np.array([0.4, 0.4, 0.2]), 1)[3] == 0.0, "equals have the same rank"


@pytest.mark.parametrize(
    ("judge", "tokens"),
    [
        (a_judge(log_rank=1.0, bias=-math.log(2.5)), [0, 1]),  # P(important) is rank / (rank + 2.5)
        (a_judge(log_rank=1.0, bias=-math.log(2.5), threshold=0.6), [0, 1, 2]),  # 4 / 6.5 is above 0.6
        (a_judge(token_logprob=-1.0, bias=math.log(0.1)), [0, 1, 2]),  # 0.1 / (0.1 + p)
        (a_judge(bias=-9.0), [0, 1, 2, 3]),  # never one without a chance
        (a_judge(threshold=0.0), []),
        (a_judge(entropy=-1.0, bias=1.0), [0, 1, 2, 3]),  # the entropy is 1.14
        (a_judge(best_logprob=-1.0, bias=-0.6), []),  # 0.69 is above 0.6
    ],
)
def test_a_judge_lets_pass_what_is_below_its_threshold(judge: Judge, tokens: list[int]) -> None:
    rule = Acceptance(JUDGE)
    assert [token for token in range(5) if taken(rule, (token,), -1, judge=judge) == (token,)] == tokens


def test_the_rule_needs_a_judge() -> None:
    with pytest.raises(LocalError):
        taken(Acceptance(JUDGE), (0,), own=3)
    with pytest.raises(UserError):
        SchedulerConfig(rules=(AcceptanceRule.COUPLED, JUDGE))


def test_a_judge_is_read_back_as_it_was_written_and_nothing_else_is_one() -> None:
    judge = a_judge(0.25, 0.1, entropy=1 / 3)
    written = judge.to_json(tasks=7)
    assert Judge.from_json(written) == judge
    told = json.loads(written)
    broken = (
        "judge",
        "[]",
        json.dumps({**told, "features": ["hidden"]}),
        json.dumps({**told, "weights": told["weights"][1:]}),
        json.dumps({**told, "scale": [0.0] * len(FEATURES)}),
        json.dumps({**told, "threshold": 2}),
        json.dumps({name: value for name, value in told.items() if name != "bias"}),
    )
    for text in broken:
        with pytest.raises(UserError):
            Judge.from_json(text)


# The rule `reflective` --------------------------------------------------------------------------------------


def reflected(fusion: float, second: tuple[float, ...], own: int = 0, law: tuple[float, ...] = LAW) -> Text:
    """What is written below a tip with a child (1,), whose second look is row 2."""
    models = Models(0, vocab_size=len(law))
    models.write("target", (), *law)
    models.write("target", (9,), *second)
    step = Step(models)
    step.add((), -1, Offer((1,)))
    step.add((1,), 0, Offer())
    step.add((9,), 1, Offer())
    step.copies = {0: 2}
    item = replace(step.item(Acceptance(AcceptanceRule.REFLECTIVE, fusion=fusion)), sampling=SamplingParams())
    choices = decide(item, np.array([own, 4, 4], np.int32), lambda row: models.target(step.paths[row]))
    return (int(choices[0]),)


def test_a_second_look_is_fused_with_the_first() -> None:
    second = (0.1, 0.8, 0.1, 0.0, 0.0)
    # Token 1 overtakes token 0 where (1 - a) log(5 / 3) < a log 8, from a = 0.197 on.
    assert [reflected(fusion, second) for fusion in (0.0, 0.19, 0.2, 1.0)] == [(0,), (0,), (1,), (1,)]
    assert reflected(1.0, (0.0, 0.0, 0.0, 0.0, 1.0)) == (0,), "a token without a chance never wins"


def test_without_a_second_look_the_choice_is_the_coupled_one() -> None:
    assert taken(Acceptance(AcceptanceRule.REFLECTIVE), (1,), own=3) == (3,)


def test_a_fusion_of_0_chooses_under_the_same_noise_as_the_coupled_rule() -> None:
    law = np.array(LAW[:4])
    for seed in range(50):
        step = Step(Models(0, vocab_size=4))
        step.add((), -1, Offer((1,)))
        step.add((1,), 0, Offer())
        step.copies = {0: 1}
        sampling = SamplingParams(temperature=1.0, seed=seed)
        item = replace(step.item(Acceptance(AcceptanceRule.REFLECTIVE, fusion=0.0)), sampling=sampling)
        own = choose(np.log(law).astype(np.float32), sampling, TIP_AT).token
        choices = decide(item, np.array([own, 0], np.int32), lambda row: law)
        assert choices[0] == own
