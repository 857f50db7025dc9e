"""Grows a session's tree from the draft's expansions and from repeated text, and prunes it by the target's
choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap

from common.calibration import LEAST_MISS, SHIPPED, Calibration, promised
from common.chances import Chances, SeededChances
from common.errors import LocalError
from common.messages import INITIAL_CREDIT, MAX_NODES
from common.prompt_lookup import LEAST, NO_TEXTS, PromptLookup, SharedTexts, grow_guesses
from common.tree import Node, SpeculationTree
from edge_client.core.draft_pace import DraftPace
from edge_client.core.drawing import Drawing, untold
from edge_client.core.hints import Hints
from edge_client.core.nouns import DraftRow, Expansion, Reroot, SessionConfig
from edge_client.core.policies import GrowthPolicy, GrowthView, TokenCandidate
from edge_client.core.policies.base import missing_above
from edge_client.core.reference import Reference
from edge_client.core.sent_nodes import Untold

MOST_GUESSED = 32
"""New guesses after a commit: what a verifier evaluates in the two steps of a usual round trip."""

MOST_LIVE = 400
"""Live nodes up to which hints grow more, as of `AdaptiveSettings`: bounds memory, and a decision's time."""

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
        pace: DraftPace | None = None,
    ) -> None:
        """Guess from `shared` texts; draw drafts by `chances` (default: the seed's); learn the draft model's
        `pace`."""
        self.tree = SpeculationTree(config.begins_with)
        last_position = len(config.prompt) + config.sampling.max_tokens - 1
        unread = max(0, len(config.begins_with) - 1 - config.num_read)
        self.view = GrowthView(
            self.tree, last_position, INITIAL_CREDIT, pace=pace or DraftPace(), num_unread=unread
        )
        self.calibration = Calibration(config.prior or SHIPPED.at(config.sampling.temperature))
        self.view.survival = self.calibration.survival
        self.expansions: dict[int, Expansion] = {}  # of live nodes, by id
        self._overtaken: dict[int, int] = {}  # the token that followed each node still in draft
        self._policy = policy
        self._judges = config.judges_guesses
        drafts = policy.fill and policy.name != "off"  # sync and off stay as published
        self._drawing: Drawing | None = None
        if config.draws:
            self._drawing = Drawing(
                chances or SeededChances(config.sampling.seed), config.acceptance.rule.replaces
            )
            drafts = False  # guesses would bias the draws
        self._hints = Hints() if drafts else None
        self._lookup = PromptLookup(config.begins_with, shared) if config.recall and drafts else None
        self._reference = Reference(config.references) if config.references and drafts else None
        if self._reference is not None:
            for token in config.committed:
                self._reference.append(token)

    @property
    def untold(self) -> Untold | None:
        """Return the function that gives the distributions to send with nodes; None if none are needed."""
        return None if self._drawing is None else partial(untold, self.tree, self.expansions)

    @property
    def has_texts(self) -> bool:
        """Whether there are texts from which guesses are copied."""
        return self._lookup is not None or self._reference is not None

    @property
    def takes_hints(self) -> bool:
        """Whether the verifier may send hints."""
        return self._hints is not None

    def check_integrity(self) -> None:
        """Raise `LocalError` unless the tree is whole and the counts of sent nodes agree."""
        self.tree.check_integrity()
        sent = sum(1 for node in self.tree.speculative() if node.wire_id)
        if sent != self.view.num_sent:
            raise LocalError(f"{sent} live nodes carry a wire id, but the count is {self.view.num_sent}")

    def draws(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the draws to send in place of `nodes`, which the policy chose; a repeated draw is its node
        again. Without replacement they are the nodes.

        Whether a draw is considered must not depend on its token. Repeats would make some room, so all
        draws below a node are sent at once or not at all, and each takes room. The policy's choice of the
        eldest decides, whose promise ignores the tokens.
        """
        if self._drawing is None or not self._drawing.replaces:
            return nodes
        live, tip = self.tree.live, self.tree.tip
        room = min(self.view.credit_left - self._num_repeats, MAX_NODES)
        found = dict[int, list[Node]]()  # by the parent's id
        known = {tip.id, *(node.id for node in live.values() if node.wire_id)}
        for parent in dict.fromkeys(node.parent for node in nodes):
            assert parent is not None, "the tip is never sent"
            drawn = [live[live[parent].children[token]] for token in self.expansions[parent].tokens]
            if parent in known and len(drawn) <= room:
                room -= len(drawn)
                found[parent] = drawn
                known |= {node.id for node in drawn}
        return [node for drawn in found.values() for node in drawn]

    @property
    def _num_repeats(self) -> int:
        """The number of sent draws that gave a token again, below live nodes."""
        live = self.tree.live
        drawn = ((live[parent].children, said.tokens) for parent, said in self.expansions.items())
        sent = (each for each in drawn if any(live[child].wire_id for child in each[0].values()))
        return sum(len(tokens) - len(children) for children, tokens in sent)

    # The draft --------------------------------------------------------------------------------------------

    def rows(self, nodes: Sequence[Node]) -> tuple[DraftRow, ...]:
        """Return the rows of a draft step and mark them busy. Ancestors that the draft has not evaluated
        precede their node."""
        tip, found = self.tree.tip, dict[int, Node]()
        for node in nodes:  # the draft model must evaluate the guesses above a node
            missing = missing_above(self.tree, node)
            found |= {each.id: each for each in (*reversed(missing), node)}
        for node in found.values():
            node.busy = True
        return tuple(
            DraftRow(node.id, None if node is tip else node.parent, node.token, node.position)
            for node in found.values()
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
            if node is not None:
                self._branch(node, expansion)
            elif followed_by is not None:
                self._learn(expansion, followed_by)
        self._overtaken.clear()

    def _branch(self, node: Node, expansion: Expansion) -> None:
        if self._drawing is not None:
            expansion = self._drawing.draw(expansion)
        candidates = list(map(TokenCandidate, expansion.tokens, self._promised(expansion)))
        if self._hints is not None:
            candidates = self._hints.weigh(node.id, candidates)
        children = self._policy.branch(self.view, node, candidates)
        if self._drawing is not None and self._drawing.replaces:
            count = len(children)
            expansion = replace(expansion, tokens=expansion.tokens[:count], scores=expansion.scores[:count])
        self.expansions[node.id] = expansion
        for child in children:
            self.tree.grow(node, child.token, child.logprob)
        if self._judges:
            for each in node.children.values():
                below = self.tree.live[each]
                self.tree.revise(below, self.judged(node, below.token, below.logprob))

    def judged(self, node: Node, token: int, logprob: float) -> float:
        """Return the draft model's log chance of `token` after a node; beyond its candidates at most what
        they leave. Where the model has not evaluated the node, return `logprob`."""
        said = self.expansions.get(node.id)
        if said is None:
            return logprob
        found = promised(self.calibration.confidence, said.scores)
        if token in said.tokens:
            return found[said.tokens.index(token)]
        return min(logprob, math.log(max(1.0 - sum(map(math.exp, found)), LEAST_MISS)))

    def _promised(self, expansion: Expansion) -> Sequence[float]:
        """Return the chance (nats) of each candidate."""
        drawn = self._drawing is not None
        found = expansion.scores if drawn else promised(self.calibration.confidence, expansion.scores)
        if len(found):
            self.view.survival.add(math.exp(found[0]))
        return found

    def _learn(self, expansion: Expansion, followed_by: int) -> None:
        """Learn from a node that came too late: the text went on with `followed_by`."""
        if self._drawing is None:
            self._promised(expansion)
            self._calibrate(expansion, followed_by)

    def guess(self, *, beside_draft: bool, from_tip: bool = True) -> None:
        """Grow the continuation of given and of repeated text; beside a draft model, only its likely part.

        Not `from_tip`: only where the likeliest path ends. A draft step has made that longer, and where the
        text is known the draft model need not go on token by token: it evaluates the guesses as one batch
        (CS drafting, arXiv 2312.11462; staged speculation, arXiv 2308.04623).
        """
        surely = SURELY_GUESSED if beside_draft else LEAST
        last, room = self.view.last_position, self.view.credit_left  # unsent drafts take no credit
        if self._reference is not None:
            grow_guesses(self.tree, self._reference, last, room, from_tip=from_tip)
        if self._lookup is not None:
            most = min(MOST_GUESSED, room)
            grow_guesses(self.tree, self._lookup, last, most, surely, from_tip=from_tip)

    def hint(self, node: Node, tokens: Sequence[int]) -> None:
        """Grow the tokens of a hint below a live node, likeliest first, and doubt its other children."""
        tree, hints = self.tree, self._hints
        if hints is None or node.position >= self.view.last_position or tree.num_speculative >= MOST_LIVE:
            return
        hinted = dict(hints.take(node.id, tokens))
        for child in self._policy.branch(self.view, node, list(starmap(TokenCandidate, hinted.items()))):
            tree.grow(node, child.token, child.logprob)
        left = hints.left(node.id)
        for each in node.children.values():
            below = tree.live[each]
            tree.revise(below, hinted.get(below.token, min(below.logprob, left)))

    def close(self) -> None:
        """Let other sessions look up in this text, which has ended."""
        if self._lookup is not None:
            self._lookup.close()

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
            self._observe(token)
            for source in (self._lookup, self._reference):
                if source is not None:
                    source.append(token)
            offered = any(tree.live[child].wire_id for child in tree.tip.children.values())
            view.num_unread += not (tree.tip.evaluated or tree.tip.busy)
            if tree.tip.busy:
                self._overtaken[tree.tip.id] = token
            if self._hints is not None:
                self._hints.observe(tree.tip.id, token)
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
                if self._hints is not None:
                    self._hints.forget(node.id)
        return Reroot(tuple(committed), tuple(dead))

    def _observe(self, token: int) -> None:
        """Compare the draft's candidates after the tip with the target's choice."""
        said = self.expansions.pop(self.tree.tip.id, None)
        if said is not None and self._drawing is not None:
            self._drawing.observe(said, token)
        elif said is not None:
            self._calibrate(said, token)

    def _calibrate(self, said: Expansion, token: int) -> None:
        """Calibrate by a node: the draft `said` this, and the target chose `token`."""
        chosen = said.tokens.index(token) if token in said.tokens else None
        self.calibration.observe(said.scores, chosen)
