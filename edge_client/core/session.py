"""The edge's session: grows the tree, sends it, follows the commits, survives lost streams.

Sans-IO: inputs carry `now` (seconds, monotonic); `effects()` tells the driver what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from common.chances import Chances
from common.errors import Code, ForerunError, LocalError, PeerError, UnavailableError
from common.messages import (
    INITIAL_CREDIT,
    MAX_NODES,
    NO_WAIT,
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Hint,
    Open,
    Opened,
    ServerMessage,
)
from common.prompt_lookup import NO_TEXTS, SharedTexts
from common.tree import Node
from edge_client.core.draft_times import ENOUGH, DraftTimes
from edge_client.core.effects import (
    GOES_AHEAD,
    NOTHING_READ,
    ONLY_REPEATS,
    STREAMS,
    ChangeMode,
    Connect,
    Effect,
    Emit,
    Expand,
    Expansion,
    Finished,
    Mode,
    ModeStatus,
    MoveTip,
    Probe,
    ReadingTime,
    Send,
    SessionConfig,
    SessionStats,
    StartDrafter,
)
from edge_client.core.growth import Growth
from edge_client.core.offline import Offline
from edge_client.core.policies import AdaptivePolicy, GrowthPolicy
from edge_client.core.policies.governor import SETTLED
from edge_client.core.proposal_source import ProposalSource
from edge_client.core.reconnect import Luck, Reconnects, Silence, patience_for, same_kind
from edge_client.core.sent_nodes import Outgoing

MOST_READ = 0.8
"""The greatest share of the text's remaining time to spend reading: later drafts would not pay."""


Inputs = ParamSpec("Inputs")
S = TypeVar("S", bound="EdgeSession")


class StreamState(Enum):
    """Names the state of a session's stream."""

    NEW = "new"
    OPENING = "opening"  # Open is on its way; drafts already follow it
    OPEN = "open"
    LOST = "lost"  # waiting to reconnect
    OVER = "over"


class StreamEvent(Enum):
    """Names an event that moves a stream from one state to another."""

    CONNECT = "a new stream"
    OPENED = "Opened"
    LOSS = "the loss of the stream"
    END = "the end of the text"


TRANSITIONS: dict[StreamState, dict[StreamEvent, StreamState]] = {
    StreamState.NEW: {StreamEvent.CONNECT: StreamState.OPENING, StreamEvent.END: StreamState.OVER},
    StreamState.OPENING: {
        StreamEvent.OPENED: StreamState.OPEN,
        StreamEvent.LOSS: StreamState.LOST,
        StreamEvent.END: StreamState.OVER,
    },
    StreamState.OPEN: {StreamEvent.LOSS: StreamState.LOST, StreamEvent.END: StreamState.OVER},
    StreamState.LOST: {StreamEvent.CONNECT: StreamState.OPENING, StreamEvent.END: StreamState.OVER},
    StreamState.OVER: {},
}
"""Every legal move. A missing key is a `LocalError`."""

MESSAGES: dict[StreamState, tuple[type[ServerMessage], ...]] = {
    StreamState.OPENING: (Opened, Drain),
    StreamState.OPEN: (Commit, Hint, Drain, Finish),
}
"""The messages that a verifier may send while a stream is up; any other is a `PeerError`. In `LOST` and
`OVER` messages belong to an abandoned stream, and the session ignores them."""


def as_input(
    method: Callable[Concatenate[S, Inputs], None],
) -> Callable[Concatenate[S, Inputs], None]:
    """Make `method` an input: it first books any Commit whose text has been emitted."""

    @wraps(method)
    def booked_first(session: S, /, *args: Inputs.args, **named: Inputs.kwargs) -> None:
        if session._emitted is not None:
            session._book(*session._emitted)
        method(session, *args, **named)

    return booked_first


