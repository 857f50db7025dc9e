"""Keeps what travels with the nodes of an acceptance rule other than the coupled one, at the verifier.

The decision to consider a child must not depend on the child's token. So a rule considers all children that
have arrived when the step is planned, also children that the step does not evaluate, because evaluation
depends on how likely a child is. Children that arrive later, and under a drawn rule children without a
distribution and the verifier's own guesses, are matched by equality alone.

A rule that draws nothing keeps no law, so it also considers the verifier's own guesses: with heads beside the
target, `typical` is Medusa (Cai et al. 2024) and `topk-gap` is the relaxed form of blockwise parallel
decoding (Stern et al. 2018). Only evaluated guesses count. They are chosen by their chances, and so by their
tokens: under a lossy rule the text leans towards what the guesses prefer, and depends on what other sessions
leave room for. A guess that is not evaluated would take the target's place and save no step.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from cloud_verifier.core.arrivals import NoOffers
from cloud_verifier.core.engine_protocol import Ask, Judge, Offer
from common.acceptance import Acceptance, AcceptanceRule, Draft
from common.errors import Code, PeerError
from common.tree import Committed, Node, Place, SpeculationTree


class Offers(NoOffers):
    """Keeps the distributions that one session's edge sends with its drafts, for a rule that needs them."""

    decides = True

    def __init__(self, acceptance: Acceptance, judge: Judge | None = None) -> None:
        self._acceptance = acceptance
        self._judge = judge if acceptance.rule is AcceptanceRule.JUDGE else None
        self._drawn, self._replaces = acceptance.rule.drawn, acceptance.rule.replaces
        self._takes_guesses = (
            not acceptance.rule.lossless and acceptance.rule is not AcceptanceRule.REFLECTIVE
        )
        self._drafts: dict[int, Draft | None] = {}  # by the parent's node id; None: no child of it counts
        self._draws: dict[int, list[int]] = {}  # tokens by the parent's node id, in the order of arrival

    def arrived(self, node: Node, draft: Draft | None, vocab_size: int) -> None:
        """Note a new child of a live node. The first child brings the distribution of all its siblings.

        Without that distribution none of the children counts. Raises `PeerError` if the distribution cannot
        have produced the child.
        """
        if not self._drawn or node.parent is None:
            return
        if draft is not None and draft.tokens[-1] >= vocab_size:
            raise PeerError(
                f"a distribution names token id {draft.tokens[-1]}, outside the vocabulary of {vocab_size}",
                Code.OUT_OF_RANGE,
            )
        known = self._drafts.setdefault(node.parent, draft)
        if known is not None and node.token not in known.tokens:
            raise PeerError(f"node {node.wire_id} holds token {node.token}, which its distribution lacks")
        draws = self._draws.setdefault(node.parent, [])
        repeats = node.token in draws
        self.num_repeats += repeats and self._replaces
        if self._replaces or not repeats:
            draws.append(node.token)

    def dropped(self, parent: Place, tree: SpeculationTree) -> None:
        """Note a dropped child. Its younger siblings were drawn from an unknown rest, so none counts."""
        if isinstance(parent, Committed) or (isinstance(parent, Node) and parent.committed):
            parent = tree.tip  # of an older place no child is live
        if self._drawn and isinstance(parent, Node):
            self._drafts[parent.id] = None

    def ask(self, tree: SpeculationTree, nodes: Sequence[Node]) -> Ask:
        """Return the acceptance rule's input for these rows, and forget distributions of dead nodes."""
        self._drafts = {parent: draft for parent, draft in self._drafts.items() if parent in tree.live}
        self._draws = {parent: draws for parent, draws in self._draws.items() if parent in tree.live}
        self.num_repeats = sum(len(draws) - len(set(draws)) for draws in self._draws.values())
        guesses = {node.id for node in nodes if not node.wire_id} if self._takes_guesses else set[int]()
        return Ask(self._acceptance, tuple(self._offer(tree, node, guesses) for node in nodes), self._judge)

    def _offer(self, tree: SpeculationTree, node: Node, guesses: Set[int]) -> Offer:
        """Return the children that the rule considers: sent ones by age, then `guesses`, the likeliest
        first."""
        if self._drawn:
            draft = self._drafts.get(node.id)
            return Offer() if draft is None else Offer(tuple(self._draws[node.id]), draft)
        children = [tree.live[child] for child in node.children.values()]
        considered = [child for child in children if child.wire_id or child.id in guesses]
        considered.sort(key=lambda child: (not child.wire_id, child.wire_id, -child.logprob))
        return Offer(tuple(child.token for child in considered))
