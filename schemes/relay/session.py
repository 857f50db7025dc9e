"""A relay's session: to the verifier an edge that drafts with the middle model, to a device a verifier.

The device's nodes hang in a tree of the relay, and again in the tree of its own `EdgeSession`, as guesses do.
The middle model evaluates them in one batch, and its own choices go down as hints. The target's commits go
down unchanged. So the middle model is only a better drafter, and the text is the target's. (In HSD, arXiv
2510.19705, each model verifies the block of the one below by the standard rule.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from cloud_verifier.core.arrivals import NO_OFFERS, Arrivals
from common.acceptance import COUPLED
from common.errors import Code, UserError
from common.messages import (
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Hint,
    Open,
    Opened,
    Propose,
    ServerMessage,
)
from common.tree import Node, SpeculationTree
from common.tree_hints import hint_at
from edge_client.core.draft_times import DraftTimes
from edge_client.core.effects import SessionConfig
from edge_client.core.policies import GrowthPolicy, TokenCandidate
from edge_client.core.proposal_source import ProposalSource
from edge_client.core.session import EdgeSession, StreamState

CREDIT = 128
"""Live nodes of a device: four times `INITIAL_CREDIT`, and with `MOST_LIVE` hints some 100 KB of nodes."""

MOST_VOCAB = 2**31
"""Token ids where the target's vocabulary is not known: as many as the wire has."""

HINTED = 1
"""Choices of the middle model that a hint names. A second or fourth made no text faster in the simulator."""


def config_of(request: Open, fingerprint: bytes, **settings: object) -> SessionConfig:
    """Return the configuration of the relay's edge session. `settings` are further fields of it.

    Raises `UserError` for a rule other than coupled: its drafts are drawn, and the relay would have to answer
    for nodes that it did not draw.
    """
    if request.acceptance != COUPLED:
        words = f"this relay knows the acceptance rule coupled only, not {request.acceptance.rule.title}"
        raise UserError(words, Code.FAILED_PRECONDITION)
    config = SessionConfig(
        request.prompt,
        request.sampling,
        fingerprint,
        model=request.model,
        session_id=request.session_id,
        committed=request.committed,
        logprobs=request.logprobs,
        patience=None,  # the device has a fallback of its own
    )
    return replace(config, **settings)  # type: ignore[arg-type]  # as the fields are


class _Sent(NamedTuple):
    """A Propose on the stream to the verifier: its number there, how many Proposes of the device had come
    before it left, and the seconds since the newest of them."""

    number: int
    num_proposes: int
    held: float


class _MiddleChoices(ProposalSource):
    """Tells the relay what the middle model expects. It proposes nothing."""

    def __init__(self, tell: Callable[[int, Sequence[int]], None]) -> None:
        self._tell = tell

    def weigh(self, node: int, candidates: Sequence[TokenCandidate]) -> Sequence[TokenCandidate]:
        self._tell(node, [candidate.token for candidate in candidates[:HINTED]])
        return candidates


