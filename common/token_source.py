"""Define what a source of proposals is, on the edge and on the verifier alike."""

from __future__ import annotations

from common.prompt_lookup import LEAST, PromptLookup, grow_guesses
from common.tree import SpeculationTree


class TokenSource:
    """Proposes tokens of one text. Both ends hold an ordered list of sources, and know none by name.

    A verb does nothing unless a source has a use for it. Each end adds the verbs that it alone needs.
    """

    copies = False  # from texts

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        """Grow at most `room` nodes below the tip, if `from_tip`, and below the end of the likeliest path.

        Args: last, position of the text's end, where a node would save no step; surely, the least
        log-probability (nats) of each node if its parents are right.
        """

    def learn(self, node: int, token: int) -> None:
        """Learn that the target wrote `token` after the node, the tip until now."""

    def close(self) -> None:
        """Let other sessions use this text, which has ended."""


class CopiedText(TokenSource):
    """Copies from the session's own text and from texts that sessions share."""

    copies = True

    def __init__(self, lookup: PromptLookup, most: int | None = None) -> None:
        """`most`: new nodes at a time; None: no limit."""
        self._lookup = lookup
        self._most = most

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        room = room if self._most is None else min(self._most, room)
        grow_guesses(tree, self._lookup.guess, last, room, surely, from_tip=from_tip)

    def learn(self, node: int, token: int) -> None:
        self._lookup.append(token)

    def close(self) -> None:
        self._lookup.close()
