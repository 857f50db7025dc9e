"""Grows a session's tree from the draft's expansions and from repeated text, and prunes it by the target's
choices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.calibration import LEAST_MISS, SHIPPED, Calibration, promised
from common.chances import Chances, SeededChances
from common.errors import LocalError
from common.messages import INITIAL_CREDIT
from common.offers import offered
from common.prompt_lookup import LEAST, NO_TEXTS, SharedTexts
from common.tree import Node, SpeculationTree
from edge_client.core.coupled import RuleFacts, edge_rule
from edge_client.core.draft_times import DraftTimes
from edge_client.core.effects import DraftRow, Expansion, Reroot, SessionConfig
from edge_client.core.policies import GrowthPolicy, GrowthView, TokenCandidate
from edge_client.core.policies.base import missing_above
from edge_client.core.proposal_source import EarlierText, ProposalSource

SURELY_GUESSED = math.log(0.35)
"""The least chance of a guess beside a draft model, whose own drafts beat doubtful guesses."""


class Growth:
    """Holds one session's tree and the facts known of its nodes. Policies read `view`."""

    def __init__(
        self,
        config: SessionConfig,
        policy: GrowthPolicy,
        shared: SharedTexts = NO_TEXTS,
        chances: Chances | None = None,
        pace: DraftTimes | None = None,
        sources: Sequence[ProposalSource] = (),
    ) -> None:
        """Guess from `shared` texts; draw drafts by `chances` (default: the seed's); learn the draft model's
        `pace`; go through further `sources` first."""
        self.tree = SpeculationTree(config.begins_with)
        last_position = len(config.prompt) + config.sampling.max_tokens - 1
        unread = max(0, len(config.begins_with) - 1 - config.num_read)
        self.view = GrowthView(
            self.tree, last_position, INITIAL_CREDIT, pace=pace or DraftTimes(), num_unread=unread
        )
        self.calibration = Calibration(config.prior or SHIPPED.at(config.sampling.temperature))
        self.view.survival = self.calibration.survival
        self.expansions: dict[int, Expansion] = {}  # of live nodes, by id
        self._overtaken: dict[int, int] = {}  # the token that followed each node still in draft
        self._policy = policy
        self._draws = config.draws
        chances = chances or SeededChances(config.sampling.seed)
        facts = RuleFacts(self.view, self.expansions, self.calibration, config.acceptance, chances)
        self.rule = edge_rule(facts, is_coupled=not config.draws)
        self._sources = [*sources, *(_sources_of(config, shared, policy) if self.rule.takes_guesses else ())]

    @property
    def has_texts(self) -> bool:
        """Whether there are texts from which guesses are copied."""
        return any(source.copies for source in self._sources)

    @property
    def takes_hints(self) -> bool:
        """Whether the verifier may send hints."""
        return any(source.listens for source in self._sources)

    def check_integrity(self) -> None:
        """Raise `LocalError` unless the tree is whole and the counts of sent nodes agree."""
        self.tree.check_integrity()
        sent = sum(1 for node in self.tree.speculative() if node.wire_id)
        if sent != self.view.num_sent:
            raise LocalError(f"{sent} live nodes carry a wire id, but the count is {self.view.num_sent}")

    # The draft --------------------------------------------------------------------------------------------

    def rows(self, nodes: Sequence[Node]) -> tuple[DraftRow, ...]:
        """Return the rows of a draft step and mark them busy. Ancestors that the draft has not evaluated
        precede their node."""
        tip, wanted = self.tree.tip, dict[int, Node]()
        for node in nodes:  # the draft model must evaluate the guesses above a node
            missing = missing_above(self.tree, node)
            wanted |= {each.id: each for each in (*reversed(missing), node)}
        for node in wanted.values():
            node.busy = True
        return tuple(
            DraftRow(node.id, None if node is tip else node.parent, node.token, node.position)
            for node in wanted.values()
        )

    def branch(self, expansions: Sequence[Expansion]) -> None:
        """Grow the tree from a draft step's expansions of live nodes; calibrate by the nodes that are text by
        now."""
        live = self.tree.live
        for expansion in expansions:
            node, followed_by = live.get(expansion.id), self._overtaken.get(expansion.id)
            if node is not None:
                node.evaluated, node.busy = True, False
            if not math.isfinite(sum(expansion.scores)):
                continue  # an overflowing draft gives no scores
            if node is None:
                if followed_by is not None:
                    self.rule.learn_late(expansion, followed_by)
                continue
            said = self.rule.choose(expansion) if self._draws else expansion
            candidates: Sequence[TokenCandidate]
            candidates = list(map(TokenCandidate, said.tokens, self.rule.promised(said)))
            for source in self._sources:
                candidates = source.weigh(node.id, candidates)
            children = self._policy.branch(self.view, node, candidates)
            self.expansions[node.id] = self.rule.grown(said, len(children)) if self._draws else said
            guesses = [TokenCandidate(token, live[each].logprob) for token, each in node.children.items()]
            for child in children:
                self.tree.grow(node, child.token, child.logprob)
            for token, logprob in () if self._draws else self.judged(node, guesses):
                self.tree.revise(live[node.children[token]], logprob)
        self._overtaken.clear()

    def judged(self, node: Node, guesses: Sequence[TokenCandidate]) -> Sequence[TokenCandidate]:
        """Return guesses of what follows a node with the draft model's chances, if it has evaluated the node
        (staged speculation, arXiv 2308.04623): beyond its candidates at most what they leave."""
        if not guesses or (said := self.expansions.get(node.id)) is None:
            return guesses
        chances = dict(zip(said.tokens, promised(self.calibration.confidence, said.scores), strict=True))
        left = math.log(max(1.0 - sum(map(math.exp, chances.values())), LEAST_MISS))
        guesses = [TokenCandidate(token, chances.get(token, min(worth, left))) for token, worth in guesses]
        for source in self._sources:
            guesses = source.weigh(node.id, guesses) if source.listens else guesses
        return guesses

    def guess(self, *, beside_draft: bool, from_tip: bool = True) -> None:
        """Grow the continuation of given and of repeated text; beside a draft model, only its likely part.

        A judged token that is copied again has the better of both chances. Not `from_tip`: only where the
        likeliest path ends, after a draft step; the draft evaluates these as one batch (arXiv 2312.11462).
        """
        surely = SURELY_GUESSED if beside_draft else LEAST
        last, room = self.view.last_position, self.view.credit_left  # unsent drafts take no credit
        for source in self._sources:
            source.grow(self.tree, last, room, surely, from_tip=from_tip)

    def hint(self, node: Node, tokens: Sequence[int]) -> None:
        """Pass on what another machine expects after a live node."""
        for source in self._sources:
            source.hear(self.view, self._policy, node, tokens)

    def close(self) -> None:
        """Let other sessions look up in this text, which has ended."""
        for source in self._sources:
            source.close()

    # The target -------------------------------------------------------------------------------------------

    def begin_stream(self) -> None:
        """Mark every live node as unsent, because a new stream begins."""
        self.view.num_sent = 0
        for node in self.tree.live.values():
            node.wire_id = 0

    def advance(self, tokens: Sequence[int]) -> Reroot:
        """Move the tip along the target's choices and drop all other branches."""
        tree, view = self.tree, self.view
        committed, dead = list[tuple[int, int]](), list[int]()
        for token in tokens:
            if (said := self.expansions.pop(tree.tip.id, None)) is not None:
                self.rule.learn(said, token)
            for source in self._sources:
                source.learn(tree.tip.id, token)
            offered = any(tree.live[child].wire_id for child in tree.tip.children.values())
            view.num_unread += not (tree.tip.evaluated or tree.tip.busy)
            if tree.tip.busy:
                self._overtaken[tree.tip.id] = token
            died = tree.advance(token)
            accepted = tree.tip.wire_id > 0
            view.num_sent -= accepted
            if offered:
                view.acceptance.add(float(accepted), 1.0)
            committed.append((tree.tip.id, token))
            for node in died:
                dead.append(node.id)
                view.num_sent -= node.wire_id > 0
                if node.evaluated:
                    self.expansions.pop(node.id, None)
                for source in self._sources:
                    source.forget(node.id)
        return Reroot(tuple(committed), tuple(dead))


SOURCES, REFERENCES = "forerun.sources", "forerun.references"
"""Groups of entry points by which a package offers sources, as `schemes` does: for each session, and for one
with texts that it may repeat."""


def _sources_of(config: SessionConfig, shared: SharedTexts, policy: GrowthPolicy) -> list[ProposalSource]:
    """Return a session's sources in the order in which they grow; of a synchronous scheme, its own."""
    if policy.name == "off" or not policy.fill:
        return list(policy.sources(config.begins_with, shared if config.recall else NO_TEXTS, config.recall))
    sources: list[ProposalSource] = [entry.load()() for entry in offered(SOURCES).values()]
    if config.references:
        sources += [each.load()(config.references, config.committed) for each in offered(REFERENCES).values()]
    if config.recall:
        sources.append(EarlierText(config.begins_with, shared))
    return sources
