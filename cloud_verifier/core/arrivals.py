"""Attach the nodes of a stream to the session's tree by their wire ids."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.core.engine_protocol import Ask, Judge
from cloud_verifier.core.rules import part_of
from common.acceptance import Acceptance, Draft
from common.errors import Code, PeerError
from common.messages import Propose, unpack_logprob
from common.sampling import SamplingParams
from common.tree import DEAD, Committed, Dead, Node, Place, SpeculationTree

MAX_PLACES = 4096
"""Wire ids remembered per session. Beyond that the oldest id is forgotten, and later children of its node
count as dead."""


class NoOffers:
    """Keeps nothing: the coupled rule needs no more than the nodes. Driven by `VerifySession`."""

    decides = False
    """Whether another rule than the coupled one makes the choices."""

    num_repeats = 0
    """Draws that gave a token again. They take room like others, so that what is dropped does not depend on
    the tokens drawn."""

    def arrived(self, node: Node, draft: Draft | None, vocab_size: int) -> None:
        """Note a new child of a live node, and the distribution that came with it."""

    def dropped(self, parent: Place, tree: SpeculationTree) -> None:
        """Note a dropped child."""

    def ask(self, tree: SpeculationTree, nodes: Sequence[Node]) -> Ask | None:
        """Return the acceptance rule's input for these rows; None for the coupled rule."""
        return None


NO_OFFERS = NoOffers()


def offers_of(acceptance: Acceptance, sampling: SamplingParams, judge: Judge | None = None) -> NoOffers:
    """Return the keeper of what travels with a session's nodes, by its acceptance rule."""
    if not acceptance.decides(sampling.greedy):
        return NO_OFFERS
    offers: NoOffers = part_of("offers")(acceptance, judge)
    return offers


class Arrivals:
    """Puts the nodes of one stream into its session's tree.

    Args: tree; offers, which keeps the draft distributions; vocab_size;
    first_anchor, the earliest anchor position; max_length, of prompt and text, in tokens;
    max_live, the most live nodes of the edge.
    """

    def __init__(
        self,
        tree: SpeculationTree,
        offers: NoOffers,
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
        self.seen = tree.tip_position  # position of the last committed token that the edge has seen

    @property
    def num_live(self) -> int:
        """The number of live nodes that the edge has proposed, without the verifier's own guesses."""
        return sum(1 for node in self._tree.speculative() if node.wire_id)

    @property
    def has_live(self) -> bool:
        """Whether there are such nodes."""
        return any(node.wire_id for node in self._tree.speculative())

    def take(self, message: Propose) -> None:
        """Attach the nodes of one Propose. Raises `PeerError` for a message that breaks the protocol."""
        self._check_shape(message)
        self._forget_seen(message.seen_advance)
        self.lag = self._tree.tip_position - self.seen
        count = len(message.tokens)
        chain = (1 if message.anchor is None else 0, *(1,) * (count - 1))[:count]  # each below the one before
        deltas, drafts = message.parent_deltas or chain, message.drafts or (None,) * count
        for token, byte, delta, draft in zip(message.tokens, message.logprobs, deltas, drafts, strict=True):
            if not 0 <= token < self._vocab_size:
                raise PeerError(
                    f"proposed token id {token} is outside the vocabulary of {self._vocab_size}",
                    Code.OUT_OF_RANGE,
                )
            wire_id = self._next_wire_id
            self._next_wire_id += 1
            parent = self._parent_place(delta, message.anchor, wire_id)
            if not isinstance(parent, Dead) and parent.position + 1 >= self._max_length:
                raise PeerError(
                    f"node {wire_id} is at position {parent.position + 1}, beyond the session's last "
                    f"position {self._max_length - 1}",
                    Code.OUT_OF_RANGE,
                )
            most = self._max_live - self._offers.num_repeats
            if self._tree.num_speculative >= most and self.num_live >= most:
                self.num_dropped += 1
                self._offers.dropped(parent, self._tree)
                continue
            place = self._tree.attach(parent, token, unpack_logprob(byte))
            if isinstance(place, Node):
                place.wire_id = wire_id
                if self._offers.decides:
                    self._offers.arrived(place, draft, self._vocab_size)
            if place is not DEAD:
                self._places[wire_id] = place
                if len(self._places) > MAX_PLACES:
                    del self._places[next(iter(self._places))]

    def _check_shape(self, message: Propose) -> None:
        count = len(message.tokens)
        if len(message.logprobs) != count:
            raise PeerError(f"a Propose of {count} nodes has {len(message.logprobs)} log-probability bytes")
        for name, told in (("parent deltas", message.parent_deltas), ("distributions", message.drafts)):
            if told and len(told) != count:
                raise PeerError(f"a Propose of {count} nodes has {len(told)} entries for {name}")
        if self.seen + message.seen_advance > self._tree.tip_position or message.seen_advance < 0:
            raise PeerError(
                f"seen_advance {message.seen_advance} claims tokens beyond the committed position "
                f"{self._tree.tip_position}",
                Code.OUT_OF_RANGE,
            )

    def _parent_place(self, delta: int, anchor: int | None, wire_id: int) -> Place:
        if delta == 0:
            if anchor is None:
                raise PeerError(f"node {wire_id} hangs at the anchor, but the message has none")
            low, high = self._first_anchor, self._tree.tip_position
            if not low <= anchor <= high:
                raise PeerError(
                    f"anchor {anchor} is not a committed position between {low} and {high}", Code.OUT_OF_RANGE
                )
            return Committed(anchor)
        if not 1 <= delta < wire_id:
            raise PeerError(f"node {wire_id} names a parent {delta} ids earlier, which does not exist")
        return self._places.get(wire_id - delta, DEAD)

    def _forget_seen(self, advance: int) -> None:
        """Drop ids that the edge will not name again: it knows that they are committed or dead."""
        if not advance:
            return  # earlier calls have dropped all that could be dropped
        self.seen += advance
        while self._places:
            wire_id, place = next(iter(self._places.items()))
            if isinstance(place, Node) and (place.id in self._tree.live or place.position > self.seen):
                break
            if isinstance(place, Committed) and place.position > self.seen:
                break
            del self._places[wire_id]