class RelaySession:
    """Answers one device, and drives an `EdgeSession` towards the verifier.

    The driver drives `edge` as any other session, with two exceptions: a message of the verifier goes to
    `on_message` here, and each message that `edge` sends is told to `sent`. A message of the device after its
    `Open` goes to `on_propose` or `on_close`. After each call the driver carries out the effects of `edge`
    and sends `answers()` to the device. A device whose stream is lost resumes with a new `Open` and thus a
    new session; the driver then closes this one.
    """

    def __init__(
        self, request: Open, config: SessionConfig, policy: GrowthPolicy, pace: DraftTimes | None = None
    ) -> None:
        """Args: request, the device's; config, `config_of` it; pace, the middle model's."""
        self.edge = EdgeSession(config, policy, pace=pace, sources=(_MiddleChoices(self._expects),))
        self._wants_hints = request.hints
        self._tree = SpeculationTree(config.begins_with)  # of the device's nodes, by their numbers there
        length, size = self.edge.view.last_position + 1, config.vocab_size or MOST_VOCAB
        self._arrivals = Arrivals(self._tree, NO_OFFERS, size, len(config.prompt) - 1, length, CREDIT)
        self._twins: dict[int, Node] = {}  # nodes of the edge's tree by the device's node id
        self._numbers: dict[int, int] = {}  # on the device's stream, by the id of the edge's node
        self._answers: list[ServerMessage] = []
        self._num_proposes = 0  # of the device
        self._proposed_at = 0.0  # seconds; when the newest came
        self._sent = deque[_Sent]()  # Proposes on the present stream that the verifier has not echoed
        self._num_sent = 0  # on the present stream
        self._is_open = False  # as the device knows

    # The device -------------------------------------------------------------------------------------------

    def on_propose(self, message: Propose, now: float) -> None:
        """Take the device's nodes. Raises `PeerError` if the device broke the protocol."""
        if self.edge.state is StreamState.OVER:
            return
        newest = max((node.wire_id for node in self._tree.speculative()), default=0)
        self._arrivals.take(message)
        self._num_proposes += 1
        self._proposed_at = now
        if self.edge.tree.tip_position < self._tree.tip_position:
            self.edge.plan(now)  # a Commit has gone down that the edge session has not booked
        for node in self._tree.speculative():
            if node.wire_id > newest:
                self._offer(node)
        self.edge.plan(now)

    def on_close(self, now: float) -> None:
        """End the session because the device said goodbye."""
        if self.edge.state is not StreamState.OVER:
            self._answers.append(Finish(FinishReason.CANCELLED, self._tree.tip_position))
            self.edge.close(now)

    def answers(self) -> list[ServerMessage]:
        """Return the messages for the device, in order; each is handed out once."""
        answers, self._answers = self._answers, []
        return answers

    def _offer(self, node: Node) -> None:
        """Let a node of the device hang in the edge's tree, too. The device's opinion of it counts where the
        middle model has none."""
        assert node.parent is not None, "it hangs below another"
        tree = self.edge.tree
        parent = tree.tip if node.parent == self._tree.tip.id else self._twins[node.parent]
        ((token, chance),) = self.edge.growth.judged(parent, [TokenCandidate(node.token, node.logprob)])
        twin = tree.grow(parent, token, chance)
        self._twins[node.id], self._numbers[twin.id] = twin, node.wire_id

    def _expects(self, node: int, tokens: Sequence[int]) -> None:
        """Send what the middle model expects after a node of the edge's tree as a hint."""
        if self._wants_hints and self._is_open and tokens:
            tree = self.edge.tree
            hint = hint_at(tree, tree.live[node], tokens, lambda above: self._numbers.get(above.id, 0))
            self._answers += [hint] if hint is not None else []

    # The verifier -----------------------------------------------------------------------------------------

    def sent(self, message: Open | Propose | Close) -> None:
        """Note a message that the edge session has just sent."""
        match message:
            case Open():  # the first of a new stream
                self._sent.clear()
                self._num_sent = 0
            case Propose():
                self._num_sent += 1
                held = self.edge.view.now - self._proposed_at
                self._sent.append(_Sent(self._num_sent, self._num_proposes, held))

    def on_message(self, message: ServerMessage, now: float, *, plan: bool = True) -> None:
        """Take a message of the verifier, as `EdgeSession` does, and answer the device."""
        if self.edge.state not in (StreamState.OPENING, StreamState.OPEN):
            return
        self.edge.on_message(message, now, plan=plan)
        match message:
            case Opened() if not self._is_open:  # the device knows nothing of later streams
                self._is_open = True
                self._answers.append(Opened(message.position, CREDIT, message.hold_us, cached=message.cached))
            case Commit():
                self._answers.append(self._commit(message))
            case Finish():
                self._answers.append(message)
            case Opened() | Drain() | Hint():
                pass

    def _commit(self, message: Commit) -> Commit:
        """Return the verifier's Commit in the numbers of the device's stream.

        The device measures both round trips together, so the hold includes the time that its nodes lay here.
        """
        echo = hold_us = 0
        while self._sent and self._sent[0].number <= message.echo:
            _, echo, held = self._sent.popleft()
            hold_us = message.hold_us + round(1e6 * held)
        made_here = self._advance(message.tokens)
        return replace(message, server_made=made_here, echo=echo, hold_us=hold_us if echo else 0, credit=None)

    def _advance(self, tokens: Sequence[int]) -> int:
        """Move the tip of the device's tree. Return the mask of tokens that are not among its nodes."""
        mask = 0
        for place, token in enumerate(tokens):
            mask |= (token not in self._tree.tip.children) << place
            self._tree.advance(token)
        self._twins = {node: twin for node, twin in self._twins.items() if node in self._tree.live}
        self._numbers = {twin.id: self._tree.live[node].wire_id for node, twin in self._twins.items()}
        return mask
