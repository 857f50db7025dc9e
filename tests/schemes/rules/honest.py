"""An honest edge that a test moves by hand, joined to the real scheduler, so that laws can be added up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.effects import Reply
from cloud_verifier.core.engine_protocol import (
    Followers,
    GuessItem,
    GuessPlan,
    GuessResult,
    StepItem,
    StepPlan,
    StepResult,
    TargetEngine,
    TargetInfo,
)
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.rules import decide
from cloud_verifier.core.scheduler import VerifyScheduler
from common.acceptance import Acceptance, AcceptanceRule, Draft
from common.chances import Chances
from common.errors import LocalError
from common.messages import Commit, Open, Propose
from common.sampling import SamplingParams
from common.tree import Node, SpeculationTree
from edge_client.core.effects import Expansion
from edge_client.core.sent_nodes import Outgoing
from schemes.rules.drafts import draw, quantised
from schemes.rules.drawing import untold
from tests.support.law import process_logits
from tests.worlds.enumeration import Branch, law_of
from tests.worlds.models import FINGERPRINT, VOCAB, tiny_logits

Text = tuple[int, ...]
Law = dict[Text, float]
OwnDrafter = Callable[[Text, GuessItem], tuple[Followers, ...]]
"""Guesses what follows the prompt and a text, whose last token is the item's tip."""

PROMPT = (1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2)  # it repeats itself, for verifiers that guess
INFO = TargetInfo("tiny", VOCAB, 64, 200, (), FINGERPRINT)
STEP_TIME = 0.030  # seconds
NEIGHBOUR = 99  # the key of another session
TOKENS = (0, 1, 2)
BAN = tuple((token, -1000.0) for token in range(len(TOKENS), VOCAB))  # what is left is a vocabulary of three
PLAIN = SamplingParams(temperature=2.0, logit_bias=BAN, ignore_eos=True, max_tokens=3)


@lru_cache(maxsize=4096)
def next_law(salt: int, sampling: SamplingParams, text: Text) -> NDArray[np.float64]:
    """float64 [VOCAB]: what the tiny model of this salt says after the prompt and `text`."""
    logits, prompt = tiny_logits(salt, PROMPT + text), np.array(PROMPT, np.int32)
    weights = np.exp(process_logits(logits, sampling, prompt, np.array(text, np.int32)))
    law: NDArray[np.float64] = weights / weights.sum()
    law.flags.writeable = False
    return law


@lru_cache(maxsize=4096)
def next_draft(salt: int, kept: int, text: Text) -> Draft:
    """The `kept` best tokens of what the tiny model of this salt says, as they travel."""
    law = next_law(salt, PLAIN, text)
    best = np.argsort(-law, kind="stable")[:kept].tolist()
    return quantised(best, np.log(law[best]).tolist())


def completed(law: Law, sampling: SamplingParams, salt: int) -> Law:
    """What the target itself makes of texts that have begun: the law of whole texts."""
    done: Law = {}
    begun = dict(law)
    while begun:
        text, chance = begun.popitem()
        if len(text) == sampling.max_tokens or (text and text[-1] in sampling.stop_token_ids):
            done[text] = done.get(text, 0.0) + chance
            continue
        for token, share in enumerate(next_law(salt, sampling, text).tolist()):
            if share > 0.0:
                longer = (*text, token)
                begun[longer] = begun.get(longer, 0.0) + chance * share
    return done


def tiny_drafter(salt: int) -> OwnDrafter:
    """Guesses what the tiny model of this salt says, without chance."""

    def guess(text: Text, item: GuessItem) -> tuple[Followers, ...]:
        said = list[Followers]()
        paths: list[Text] = [()]
        for _ in range(item.depth):
            for path in paths:
                law = next_law(salt, PLAIN, (*text, *path))
                best = np.argsort(-law, kind="stable")[:2]
                said.append(Followers(path, tuple(best.tolist()), tuple(np.log(law[best]).tolist())))
            paths = [(*said[-1].path, token) for token in said[-1].tokens][: item.width]
        return tuple(said)

    return guess


