"""A relay's session: to the verifier an edge that drafts with the middle model, to a device a verifier.

The device's proposals become nodes of the relay's tree, as guesses do. The middle model evaluates them in
one batch, and its own choices go down as hints. The target's commits go down unchanged. So the middle model
is only a better drafter, and the text is the target's. (In HSD, arXiv 2510.19705, each model
verifies the block of the one below by the standard rule.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cloud_verifier.core.arrivals import NO_OFFERS, Arrivals
from common.acceptance import COUPLED
from common.errors import Code, UserError
from common.hints import hint_at
from common.messages import (
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
from common.tree import Committed, Node, Place
from edge_client.core.draft_pace import DraftPace
from edge_client.core.effects import (
    NOTHING_READ,
    Connect,
    Effect,
    Expansion,
    MoveTip,
    ReadingTime,
    Reroot,
    Send,
    SessionConfig,
)
from edge_client.core.policies import GrowthPolicy
from edge_client.core.session import EdgeSession, StreamState, as_input

CREDIT = 128
"""Live nodes of a device: four times `INITIAL_CREDIT`, and with `MOST_LIVE` hints some 100 KB of nodes."""

MOST_VOCAB = 2**31
"""Token ids where the target's vocabulary is not known: as many as the wire has."""

HINTED = 1
"""Choices of the middle model that a hint names. A second or fourth made no text faster in the simulator."""


def config_of(request: Open, fingerprint: bytes, **settings: object) -> SessionConfig:
    """Return the configuration of the relay's own session. `settings` are further fields of it.

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
        judges_guesses=True,
    )
    return replace(config, **settings)  # type: ignore[arg-type]  # as the fields are


class _Sent(NamedTuple):
    """A Propose on the stream to the verifier: its number there, how many Proposes of the device had come
    before it left, and the seconds since the newest of them."""

    number: int
    num_proposes: int
    held: float


class _Arrivals(Arrivals):
    """Puts the device's nodes into the relay's tree. Their numbers on the device's stream are kept here, as a
    node's `wire_id` is its number on the stream to the verifier."""

    def __init__(self, session: RelaySession) -> None:
        size, first = session.config.vocab_size or MOST_VOCAB, len(session.config.prompt) - 1
        super().__init__(session.tree, NO_OFFERS, size, first, session.view.last_position + 1, CREDIT)
        self._session = session
        self._numbers: dict[int, int] = {}  # by node id

    @property
    def num_live(self) -> int:
        return len(self._numbers)

    def number_of(self, node: Node) -> int:
        """Return the node's number on the device's stream; 0 for a node of the middle model alone."""
        return self._numbers.get(node.id, 0)

    def move(self, change: Reroot) -> None:
        """Forget the numbers of nodes that are committed or dead."""
        for node in (*(committed for committed, _ in change.committed), *change.dead):
            self._numbers.pop(node, None)

    def _attach(self, parent: Place, token: int, logprob: float) -> Place:
        """The device's opinion counts where the middle model has none."""
        tip = self._tree.tip
        node = tip if isinstance(parent, Committed) and parent.position == tip.position else parent
        if isinstance(node, Node) and node.id in self._tree.live:
            logprob = self._session.judged(node, token, logprob)
        return super()._attach(parent, token, logprob)

    def _number(self, node: Node, wire_id: int) -> None:
        if node is not self._tree.tip:
            self._numbers[node.id] = wire_id


