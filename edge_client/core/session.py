"""The edge's mind for one generation: grows the tree, sends it, follows the commits, survives lost streams.

Sans-IO: inputs carry `now` (seconds, monotonic); `effects()` tells the driver what to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from common.chances import Chances
from common.errors import Code, ForerunError, LocalError, PeerError, UnavailableError, UserError
from common.messages import (
    INITIAL_CREDIT,
    MAX_NODES,
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Open,
    Opened,
)
from common.privacy import Privacy
from common.recall import NgramTable
from common.tree import Node
from edge_client.core.config import SessionConfig
from edge_client.core.drafter import NOTHING_READ, Expansion, Reading
from edge_client.core.effects import (
    ChangeMode,
    Connect,
    Effect,
    Emit,
    Expand,
    Finished,
    MoveTip,
    Probe,
    Send,
    StartDrafter,
)
from edge_client.core.growth import Growth
from edge_client.core.offline import Offline
from edge_client.core.pace import DraftPace
from edge_client.core.policies import Governed, GrowthPolicy
from edge_client.core.policies.governor import GOES_AHEAD, SETTLED, Mode, Standing
from edge_client.core.policies.offline import OfflineChain
from edge_client.core.reconnect import Luck, Reconnects, same_kind
from edge_client.core.silence import Silence, patience_for
from edge_client.core.stats import SessionStats, StepTimes
from edge_client.core.wire import Outgoing

NOT_STRICT = (
    "privacy strict is asked for, and the verifier does not know it; update the verifier, use another one, "
    "or set the privacy to padded"
)


MOST_READ = 0.8
"""Share of the text's remaining time that the draft may spend reading: later drafts would not pay."""


class State(Enum):
    """Of the session's stream."""

    NEW = "new"
    OPENING = "opening"  # Open is on its way; drafts already follow it
    OPEN = "open"
    LOST = "lost"  # waiting to reconnect
    OVER = "over"


