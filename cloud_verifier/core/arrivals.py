"""What a stream's nodes become: ids of the wire, and places in the tree."""

from __future__ import annotations

from cloud_verifier.core.offers import Offers
from common.draft import Draft
from common.errors import Code, PeerError
from common.messages import Propose, unpack_logprob
from common.tree import DEAD, Committed, Dead, Node, Place, SpeculationTree

MAX_PLACES = 4096
"""Wire ids remembered per session. An edge that never says what it has seen loses the oldest, which only
makes late children of those nodes count as dead."""


class Arrivals:
    """Puts the nodes of one stream into its session's tree.

    Args: tree; offers, what nodes were drawn from, or None under a rule that does not ask; vocab_size;
    first_anchor, the earliest position that a node may hang at; max_length, of prompt and text, in tokens;
    max_live, nodes of the edge that may live at once.
    """

    def __init__(
        self,
        tree: SpeculationTree,
        offers: Offers | None,
        vocab_size: int,
        first_anchor: int,
        max_length: int,
        max_live: int,
    ) -> None:
        self.num_dropped = 0  # nodes above the hard limit
        self.lag = 0  # tokens that the edge had not seen when its newest Propose was sent
        self._tree = tree
        self._offers = offers
        self._vocab_size = vocab_size
        self._first_anchor = first_anchor
        self._max_length = max_length
        self._max_live = max_live
        self._places: dict[int, Place] = {}  # wire id -> where it went, in order of ids
        self._next_wire_id = 1
        self._seen = tree.tip_position

    @property
    def num_places(self) -> int:
        """Ids that are remembered."""
        return len(self._places)

    @property
    def num_live(self) -> int:
        """Live nodes that the edge has proposed; the others are guesses."""
        return sum(1 for node in self._tree.speculative() if node.wire_id)

    def take(self, message: Propose) -> None:
        """Attach the nodes of one Propose. Raises `PeerError` for what no honest edge sends."""
        self._check_shape(message)
        self._forget_seen(message.seen_advance)
        self.lag = self._tree.tip_position - self._seen
        deltas = message.parent_deltas or _chain_deltas(message)
        drafts = message.drafts or (None,) * len(message.tokens)
        for token, byte, delta, draft in zip(message.tokens, message.logprobs, deltas, drafts, strict=True):
            self._place(token, unpack_logprob(byte), delta, message.anchor, draft)

    def _check_shape(self, message: Propose) -> None:
        count = len(message.tokens)
        if len(message.logprobs) != count:
            raise PeerError(f"a Propose of {count} nodes has {len(message.logprobs)} log-probability bytes")
        if message.parent_deltas and len(message.parent_deltas) != count:
            raise PeerError(f"a Propose of {count} nodes has {len(message.parent_deltas)} parent deltas")
        if message.drafts and len(message.drafts) != count:
            raise PeerError(f"a Propose of {count} nodes has {len(message.drafts)} entries for distributions")
        if self._seen + message.seen_advance > self._tree.tip_position or message.seen_advance < 0:
            raise PeerError(
                f"seen_advance {message.seen_advance} claims tokens beyond the committed position "
                f"{self._tree.tip_position}",
                Code.OUT_OF_RANGE,
            )

    def _place(self, token: int, logprob: float, delta: int, anchor: int | None, draft: Draft | None) -> None:
        if not 0 <= token < self._vocab_size:
            raise PeerError(
                f"proposed token id {token} is outside the vocabulary of {self._vocab_size}",
                Code.OUT_OF_RANGE,
            )
        wire_id = self._next_wire_id
        self._next_wire_id += 1
        parent = self._parent_place(delta, anchor, wire_id)
        if not isinstance(parent, Dead) and parent.position + 1 >= self._max_length:
            raise PeerError(
                f"node {wire_id} lies at position {parent.position + 1}, beyond the last one asked for "
                f"({self._max_length - 1})",
                Code.OUT_OF_RANGE,
            )
        if self._tree.num_speculative >= self._max_live and self.num_live >= self._max_live:
            self.num_dropped += 1
            if self._offers is not None:
                self._offers.dropped(parent, self._tree)
            return
        place = self._tree.attach(parent, token, logprob)
        if isinstance(place, Node):
            place.wire_id = wire_id
            if self._offers is not None:
                self._offers.arrived(place, draft, self._vocab_size)
        if place is not DEAD:
            self._places[wire_id] = place
            if len(self._places) > MAX_PLACES:
                del self._places[next(iter(self._places))]

    def _parent_place(self, delta: int, anchor: int | None, wire_id: int) -> Place:
        if delta == 0:
            return Committed(self._checked_anchor(anchor, wire_id))
        if not 1 <= delta < wire_id:
            raise PeerError(f"node {wire_id} names a parent {delta} ids earlier, which does not exist")
        return self._places.get(wire_id - delta, DEAD)

    def _checked_anchor(self, anchor: int | None, wire_id: int) -> int:
        if anchor is None:
            raise PeerError(f"node {wire_id} hangs at the anchor, but the message has none")
        low, high = self._first_anchor, self._tree.tip_position
        if not low <= anchor <= high:
            raise PeerError(
                f"anchor {anchor} is not a committed position between {low} and {high}", Code.OUT_OF_RANGE
            )
        return anchor

    def _forget_seen(self, advance: int) -> None:
        """Drop ids that the edge will not name again: it knows that they are committed or dead."""
        if not advance:
            return  # what could be dropped was, when the edge said so far
        self._seen += advance
        while self._places:
            wire_id, place = next(iter(self._places.items()))
            if isinstance(place, Node) and (place.id in self._tree.live or place.position > self._seen):
                break
            if isinstance(place, Committed) and place.position > self._seen:
                break
            del self._places[wire_id]


def _chain_deltas(message: Propose) -> tuple[int, ...]:
    """What the parent deltas would be if they had been sent: each node hangs below the one before it."""
    count = len(message.tokens)
    return (1,) * count if message.anchor is None else (0, *(1,) * (count - 1))[:count]