class RelaySession(EdgeSession):
    """Drives one generation between a device and a verifier.

    Towards the verifier it is driven as an `EdgeSession`. Besides, the driver calls `on_propose` and
    `on_close` for the device's messages after its `Open`. After each call it carries out `effects()` and then
    sends `answers()` to the device. A device whose stream is lost resumes with a new `Open` and thus a new
    session; the driver then closes this one.
    """

    def __init__(
        self, request: Open, config: SessionConfig, policy: GrowthPolicy, pace: DraftPace | None = None
    ) -> None:
        """Args: request, the device's; config, `config_of` it; pace, the middle model's."""
        super().__init__(config, policy, pace=pace)
        self._request = request
        self._answers: list[ServerMessage] = []
        self._arrivals = _Arrivals(self)
        self._num_proposes = 0  # of the device
        self._proposed_at = 0.0  # seconds; when the newest came
        self._sent = deque[_Sent]()  # Proposes on the present stream that the verifier has not echoed
        self._num_sent = 0  # on the present stream
        self._is_open = False  # as the device knows

    # Inputs -----------------------------------------------------------------------------------------------

    @as_input
    def on_propose(self, message: Propose, now: float) -> None:
        """Take the device's nodes. Raises `PeerError` if the device broke the protocol."""
        if self.state is StreamState.OVER:
            return
        self._arrivals.take(message)
        self._num_proposes += 1
        self._proposed_at = now
        self.plan(now)

    @as_input
    def on_close(self, now: float) -> None:
        """End the session because the device said goodbye."""
        if self.state is StreamState.OVER:
            return
        self._answers.append(Finish(FinishReason.CANCELLED, self.tree.tip_position))
        self.close(now)

    @as_input
    def on_message(self, message: ServerMessage, now: float, *, plan: bool = True) -> None:
        """Take a message of the verifier, as `EdgeSession` does, and answer the device."""
        answer: ServerMessage | None = None
        if self.state in (StreamState.OPENING, StreamState.OPEN):
            answer = self._answer(message)
        super().on_message(message, now, plan=plan)
        if answer is not None:
            self._answers.append(answer)

    def on_drafted(
        self, expansions: Sequence[Expansion], now: float, reading: ReadingTime = NOTHING_READ
    ) -> None:
        """Take the middle model's choices, and hint at them."""
        super().on_drafted(expansions, now, reading)
        if not self._request.hints or not self._is_open:
            return
        for each in expansions:
            node = self.tree.live.get(each.id)
            if node is not None and each.tokens:
                number = self._arrivals.number_of
                hint = hint_at(self.tree, node, each.tokens[:HINTED], number)
                self._answers += [hint] if hint is not None else []

    # Outputs ----------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Return what to do now, in order; each effect is handed out once."""
        effects = super().effects()
        for effect in effects:
            match effect:
                case Connect():
                    self._sent.clear()
                    self._num_sent = 0
                case Send(Propose()):
                    self._num_sent += 1
                    held = self.view.now - self._proposed_at
                    self._sent.append(_Sent(self._num_sent, self._num_proposes, held))
                case MoveTip():
                    self._arrivals.move(effect.change)
        return effects

    def answers(self) -> list[ServerMessage]:
        """Return the messages for the device, in order; each is handed out once."""
        answers, self._answers = self._answers, []
        return answers

    def judged(self, node: Node, token: int, logprob: float) -> float:
        """Return the log chance of the device's `token` after a live node: `logprob`, its own, unless the
        middle model has evaluated the node."""
        return self._growth.judged(node, token, logprob)

    # Answers ----------------------------------------------------------------------------------------------

    def _answer(self, message: ServerMessage) -> ServerMessage | None:
        match message:
            case Opened():
                if self._is_open:
                    return None  # of a later stream, of which the device knows nothing
                self._is_open = True
                return Opened(message.position, CREDIT, message.hold_us, cached=message.cached)
            case Commit():
                return self._commit(message)
            case Finish():
                return message
            case Drain() | Hint():
                return None

    def _commit(self, message: Commit) -> Commit:
        """Return the verifier's Commit in the numbers of the device's stream.

        The device measures both round trips together, so the hold includes the time that its nodes lay here.
        """
        echo = hold_us = 0
        while self._sent and self._sent[0].number <= message.echo:
            _, echo, held = self._sent.popleft()
            hold_us = message.hold_us + round(1e6 * held)
        return replace(
            message,
            server_made=self._not_proposed(message.tokens),
            echo=echo,
            hold_us=hold_us if echo else 0,
            credit=None,
        )

    def _not_proposed(self, tokens: Sequence[int]) -> int:
        """Return the mask of tokens that are not among the device's nodes."""
        mask, node = 0, self.tree.tip
        for place, token in enumerate(tokens):
            child = self.tree.live.get(node.children.get(token, 0))
            if child is None:
                return mask | (1 << len(tokens)) - (1 << place)
            if not self._arrivals.number_of(child):
                mask |= 1 << place
            node = child
        return mask
