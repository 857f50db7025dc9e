"""Without a server: the draft's own text, one chain, as far ahead as the text may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.messages import FinishReason
from common.tree import Node
from edge_client.core.calibration import promised
from edge_client.core.confidence import Confidence
from edge_client.core.drafter import Expansion
from edge_client.core.policies.base import GrowthView, can_expand
from edge_client.core.policies.governor import Governor


class OfflineChain:
    """Depth first along the draft's own choices, whatever policy rules while there is a server.

    Promises do not count: a path that is hardly right any more is still the best that a user can read now,
    and what of it the target confirms is committed at once when it is back. Nodes that the policy left out
    are grown. The power budget of the policy's `governor` holds.

    Args: longest, tokens below the tip at most, or None; first, position of the text's first token; ends,
    tokens that end a text.
    """

    def __init__(
        self, longest: int | None, first: int, ends: frozenset[int], governor: Governor | None
    ) -> None:
        self.draft_at: float | None = None  # seconds; when the power budget lets the next draft step begin
        self.finished = False  # the path that `follow` found last is all that there will be ...
        self.reason: FinishReason | None = None  # ... and this is why; None: it has its greatest length
        self._longest, self._first, self._ends = longest, first, ends
        self._governor = governor
        self._head: Node | None = None  # the path's last node; None: nothing may follow it

    def follow(self, view: GrowthView, said: Mapping[int, Expansion], confidence: Confidence) -> list[Node]:
        """The draft's own path below the tip as far as it is known. `said` is what it found, by node id."""
        tree, path = view.tree, list[Node]()
        node = tree.tip
        while (found := self._said_after(node, view, said, len(path))) is not None:
            child = node.children.get(found.tokens[0])
            if child is None:
                node = tree.grow(node, found.tokens[0], promised(confidence, found.scores)[0])
            else:
                node = tree.live[child]
            path.append(node)
        self._head = None if self._is_last(node, len(path)) else node
        self.finished = self._head is None or node.position >= view.last_position
        self.reason = FinishReason.STOP if self._ends_text(node) else None
        if self.reason is None and node.position >= view.last_position:
            self.reason = FinishReason.LENGTH
        return path

    def expand(self, view: GrowthView) -> Sequence[Node]:
        """The node to draft next, the end of the path that `follow` found last; none if that is all, or if
        the power budget forbids it until `draft_at`."""
        head, self.draft_at = self._head, None
        if head is None or not can_expand(view, head):
            return ()
        if self._governor is not None:
            at = self._governor.power_at(view.now)
            if at > view.now:
                self.draft_at = at
                return ()
            self._governor.began(view)
        return (head,)

    def _said_after(
        self, node: Node, view: GrowthView, said: Mapping[int, Expansion], depth: int
    ) -> Expansion | None:
        """What the draft found after a node of the path; None if the path ends here for now."""
        if self._is_last(node, depth) or node.position >= view.last_position:
            return None
        found = said.get(node.id)
        return found if found is not None and found.tokens else None

    def _is_last(self, node: Node, depth: int) -> bool:
        return (self._longest is not None and depth >= self._longest) or self._ends_text(node)

    def _ends_text(self, node: Node) -> bool:
        return node.position >= self._first and node.token in self._ends