class EdgeSession:
    """Drives one generation from the prompt to its end, across reconnects.

    The driver calls `start` once, then `on_drafted` / `on_drafter_failed` after each `Expand`, `on_message`
    for what the stream brings, `on_stream_lost` when it breaks, `on_probed` after a `Probe`, `on_ready` when
    a verifier turns up, `on_timer` when `next_timer_at` has come and `close` when the user has enough. After
    each call it carries out `effects()` in order.

    It measures what policies need (`view`): RTT, draft time, step time, and acceptance, the share of
    committed positions with a sent candidate at which one of those was right.
    """

    def __init__(
        self,
        config: SessionConfig,
        policy: GrowthPolicy,
        ngrams: NgramTable | None = None,
        chances: Chances | None = None,
        luck: Luck | None = None,
        pace: DraftPace | None = None,
    ) -> None:
        """`ngrams`, to guess from; `chances`, to draw drafts by: the seed's, unless a test has others;
        `luck`, to vary the pauses between reconnects by: of seed and session id; `pace`, of the draft model:
        what earlier texts taught, which this one goes on learning."""
        self.config = config
        self.policy = policy
        self.state = State.NEW
        self.stats = SessionStats()
        self.draft_times = StepTimes()
        self.target_times = StepTimes()  # by this session's rows, as the verifier tells them
        self._growth = Growth(config, policy, ngrams, chances, pace)
        self.tree, self.view = self._growth.tree, self._growth.view
        self.calibration = self._growth.calibration
        self._effects: list[Effect] = []
        self._outgoing = Outgoing()
        self._reconnects = Reconnects(config, luck)
        self._silence = Silence() if config.asks_when_silent else None
        self._drafting = False
        self._owes_guess = False  # tokens were committed since the last guess
        self._told: tuple[Commit, float] | None = None  # whose text is out, and which is not booked yet
        self._draft_began_at = 0.0
        self._draft_ended_at: float | None = None  # of the latest draft step
        self._reads_now = 0  # committed tokens that the draft step under way has to read
        self._hindrance: Standing | None = None  # why nothing is drafted now, whatever the policy wants
        self._drafter_ok = True
        self._governed = policy if isinstance(policy, Governed) else None
        self._standing = GOES_AHEAD if self._governed is None else self._governed.standing
        governor = None if self._governed is None else self._governed.governor
        chain = OfflineChain(config.max_preview, len(config.prompt), config.ends, governor)
        self._offline = Offline(config.patience, chain, config.fallback)

    # Inputs -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin: connect, and draft while the stream opens."""
        self._expect(State.NEW)
        self._offline.left_alone(now)
        self._guess()
        config, plain = self.config, self.config.draft_top if self.view.drawn else 0
        start = StartDrafter(
            config.begins_with, self.tree.tip.id, config.sampling, plain, len(config.committed)
        )
        self._effects.append(start)
        self._connect(now)

    def on_message(self, message: Opened | Commit | Drain | Finish, now: float, *, plan: bool = True) -> None:
        """A message of the current stream. Raises `PeerError` if the verifier broke the protocol.

        Without `plan` a Commit's text comes at once. What it does to the tree, and what to send and draft
        next, is for `plan`, to be called soon, or for any other input before it; until then `text`, `view`
        and `stats` are those of before.
        """
        self._book()
        if self.state in (State.OVER, State.LOST):
            return  # it crossed our Close, or comes from a stream given up
        self._expect(State.OPENING, State.OPEN)
        self._check_order(message)
        match message:
            case Opened():
                self._on_opened(message, now)
            case Commit():
                self._on_commit(message, now)
                if plan:
                    self.plan(now)
            case Drain():
                self._on_drain(now)
            case Finish():
                self._on_finish(message, now)

    def plan(self, now: float) -> None:
        """Do what an `on_message` without `plan` left open."""
        self._book()
        self._pump(now)

    def on_drafted(
        self, expansions: Sequence[Expansion], now: float, reading: Reading = NOTHING_READ
    ) -> None:
        """The draft step that `Expand` asked for has ended; `reading`, what of the text it had to read."""
        self._book()
        view = self.view
        view.now = now
        rested = math.inf if self._draft_ended_at is None else self._draft_began_at - self._draft_ended_at
        took = self._end_draft_step(len(expansions), now)
        view.is_paced = view.pace.sample(len(expansions), took, reading, rested)
        if view.is_paced:
            self.draft_times.add(len(expansions), took)
        view.num_unread -= self._reads_now
        self._hindrance = None
        self._growth.branch(expansions)
        self._pump(now)

    def on_drafter_failed(self, error: ForerunError, now: float) -> None:
        """The drafter gave up: the text goes on without drafts, at the server's own speed."""
        self._book()
        self._end_draft_step(0, now)
        self._drafter_ok = False
        self._hindrance = Standing(Mode.SERVER_ONLY, str(error))
        self._offline.give_up()
        self._pump(now)

    def on_stream_lost(self, error: ForerunError, now: float, elsewhere: bool = False) -> None:
        """The stream broke or was refused: reconnect if that can help, else end. Without a pause if another
        verifier is there `elsewhere`."""
        self._book()
        if self._can_go_on(error):
            self._reconnects.lost(error, now, elsewhere)
            self._lose(now)

    def on_ready(self, now: float) -> None:
        """A verifier is there that has not just failed this session: no pause is sat out."""
        self._book()
        if self.state is State.LOST and self._reconnects.hurry(now):
            self._reconnect(now)

    def on_probed(self, alive: bool, now: float, elsewhere: bool = False) -> None:
        """What came of a `Probe` of the current stream. Silence without an answer is a loss, which another
        verifier that is there makes good at once."""
        self._book()
        if self._silence is None or self._silence.asked_at is None:
            return  # something has come meanwhile, or there is no stream any more
        if alive:
            self._silence.answered(now)
            if self.state is State.OPENING and self._silence.at is not None:
                self._offline.put_off(now, self._silence.at)
            return
        quiet = self._silence.quiet_for(now)
        words = f"the verifier has said nothing for {quiet:.1f} s and does not answer when it is asked"
        self.on_stream_lost(UnavailableError(words), now, elsewhere)

    def on_timer(self, now: float) -> None:
        """`next_timer_at` has come."""
        self._book()
        due_at = self.next_timer_at
        if due_at is None or now < due_at:
            return
        if self._offline.fails(now):
            self._end(None, self._nobody_answers(now))
        elif self._reconnects.at is not None and now >= self._reconnects.at:
            self._reconnect(now)
        elif self._silence is not None and self._silence.at is not None and now >= self._silence.at:
            self._silence.asked(now)
            self._effects.append(Probe(patience_for(self.view.rtt.smoothed_rtt)))
        else:
            self._pump(now)

    def close(self, now: float) -> None:
        """The user has enough."""
        self._book()
        if self.state in (State.OPENING, State.OPEN):
            self._effects.append(Send(Close()))
        if self.state is not State.OVER:
            self._end(FinishReason.CANCELLED, None)

    def fail(self, error: ForerunError, now: float) -> None:
        """Something outside the session makes going on useless: say goodbye and end with `error`."""
        self._book()
        if self.state in (State.OPENING, State.OPEN):
            self._effects.append(Send(Close()))
        if self.state is not State.OVER:
            self._end(None, error)

    # Outputs ----------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """What to do now, in order; each is handed out once."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def next_timer_at(self) -> float | None:
        """When `on_timer` is due, seconds; None for never."""
        if self.state is State.OVER:
            return None
        asks_at = None if self._silence is None else self._silence.at
        due = [at for at in (self._reconnects.at, self._offline.timer_at, asks_at) if at is not None]
        return min(due, default=None)

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
        self._growth.check_integrity()

    # The stream -------------------------------------------------------------------------------------------

    def _can_go_on(self, error: ForerunError) -> bool:
        """Whether a stream that `error` ends is to be followed by another; if not, that ends the session."""
        if self.state in (State.OVER, State.LOST):
            return False  # a stream given up after `Drain` ends while we wait to reconnect
        self._expect(State.OPENING, State.OPEN)
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
        if self.state is State.OPEN:
            self._offline.left_alone(now)
        self.state = State.LOST
        self.view.stream_up = False
        self._pump(now)

    def _reconnect(self, now: float) -> None:
        self.stats.resumes += 1
        self._connect(now)

    def _connect(self, now: float) -> None:
        """A new stream begins with what is committed; every live node is to be sent anew."""
        self._reconnects.began()
        if self._silence is not None:
            self._silence.opening(now, self._offline.asks_after(now))
        self.state = State.OPENING
        self.view.stream_up = True
        self.view.credit = INITIAL_CREDIT
        self.view.news_at = None
        self._growth.begin_stream()
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
        )

    def _check_order(self, message: Opened | Commit | Drain | Finish) -> None:
        """`Opened` comes first and once; the verifier broke the protocol if not."""
        opens = isinstance(message, Opened)
        if not isinstance(message, Drain) and opens is not (self.state is State.OPENING):
            raise PeerError(f"a {type(message).__name__} came while the stream is {self.state.value}")

    def _on_opened(self, message: Opened, now: float) -> None:
        if message.position != self.tree.tip_position:
            raise PeerError(
                f"the verifier opened at position {message.position}, not {self.tree.tip_position}"
            )
        if self.config.privacy is Privacy.STRICT and message.privacy is not Privacy.STRICT:
            raise UserError(NOT_STRICT, Code.FAILED_PRECONDITION)
        self.state = State.OPEN
        self._offline.opened(now)
        if self._silence is not None:
            self._silence.opened(now)
        self.view.credit = message.credit
        self.view.rtt.sample(now - self._outgoing.opened_at, message.hold_us * 1e-6)
        self._pump(now)

    def _on_commit(self, message: Commit, now: float) -> None:
        if message.start != self.tree.tip_position + 1:
            raise PeerError(f"a Commit begins at {message.start}; {self.tree.tip_position + 1} comes next")
        if message.start + len(message.tokens) - 1 > self.view.last_position:
            raise PeerError(f"a Commit goes beyond the last position asked for, {self.view.last_position}")
        size = self.config.vocab_size
        if size is not None and (largest := _largest_token(message)) >= size:
            raise PeerError(f"a Commit names token {largest}; this device knows tokens below {size} only")
        self._reconnects.text_came()
        if self._silence is not None:
            self._silence.heard(now, usual=self.view.news_at is not None)
        self._effects += self._offline.committed(message.start, message.tokens)
        self._effects.append(Emit(message.start, message.tokens, message.server_made, message.logprobs))
        self._effects += self._answered(now)
        self._told = message, now

    def _answered(self, now: float) -> list[Effect]:
        """The verifier writes again. If the user was told that it does not, tell the present mode."""
        if self._offline.is_told:
            self._standing = self._own_standing
        return self._offline.answered(now, self._standing)

    def _book(self) -> None:
        """Take in the Commit whose text is out already."""
        if self._told is None:
            return
        (message, came_at), self._told = self._told, None
        self._sample_rtt(message, came_at)
        self._count(message)
        self.view.news_at = came_at
        if message.credit is not None:
            self.view.credit = message.credit
        self._outgoing.committed(len(message.tokens))
        self._effects.append(MoveTip(self._growth.advance(message.tokens)))
        self._owes_guess = True

    def _sample_rtt(self, message: Commit, now: float) -> None:
        """RTT from the newest Propose the verifier had."""
        sent_at = self._outgoing.left_at(message.echo)
        if sent_at is not None:
            self.view.rtt.sample(now - sent_at, message.hold_us * 1e-6)

    def _count(self, message: Commit) -> None:
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
            if steps == 1:
                self.target_times.add(message.evaluated, compute_time)
        stats.queue_time += queue_time * steps
        stats.compute_time += compute_time * steps

    def _on_finish(self, message: Finish, now: float) -> None:
        if message.position != self.tree.tip_position:
            raise PeerError(
                f"the verifier finished at position {message.position}, the text here ends at "
                f"{self.tree.tip_position}"
            )
        if not self._may_end(message.reason):
            raise PeerError(
                f"the verifier finished with {message.reason.name} at position {message.position}, where "
                "this text does not end so"
            )
        self._effects += self._offline.finished(message.position)
        self._effects += self._answered(now)  # the text may have been whole before
        self._end(message.reason, None)

    def _may_end(self, reason: FinishReason) -> bool:
        """Rule 11. After a `Close` of ours no Finish is read, so none may say CANCELLED."""
        match reason:
            case FinishReason.STOP:
                return not self.config.ends_are_told or not self.config.ends.isdisjoint(self.text[-1:])
            case FinishReason.LENGTH:
                return self.tree.tip_position >= self.view.last_position
            case FinishReason.CANCELLED:
                return False

    # Growing ----------------------------------------------------------------------------------------------

    def _guess(self) -> None:
        self._growth.guess(beside_draft=self._drafter_ok)

    def _pump(self, now: float) -> None:
        """Send what should go and draft what should grow."""
        self.view.now = now
        if self.state is State.OVER:
            return
        if self._owes_guess:
            self._owes_guess = False
            self._guess()
        self._effects += self._offline.begin(now)
        if self._offline.active:
            confidence = self.calibration.confidence
            self._effects += self._offline.extend(self.view, self._growth.expansions, confidence)
        waits = self._can_wait(now)
        if not waits:
            self._send(now)
        if self._drafter_ok and not self._drafting:
            self._expand(now)
        if waits and not self._drafting:
            self._send(now)  # what could wait for a draft step does not wait for none
        if self._must_nudge():
            self._outgoing.nudged = True
            self._propose([], now)
        if not self._offline.is_told and self._own_standing is not self._standing:
            self._standing = self._own_standing
            self._effects.append(ChangeMode(self._standing))
        if self._silence is not None:
            self._silence.listen(self._is_owed(), now)

    @property
    def _own_standing(self) -> Standing:
        """Who writes while a verifier is there, and why. The same object until that changes."""
        if self._hindrance is not None:
            return self._hindrance
        return GOES_AHEAD if self._governed is None else self._governed.standing

    def _is_owed(self) -> bool:
        """Whether the stream has something to say: with fill always, else if it was asked something."""
        asked = self.policy.fill or self.view.num_sent > 0 or self._outgoing.nudged
        return self.view.stream_up and (asked or self.state is State.OPENING)

    def _can_wait(self, now: float) -> bool:
        """Whether what could be sent may leave with what the draft step brings that is under way, or that may
        begin now."""
        if self._governed is None or not self._drafter_ok:
            return False
        began_at = self._draft_began_at if self._drafting else now
        return self._governed.can_wait(self.view, began_at + self.view.step_time_now)

    def _send(self, now: float) -> None:
        if not self.view.stream_up or self.tree.num_speculative <= self.view.num_sent:
            return  # the verifier knows them all: most often so after a Commit
        nodes = self.policy.send(self.view)
        for first in range(0, len(nodes), MAX_NODES):
            self._propose(nodes[first : first + MAX_NODES], now)

    def _must_nudge(self) -> bool:
        """Without fill and with no draft under way or sent, an empty Propose keeps the text going."""
        quiet = not self._drafting and not self._outgoing.nudged and not self.view.num_sent
        return quiet and self.view.stream_up and not self.policy.fill

    def _propose(self, nodes: Sequence[Node], now: float) -> None:
        message = self._outgoing.propose(self.tree, nodes, now, self._growth.drawn)
        self.view.num_sent += len(nodes)
        self.stats.proposed += len(nodes)
        self.stats.proposes += 1
        self._effects.append(Send(message))

    def _expand(self, now: float) -> None:
        if not self._offline.active and not self._can_read_in_time():
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
            self._hindrance = Standing(Mode.SERVER_ONLY, words)
        self._effects.append(Expand(self._growth.rows(nodes)))

    def _can_read_in_time(self) -> bool:
        """Whether the draft has read the text long before its end. Drafting waits if not, and says why.

        Reading of less than `SETTLED` is not weighed. A verifier without fill waits for drafts, so there the
        text is always read.
        """
        view = self.view
        left = (view.last_position - self.tree.tip_position) * view.turn.smoothed
        in_time = view.catch_up_time <= max(SETTLED, MOST_READ * left)
        if in_time or not self.policy.fill or self.policy.name == "off":
            self._hindrance = None
            return True
        if self._hindrance is None:
            words = (
                f"the draft model would read {view.num_unread} tokens in {view.catch_up_time:.1f} s, "
                f"and the text ends in {left:.1f} s"
            )
            self._hindrance = Standing(Mode.SERVER_ONLY, words)
        return False

    def _end_draft_step(self, drafted: int, now: float) -> float:
        """Seconds that it took."""
        if not self._drafting:
            raise LocalError("a draft step was reported that had not been asked for")
        self._drafting = False
        self._draft_ended_at = now
        self.stats.draft_steps += 1
        self.stats.drafted += drafted
        took = now - self._draft_began_at
        self.stats.draft_time += took
        return took

    # States -----------------------------------------------------------------------------------------------

    def _end(self, reason: FinishReason | None, error: ForerunError | None) -> None:
        self.state = State.OVER
        self.view.stream_up = False
        self._effects.append(Finished(reason, error))

    def _nobody_answers(self, now: float) -> ForerunError:
        """What a session ends with that is to fail when no server is there."""
        words = f"no verifier has answered for {self._offline.alone_for(now):.1f} s"
        last = self._reconnects.last_error
        return UnavailableError(words) if last is None else same_kind(last, f"{words}; the last said: {last}")

    def _expect(self, *states: State) -> None:
        if self.state not in states:
            allowed = " or ".join(state.value for state in states)
            raise LocalError(
                f"session {self.config.session_id!r} is {self.state.value}; this input needs it {allowed}",
                Code.INTERNAL,
            )


def _largest_token(commit: Commit) -> int:
    """Of its text and of the alternatives to it; -1 if it has none."""
    told = (token for each in commit.logprobs or () for token, _ in each.top)
    return max((*commit.tokens, *told), default=-1)