class TableTarget(TargetEngine):
    """A `TargetEngine` that knows its session's text, with a law looked up and chances of its own."""

    def __init__(self, bench: HonestEdge) -> None:
        self._bench = bench

    def evaluate(self, plan: StepPlan) -> StepResult:
        (item,) = plan.items
        choices = self._decide(item) if item.ask is not None else _none(item)
        return StepResult((choices,), (np.zeros(len(item.outputs), np.float32),))

    def guess(self, plan: GuessPlan) -> GuessResult:
        own = self._bench.spec.own_drafter
        assert own is not None, "asked for guesses"
        texts = [self._bench.committed(item.session) for item in plan.items]
        return GuessResult(tuple(own(text, item) for text, item in zip(texts, plan.items, strict=True)))

    def _decide(self, item: StepItem) -> NDArray[np.int32]:
        bench, outputs = self._bench, item.outputs.tolist()
        paths: list[Text] = []
        for token, parent in zip(item.tokens.tolist(), item.parents.tolist(), strict=True):
            paths.append((*(bench.evaluated(item) if parent < 0 else paths[parent]), token))

        def law(row: int) -> NDArray[np.float64]:
            return next_law(bench.spec.salt, bench.spec.sampling, paths[outputs[row]][len(PROMPT) :])

        return bench.spec.decide(item, _none(item), law, bench.chances)


def _none(item: StepItem) -> NDArray[np.int32]:
    """No rule that draws looks at the coupled choices."""
    return np.full(len(item.outputs), VOCAB - 1, np.int32)  # which no law of three tokens chooses


@dataclass(frozen=True)
class Spec:
    """What a bench is made of."""

    rule: AcceptanceRule = AcceptanceRule.REJECTION
    sampling: SamplingParams = PLAIN
    salt: int = 1  # of the target
    draft_salt: int = 99
    kept: int = 3  # tokens of a draft
    fill: bool = True
    own_drafter: OwnDrafter | None = None  # the verifier's
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    decide: Callable[..., NDArray[np.int32]] = decide