class EdgeSession:
    """Drives one generation from the prompt to its end, across reconnects.

    The driver calls `start` once and `close` when the user cancels. It calls `on_drafted` /
    `on_drafter_failed` after each `Expand`, `on_message` for each message of the stream and `on_stream_lost`
    when that breaks. It calls `on_probed` after a `Probe`, `on_ready` when a verifier turns up and `on_timer`
    at `next_timer_at`. After each call it carries out `effects()` in order.

    The session measures what policies need (`view`). Acceptance is the share of committed positions with a
    sent candidate at which a candidate was right.
    """

    def __init__(
        self,
        config: SessionConfig,
        policy: GrowthPolicy,
        shared: SharedTexts = NO_TEXTS,
        chances: Chances | None = None,
        luck: Luck | None = None,
        pace: DraftTimes | None = None,
        sources: Sequence[ProposalSource] = (),
    ) -> None:
        """Guess from `shared` texts; draw drafts by `chances` and vary pauses by `luck` (default: both from
        the seed); learn the draft model's `pace`; go through further `sources` first."""
        self.config = config
        self.policy = policy
        self.state = StreamState.NEW
        self.stats = SessionStats()
        self.growth = Growth(config, policy, shared, chances, pace, sources)
        self.tree, self.view = self.growth.tree, self.growth.view
        self.calibration = self.growth.calibration
        self._effects: list[Effect] = []
        self._outgoing = Outgoing()
        self._first_position = len(config.begins_with)  # of the first token that this session brings
        self._reconnects = Reconnects(config, luck)
        self._silence = Silence(config.asks_when_silent)
        self._drafting = False
        self._owes_guess = False  # tokens were committed since the last guess
        self._emitted: tuple[Commit, float] | None = None  # a Commit whose text is out, but not booked yet
        self._draft_began_at = 0.0
        self._draft_busy = 0.0  # seconds of ended draft steps since the newest Commit
        self._draft_ended_at: float | None = None  # of the latest draft step
        self._reads_now = 0  # committed tokens that the draft step under way has to read
        self._hindrance: ModeStatus | None = None  # why nothing is drafted now, whatever the policy wants
        self._drafter_ok = config.has_drafter
        self._governed = policy if isinstance(policy, AdaptivePolicy) else None
        if config.draws and self._governed is not None:
            self._governed.hold_nothing_back()  # a choice of nodes would bias the draws
        self._standing = self._own_standing
        self._offline = Offline(config, None if self._governed is None else self._governed.governor)

    # Inputs -----------------------------------------------------------------------------------------------

    @as_input
    def start(self, now: float) -> None:
        """Begin: connect, and draft while the stream opens."""
        if self.state is not StreamState.NEW:
            raise self._illegal("start")
        self._offline.left_alone(now)
        self.growth.guess(beside_draft=self._is_drafting)
        config, plain = self.config, self.config.draft_top if self.config.draws else 0
        start = StartDrafter(
            config.begins_with, self.tree.tip.id, config.sampling, plain, len(config.committed)
        )
        self._effects.append(start)
        self._connect(now)

    @as_input
    def on_message(self, message: ServerMessage, now: float, *, plan: bool = True) -> None:
        """Take a message of the current stream. Raise `PeerError` if the verifier broke the protocol.

        Without `plan` a Commit only emits its text. The driver passes the text on and then calls `plan` or
        another input. Until then `text`, `view` and `stats` do not include the Commit.
        """
        if self.state in (StreamState.OVER, StreamState.LOST):
            return  # it crossed our Close, or comes from a stream given up
        if self.state not in MESSAGES:
            raise self._illegal("a message")
        if not isinstance(message, MESSAGES[self.state]):
            raise PeerError(f"a {type(message).__name__} came while the stream is {self.state.value}")
        match message:
            case Opened():
                self._on_opened(message, now)
            case Commit():
                self._on_commit(message, now)
                if plan:
                    self.plan(now)
            case Hint():
                self._on_hint(message, now)
            case Drain():
                self._on_drain(now)
            case Finish():
                self._on_finish(message, now)

    @as_input
    def plan(self, now: float) -> None:
        """Book the Commit of an `on_message` without `plan`, then decide what to send and draft."""
        self._pump(now)

    @as_input
    def on_drafted(
        self, expansions: Sequence[Expansion], now: float, reading: ReadingTime = NOTHING_READ
    ) -> None:
        """Take the result of the draft step that `Expand` asked for; `reading` is its reading time."""
        view = self.view
        view.now = now
        rested = math.inf if self._draft_ended_at is None else self._draft_began_at - self._draft_ended_at
        took = self._end_draft_step(len(expansions), now)
        view.is_paced = view.pace.sample(len(expansions), took, reading, rested)
        view.num_unread -= self._reads_now
        self.stats.read += reading.num_tokens
        self._hindrance = None
        self.growth.branch(expansions)
        if not self._owes_guess:
            self.growth.guess(beside_draft=self._is_drafting, from_tip=False)
        self._pump(now)

    @as_input
    def on_drafter_failed(self, error: ForerunError, now: float) -> None:
        """Continue without drafts, at the server's own speed, because the drafter failed."""
        self._end_draft_step(0, now)
        self._drafter_ok = False
        self._hindrance = ModeStatus(Mode.SERVER_ONLY, str(error))
        self._offline.give_up()
        self._pump(now)

    @as_input
    def on_stream_lost(self, error: ForerunError, now: float, elsewhere: bool = False) -> None:
        """Reconnect after a broken or refused stream if that can help, else end. Without a pause if a
        verifier is `elsewhere`."""
        if self._can_go_on(error):
            self._reconnects.lost(error, now, elsewhere)
            self._lose(now)

    @as_input
    def on_ready(self, now: float) -> None:
        """Reconnect without a pause: a verifier is there that has not just failed this session."""
        if self.state is StreamState.LOST and self._reconnects.hurry(now):
            self._reconnect(now)

    @as_input
    def on_probed(self, alive: bool, now: float, elsewhere: bool = False) -> None:
        """Take the result of a `Probe`. Without an answer the stream is lost; with a verifier `elsewhere` the
        session reconnects without a pause."""
        if self._silence.asked_at is None:
            return  # a message has come meanwhile, or the stream has ended
        if alive:
            self._silence.answered(now)
            if self.state is StreamState.OPENING and self._silence.at is not None:
                self._offline.put_off(now, self._silence.at)
            return
        quiet = self._silence.quiet_for(now)
        words = f"the verifier has been silent for {quiet:.1f} s and does not answer a probe"
        self.on_stream_lost(UnavailableError(words), now, elsewhere)

    @as_input
    def on_timer(self, now: float) -> None:
        """Do what is due at `next_timer_at`."""
        due_at = self.next_timer_at
        if due_at is None or now < due_at:
            return
        if self._offline.fails(now):
            self._end(None, self._nobody_answers(now))
        elif self._reconnects.at is not None and now >= self._reconnects.at:
            self._reconnect(now)
        elif self._silence.at is not None and now >= self._silence.at:
            self._silence.asked(now)
            self._effects.append(Probe(patience_for(self.view.rtt.smoothed_rtt)))
        else:
            self._pump(now)

    @as_input
    def close(self, now: float) -> None:
        """End the session because the user cancelled."""
        self._say_goodbye(FinishReason.CANCELLED, None)

    @as_input
    def fail(self, error: ForerunError, now: float) -> None:
        """End with `error`, because something outside the session makes going on useless."""
        self._say_goodbye(None, error)

    # Outputs ----------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Return what to do now, in order; each effect is handed out once."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def next_timer_at(self) -> float | None:
        """The second at which `on_timer` is due; None for never."""
        if self.state is StreamState.OVER:
            return None
        times = (self._reconnects.at, self._offline.timer_at, self._silence.at)
        return min((at for at in times if at is not None), default=None)

    @property
    def preview(self) -> tuple[int, ...]:
        """The draft's own guess after the text, as far as it is shown and not withdrawn."""
        return tuple(self._offline.preview)

    @property
    def text(self) -> tuple[int, ...]:
        """The tokens generated and committed so far."""
        return tuple(self.tree.committed[len(self.config.prompt) :])

    def check_integrity(self) -> None:
        """Raise `LocalError` unless the tree is whole and the counts of sent nodes agree."""
        self.growth.check_integrity()

    # The stream -------------------------------------------------------------------------------------------

    def _can_go_on(self, error: ForerunError) -> bool:
        """Return whether another stream may follow one that `error` ends; if not, end the session."""
        if self.state in (StreamState.OVER, StreamState.LOST):
            return False  # a stream given up after `Drain` ends while we wait to reconnect
        if self.state is StreamState.NEW:
            raise self._illegal("the loss of a stream")
        if self._reconnects.can_help(error):
            return True
        self._end(None, self._reconnects.given_up(error))
        return False

    def _on_drain(self, now: float) -> None:
        error = UnavailableError("the verifier is draining")
        if self._can_go_on(error):
            self._reconnects.leave(error, now)
            self._lose(now)

    def _lose(self, now: float) -> None:
        if self.state is StreamState.OPEN:
            self._offline.left_alone(now)
        self._move(StreamEvent.LOSS)
        self.view.stream_up = False
        self._pump(now)

    def _reconnect(self, now: float) -> None:
        self.stats.resumes += 1
        self._connect(now)

    def _connect(self, now: float) -> None:
        """Open a stream that begins with the committed text; every live node is to be sent anew."""
        self._move(StreamEvent.CONNECT)
        self._reconnects.began()
        self._silence.opening(now, self._offline.asks_after(now))
        self.view.stream_up = True
        self.view.credit = INITIAL_CREDIT
        self.view.news_at = None
        self.growth.begin_stream()
        self._outgoing = Outgoing(now)
        self._effects += [Connect(), Send(self._open())]
        self._pump(now)

    def _open(self) -> Open:
        config = self.config
        return Open(
            prompt=config.prompt,
            sampling=config.sampling,
            fingerprint=config.fingerprint,
            model=config.model,
            committed=self.text,
            fill=self.policy.fill,
            session_id=config.session_id,
            acceptance=config.acceptance,
            logprobs=config.logprobs,
            privacy=config.privacy,
            hints=self.growth.takes_hints,
        )

    def _on_opened(self, message: Opened, now: float) -> None:
        if message.position != self.tree.tip_position:
            raise PeerError(
                f"the verifier opened at position {message.position}, not {self.tree.tip_position}"
            )
        self._move(StreamEvent.OPENED)
        self._offline.opened(now)
        self._silence.opened(now)
        self.view.credit = message.credit
        if message.position < self._first_position:  # later streams find the KV of the earlier ones
            self.stats.cached = min(message.cached, len(self.config.prompt))
        self.view.rtt.sample(now - self._outgoing.opened_at, message.hold_us * 1e-6)
        self._pump(now)

    def _on_commit(self, message: Commit, now: float) -> None:
        if message.start != self.tree.tip_position + 1:
            raise PeerError(f"a Commit begins at {message.start}; {self.tree.tip_position + 1} comes next")
        if message.start + len(message.tokens) - 1 > self.view.last_position:
            raise PeerError(f"a Commit goes beyond the last requested position, {self.view.last_position}")
        size = self.config.vocab_size
        if size is not None and (largest := _largest_token(message)) >= size:
            raise PeerError(f"a Commit names token {largest}; this device knows only tokens below {size}")
        self._reconnects.text_came()
        self._silence.heard(now, usual=self.view.news_at is not None)
        self._effects += self._offline.committed(message.start, message.tokens)
        self._effects.append(Emit(message.start, message.tokens, message.server_made, message.logprobs))
        if self._offline.is_told:
            self._effects.append(self._answered(now))
        self._emitted = message, now

    def _answered(self, now: float) -> Effect:
        """End the fallback, because the verifier writes again, and show the present mode."""
        self._standing = self._own_standing
        return self._offline.answered(now, self._standing)

    def _book(self, message: Commit, came_at: float) -> None:
        """Take a Commit whose text was emitted into the tree, the estimators and the counts."""
        self._emitted = None
        sent_at = self._outgoing.left_at(message.echo)  # of the newest Propose that the verifier had
        if sent_at is not None:
            self.view.rtt.sample(came_at - sent_at, message.hold_us * 1e-6)
        self._count(message, came_at)
        self.view.news_at, self._draft_busy = came_at, 0.0
        if message.credit is not None:
            self.view.credit = message.credit
        self._outgoing.committed(len(message.tokens))
        self._effects.append(MoveTip(self.growth.advance(message.tokens)))
        self._owes_guess = True

    def _count(self, message: Commit, came_at: float) -> None:
        stats, steps = self.stats, message.steps
        stats.target_steps += steps
        stats.committed += len(message.tokens)
        stats.accepted += len(message.tokens) - message.server_made.bit_count()
        stats.evaluated += message.evaluated
        evaluated, compute_time = message.evaluated / steps, message.compute_us * 1e-6 / steps
        queue_time = message.queue_us * 1e-6 / steps
        if self.view.news_at is not None:  # the stream's first step read the prompt, too
            self.view.step_time.sample(evaluated, compute_time)
            self.view.turn.sample(queue_time + compute_time)
            if self.config.draft_waits and message.evaluated == steps == 1:
                self._note_contention(compute_time, came_at)
            if steps == 1:
                self.view.server.learn(message)
        stats.queue_time += queue_time * steps
        stats.compute_time += compute_time * steps

    def _note_contention(self, seconds: float, came_at: float) -> None:
        """Note a target step of `seconds` on this machine, which has just ended."""
        busy = self._draft_busy + (self._drafted_until(came_at) if self._drafting else 0.0)
        since = came_at - (self.view.news_at or 0.0)
        self.view.pace.cores.sample(busy / max(since, 1e-6), seconds)

    def _drafted_until(self, now: float) -> float:
        """Return the seconds, since the newest Commit, of the draft step that began last."""
        return now - max(self._draft_began_at, self.view.news_at or 0.0)

    def _on_hint(self, message: Hint, now: float) -> None:
        size = self.config.vocab_size
        if size is not None and (largest := max(message.path + message.tokens)) >= size:
            raise PeerError(f"a Hint names token {largest}; this device knows only tokens below {size}")
        node = self._place_of(message)
        if node is not None:
            self.growth.hint(node, message.tokens)
            self._pump(now)

    def _place_of(self, message: Hint) -> Node | None:
        """Return the live node that the hint is about; None for a place that is dead or behind the tip."""
        tree = self.tree
        node: Node | None
        if message.node:
            self._outgoing.check_sent(message.node)
            node = next((each for each in tree.live.values() if each.wire_id == message.node), None)
        else:
            end = tree.tip_position
            if message.anchor > end:
                raise PeerError(f"a Hint hangs at position {message.anchor}; the text here ends at {end}")
            node = tree.tip if message.anchor == end else None
        for token in message.path:
            if node is None:
                break
            node = tree.live.get(node.children.get(token, 0))
        return node

    def _on_finish(self, message: Finish, now: float) -> None:
        if message.position != self.tree.tip_position:
            raise PeerError(
                f"the verifier finished at position {message.position}, but the text here ends at "
                f"{self.tree.tip_position}"
            )
        if not self._may_end(message.reason):
            raise PeerError(
                f"the verifier finished with {message.reason.name} at position {message.position}, where "
                "this text has no such end"
            )
        self._effects += self._offline.finished(message.position)
        if self._offline.is_told:
            self._effects.append(self._answered(now))  # the text may have been complete before
        self._end(message.reason, None)

    def _may_end(self, reason: FinishReason) -> bool:
        """Check rule 11. After our own `Close` no Finish is read, so none may say CANCELLED."""
        match reason:
            case FinishReason.STOP:
                return not self.config.ends_are_told or not self.config.ends.isdisjoint(self.text[-1:])
            case FinishReason.LENGTH:
                return self.tree.tip_position >= self.view.last_position
            case FinishReason.CANCELLED:
                return False

    # Growing ----------------------------------------------------------------------------------------------

    def _pump(self, now: float) -> None:
        """Send and draft what is due."""
        self.view.now = now
        if self.state is StreamState.OVER:
            return
        if self._owes_guess:
            self._owes_guess = False
            self.growth.guess(beside_draft=self._is_drafting)
        if self._offline.is_due(now):
            self._effects += self._offline.begin(now)
        if self._offline.active:
            confidence = self.calibration.confidence
            self._effects += self._offline.extend(self.view, self.growth.expansions, confidence)
        waits = self._can_wait(now)
        if not waits:
            self._send(now)
        if self._drafter_ok and not self._drafting:
            self._expand(now)
        if waits and not self._drafting:
            self._send(now)  # nodes wait only for a draft step under way
        if not self.policy.fill and self._must_nudge():
            self._outgoing.nudged = True
            self._propose([], now)
        if not self._offline.is_told and self._own_standing is not self._standing:
            self._standing = self._own_standing
            self._effects.append(ChangeMode(self._standing))
        self._silence.listen(self._is_owed(), now)

    @property
    def _is_drafting(self) -> bool:
        """Whether the draft model's own drafts are to be expected where a guess would stand."""
        return self._drafter_ok and self._own_standing.mode is Mode.AHEAD

    @property
    def _own_standing(self) -> ModeStatus:
        """The mode while a verifier is there. The same object until the mode changes."""
        if self._hindrance is not None:
            return self._hindrance
        if not self.config.has_drafter:
            return ONLY_REPEATS if self.growth.has_texts else STREAMS
        return GOES_AHEAD if self._governed is None else self._governed.standing

    def _is_owed(self) -> bool:
        """Return whether the verifier owes a message: always with fill, else after a request."""
        asked = self.policy.fill or self.view.num_sent > 0 or self._outgoing.nudged
        return self.view.stream_up and (asked or self.state is StreamState.OPENING)

    def _can_wait(self, now: float) -> bool:
        """Return whether unsent nodes may wait and leave with the results of the draft step under way, or
        about to begin."""
        if self._governed is None or not self._drafter_ok:
            return False
        began_at = self._draft_began_at if self._drafting else now
        takes = self.view.catch_up_time + self.view.pace.rows.predict(1)
        return self._governed.can_wait(self.view, began_at + takes)

    def _send(self, now: float) -> None:
        if not self.view.stream_up or self.tree.num_speculative <= self.view.num_sent or self._sends_wait:
            return  # the verifier knows all nodes, as mostly after a Commit
        nodes = self.policy.send(self.view)
        if self.config.draws:
            nodes = self.growth.rule.outgoing(nodes)
        for first in range(0, len(nodes), MAX_NODES):
            self._propose(nodes[first : first + MAX_NODES], now)

    def _must_nudge(self) -> bool:
        """Return whether an empty Propose must keep the text going, without fill and drafts."""
        quiet = not self._drafting and not self._outgoing.nudged and not self.view.num_sent
        return quiet and self.view.stream_up

    def _propose(self, nodes: Sequence[Node], now: float) -> None:
        governed = self._governed if self._drafter_ok else None
        wait = NO_WAIT if governed is None else governed.wait(self.view)
        message = self._outgoing.propose(self.tree, nodes, now, self.growth.rule.untold, wait)
        num_nodes = len({node.id for node in nodes})  # some were drawn again
        self.view.num_sent += num_nodes
        self.stats.proposed += num_nodes
        self.stats.proposes += 1
        self._effects.append(Send(message))

    def _expand(self, now: float) -> None:
        if not self._offline.active and (self._draft_waits or not self._can_read_in_time()):
            return
        nodes = (self._offline if self._offline.active else self.policy).expand(self.view)
        if not nodes:
            return
        self._drafting = True
        self._draft_began_at = now
        self._reads_now = self.view.num_unread
        seconds = self.view.catch_up_time
        if seconds >= SETTLED:
            words = f"the draft model reads {self._reads_now} tokens first, in about {seconds:.1f} s"
            self._hindrance = ModeStatus(Mode.SERVER_ONLY, words)
        self._effects.append(Expand(self.growth.rows(nodes)))

    @property
    def _draft_waits(self) -> bool:
        """Whether the draft model must not run yet, because the target reads the prompt on the same cores, or
        its own steps there are not known yet."""
        waits = 0 if self._governed is None or self.view.pace.cores.knows_alone else ENOUGH
        return self.config.draft_waits and self.tree.tip_position < self._first_position + waits

    @property
    def _sends_wait(self) -> bool:
        """Whether drafts must not leave yet, because target steps of one row show first what the draft costs
        them on the same cores. A draft that is seldom busy shows nothing, and is sent after a few tokens."""
        if self._governed is None or not self.config.draft_waits or self.view.pace.cores.knows_both:
            return False
        return self.tree.tip_position < self._first_position + 2 * ENOUGH

    def _can_read_in_time(self) -> bool:
        """Return whether the draft reads the text long before its end; else drafting waits, with a reason.

        Reading of less than `SETTLED` always passes. A verifier without fill waits for drafts, so that text
        is always read.
        """
        view = self.view
        left = (view.last_position - self.tree.tip_position) * view.turn.smoothed / view.server.tokens
        in_time = view.catch_up_time <= max(SETTLED, MOST_READ * left)
        if in_time or not self.policy.fill or self.policy.name == "off":
            self._hindrance = None
            return True
        if self._hindrance is None:
            words = (
                f"the draft model would read {view.num_unread} tokens in {view.catch_up_time:.1f} s, "
                f"and the text ends in {left:.1f} s"
            )
            self._hindrance = ModeStatus(Mode.SERVER_ONLY, words)
        return False

    def _end_draft_step(self, drafted: int, now: float) -> float:
        """Book the end of the draft step; return the seconds that it took."""
        if not self._drafting:
            raise LocalError("a draft step was reported that had not been asked for")
        self._drafting = False
        self._draft_ended_at = now
        self.stats.draft_steps += 1
        self.stats.drafted += drafted
        took = now - self._draft_began_at
        self._draft_busy += self._drafted_until(now)
        self.stats.draft_time += took
        return took

    # States -----------------------------------------------------------------------------------------------

    def _say_goodbye(self, reason: FinishReason | None, error: ForerunError | None) -> None:
        if self.state in (StreamState.OPENING, StreamState.OPEN):
            self._effects.append(Send(Close()))
        if self.state is not StreamState.OVER:
            self._end(reason, error)

    def _end(self, reason: FinishReason | None, error: ForerunError | None) -> None:
        self._move(StreamEvent.END)
        self.view.stream_up = False
        self.growth.close()
        self._effects.append(Finished(reason, error))

    def _nobody_answers(self, now: float) -> ForerunError:
        """Return the error of a session that must fail when no server is there."""
        words = f"no verifier has answered for {self._offline.alone_for(now):.1f} s"
        last = self._reconnects.last_error
        return UnavailableError(words) if last is None else same_kind(last, f"{words}; the last said: {last}")

    def _move(self, event: StreamEvent) -> None:
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise self._illegal(event.value)
        self.state = after

    def _illegal(self, what: str) -> LocalError:
        words = f"session {self.config.session_id!r} is {self.state.value}, where {what} is illegal"
        return LocalError(words, Code.INTERNAL)


def _largest_token(commit: Commit) -> int:
    """Return the largest token of the text and of its alternatives; -1 if there is none."""
    alternatives = (token for each in commit.logprobs or () for token, _ in each.top)
    return max((*commit.tokens, *alternatives), default=-1)
