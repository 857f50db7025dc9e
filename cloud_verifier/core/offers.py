"""What an edge offers below a node, as the acceptance rules look at it, frozen when a step is planned.

A rule may consider a child only if whether it does so has nothing to do with which token the child is. So it
considers all children that have arrived by the time the step is planned, whether the step evaluates them or
not: which ones are evaluated depends on how likely they are. What arrives later, what the verifier guesses
itself, and what came without a distribution, is met by equality alone: its token is the one chosen, or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from common.acceptance import Acceptance
from common.draft import Draft
from common.errors import Code, PeerError
from common.sampling import SamplingParams
from common.tree import Committed, Node, Place, SpeculationTree

BY_WIRE_ID = attrgetter("wire_id")


@dataclass(frozen=True, slots=True)
class Offer:
    """The children of one node that a rule considers, in the order of sending."""

    tokens: tuple[int, ...] = ()
    draft: Draft | None = None  # what they were drawn from, one after the other; None: the rule needs none


@dataclass(frozen=True, slots=True)
class Ask:
    """How the choices of one session's rows in a step are made, where that is not the coupled rule."""

    acceptance: Acceptance
    offers: tuple[Offer, ...]  # one for each output row


class Offers:
    """Keeps what one session's edge tells of its drafts. Driven by `VerifySession`."""

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance
        self._drawn = acceptance.rule.drawn
        self._drafts: dict[int, Draft | None] = {}  # by the parent's node id; None: no more of them count

    @classmethod
    def of(cls, acceptance: Acceptance, sampling: SamplingParams) -> Offers | None:
        """None where the choices are those of the coupled rule."""
        return cls(acceptance) if acceptance.decides(sampling.greedy) else None

    def arrived(self, node: Node, draft: Draft | None, vocab_size: int) -> None:
        """A child of a live node came, with what it was drawn from unless an elder sibling brought that.

        Raises `PeerError` if it cannot have been drawn from it.
        """
        if not self._drawn or node.parent is None:
            return
        if draft is not None:
            _check_tokens(draft, vocab_size)
            draft = self._drafts.setdefault(node.parent, draft)
        known = draft or self._drafts.get(node.parent)
        if known is not None and node.token not in known.tokens:
            raise PeerError(f"node {node.wire_id} holds token {node.token}, which its distribution does not")

    def dropped(self, parent: Place, tree: SpeculationTree) -> None:
        """A child was dropped. Those after it were drawn from what it had left over, which is not known now:
        no child of this parent counts."""
        if isinstance(parent, Committed) or (isinstance(parent, Node) and parent.committed):
            parent = tree.tip  # of an older place no child is live
        if self._drawn and isinstance(parent, Node):
            self._drafts[parent.id] = None

    def ask(self, tree: SpeculationTree, nodes: Sequence[Node]) -> Ask:
        """What the rule is to look at for these rows. Forgets what it was told of nodes that are gone."""
        self._drafts = {parent: draft for parent, draft in self._drafts.items() if parent in tree.live}
        return Ask(self._acceptance, tuple(self._offer(tree, node) for node in nodes))

    def _offer(self, tree: SpeculationTree, node: Node) -> Offer:
        draft = self._drafts.get(node.id)
        if self._drawn and draft is None:
            return Offer()
        children = [tree.live[child] for child in node.children.values()]
        sent = sorted((child for child in children if child.wire_id), key=BY_WIRE_ID)
        return Offer(tuple(child.token for child in sent), draft)


def _check_tokens(draft: Draft, vocab_size: int) -> None:
    if draft.tokens[-1] >= vocab_size:
        raise PeerError(
            f"a distribution names token id {draft.tokens[-1]}, outside the vocabulary of {vocab_size}",
            Code.OUT_OF_RANGE,
        )