class HonestEdge:
    """One edge and one verifier, moved by `grow`, `send`, `step` and so on; `text` is what comes of it."""

    def __init__(self, spec: Spec, chances: Chances) -> None:
        self.spec = spec
        self.chances = chances
        info = INFO if spec.own_drafter is None else dataclasses.replace(INFO, guess_depth=2)
        self.scheduler = VerifyScheduler(info, spec.config)
        for num_rows in (1, 20) * 50:
            self.scheduler.cost.sample(num_rows, 0, STEP_TIME)  # it knows what steps take
        self.now = 0.0  # seconds
        self.num_guessed = 0  # plans of guesses with a depth
        self.engine = TableTarget(self)
        self.tree = SpeculationTree(PROMPT)  # the edge's
        self.lost = 0  # commits to come that never reach the edge
        self.num_rows = 0  # that the verifier evaluated
        self.num_server_made = 0  # tokens of the text that no draft gave
        self._drawn: dict[int, Expansion] = {}
        self._pending: list[Commit] = []
        self._stream = 0
        self.connect()

    # The edge ---------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """A new stream; what the old one's verifier knew and this edge did not is forgotten."""
        if self._stream:
            self.scheduler.on_close(self._stream, None, 0.0)
        self._stream += 1
        self._outgoing = Outgoing()
        for node in self.tree.live.values():
            node.wire_id = 0
        acceptance = Acceptance(self.spec.rule)
        committed = tuple(self.tree.committed[len(PROMPT) :])
        opening = Open(
            PROMPT,
            self.spec.sampling,
            FINGERPRINT,
            committed=committed,
            fill=self.spec.fill,
            acceptance=acceptance,
        )
        self.scheduler.on_open(self._stream, opening, 0.0)
        self._collect()

    def grow(self, parent: Node, count: int = 1) -> list[Node]:
        """The next `count` children of a node, drawn from what the tiny draft model says there."""
        if parent.position >= len(PROMPT) + self.spec.sampling.max_tokens - 1:
            return []
        draft, known = self._draft(parent), self._drawn.get(parent.id)
        have = 0 if known is None else len(known.tokens)
        replaces = self.spec.rule.replaces
        drawn = draw(draft, parent.id, have + count, self.chances, replaces)  # the first of them as before
        self._drawn[parent.id] = Expansion(parent.id, drawn, (), draft)
        return [self.tree.grow(parent, token, -0.1 * (1 + token)) for token in drawn[have:]]

    def chain(self, length: int) -> list[Node]:
        """First children down to so far below the tip; those that are new."""
        nodes, node = list[Node](), self.tree.tip
        for _ in range(length):
            if not node.children:
                nodes += self.grow(node)
            if not node.children:
                break
            node = self.tree.live[next(iter(node.children.values()))]
        return nodes

    def unsent(self) -> list[Node]:
        """All live nodes below the tip that this stream does not know."""
        return [node for node in self.tree.speculative() if not node.wire_id]

    def send(self, nodes: Sequence[Node], told: bool = True) -> None:
        """Those of the nodes that are still live; with replacement, again those that were drawn again. Not
        `told`: without what they were drawn from."""
        live = [node for node in nodes if node.id in self.tree.live and node.parent in self.tree.live]
        live = [node for node in live if not node.wire_id or self.spec.rule.replaces]
        if not live:
            return
        drawn = partial(untold, self.tree, self._drawn) if told else None
        message = self._outgoing.propose(self.tree, live, 0.0, drawn)
        self.scheduler.on_propose(self._stream, message, 0.0)
        self._collect()

    def nudge(self) -> None:
        """An empty Propose."""
        self.scheduler.on_propose(self._stream, Propose(), 0.0)

    def hear(self) -> None:
        """Learn of all commits so far."""
        for commit in self._pending:
            self._outgoing.committed(len(commit.tokens))
            for token in commit.tokens:
                self.tree.advance(token)
        self._pending.clear()

    # The verifier -----------------------------------------------------------------------------------------

    def step(self, meanwhile: Callable[[], None] | None = None, fails: bool = False) -> None:
        """One step, if there is something to do; `meanwhile` happens while it runs. One that `fails` has
        another session in it, too: one alone in it would end."""
        if fails:
            self.scheduler.on_open(NEIGHBOUR, Open(PROMPT, PLAIN, FINGERPRINT), 0.0)
        if (guesses := self.scheduler.next_guess(self.now)) is not None:
            self.num_guessed += any(item.depth > 0 for item in guesses.items)
            assert self.scheduler.drafter is not None
            self.scheduler.drafter.on_guessed(self.engine.guess(guesses), self.now)
        plan = self.scheduler.next_step(self.now)
        if plan is None:
            return
        self.now += STEP_TIME
        self.num_rows += plan.num_outputs
        if meanwhile is not None:
            meanwhile()
        if fails:
            self.scheduler.on_step_failed(LocalError("the engine failed"), self.now)
            self.scheduler.on_close(NEIGHBOUR, None, self.now)
        else:
            self.scheduler.on_step_done(self.engine.evaluate(plan), self.now)
        self.scheduler.check_integrity()
        self._collect()

    def committed(self, session: int) -> Text:
        """The text of a session, without its prompt."""
        return tuple(self.scheduler.sessions[session].tree.committed[len(PROMPT) :])

    def evaluated(self, item: StepItem) -> Text:
        """The text before an item's first row."""
        committed = self.scheduler.sessions[item.session].tree.committed
        return tuple(committed[: int(item.positions[0])])

    @property
    def text(self) -> Text:
        """What the edge has, with what is on its way to it."""
        coming = [token for commit in self._pending for token in commit.tokens]
        return (*self.tree.committed[len(PROMPT) :], *coming)

    # Inside -----------------------------------------------------------------------------------------------

    def _draft(self, node: Node) -> Draft:
        path, above = list[int](), node
        while above.id != self.tree.tip.id:
            path.append(above.token)
            assert above.parent is not None
            above = self.tree.live[above.parent]
        text = (*self.tree.committed[len(PROMPT) :], *path[::-1])
        return next_draft(self.spec.draft_salt, self.spec.kept, text)

    def _collect(self) -> None:
        for effect in self.scheduler.effects():
            if not (isinstance(effect, Reply) and isinstance(effect.message, Commit)):
                continue
            if self.lost:
                self.lost -= 1
            else:
                self._pending.append(effect.message)
                self.num_server_made += effect.message.server_made.bit_count()


Scenario = Callable[[HonestEdge], None]


def text_law(scenario: Scenario, spec: Spec) -> Law:
    """Of texts that begin as the scenario leaves them and that the target then ends."""

    def program(branch: Branch) -> Text:
        bench = HonestEdge(spec, branch)
        scenario(bench)
        assert bench.text, "a scenario that brings no text shows nothing"
        return bench.text

    return completed(law_of(program), spec.sampling, spec.salt)


def target_law(spec: Spec) -> Law:
    """Of the target alone."""
    return completed({(): 1.0}, spec.sampling, spec.salt)
