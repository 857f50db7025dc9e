"""Define the messages between edge and verifier as frozen values; `common.wire.codec` encodes them.

docs/protocol.md states the rules. Tokens are sent as ids, never as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from common.acceptance import COUPLED, Acceptance, Draft
from common.privacy import Privacy
from common.sampling import SamplingParams

INITIAL_CREDIT = 32
"""Live nodes an edge may have at the verifier before `Opened` sets its credit (protocol rule 4)."""

MAX_NODES = 256
"""Nodes in one Propose (protocol rule 15): sixteen times what a step evaluates for one session by default,
and a message of a kilobyte or two."""

LOGPROB_STEP = 1.0 / 16.0
"""Nats per unit of the one-byte log-probability of a node: byte b means exp(-b/16); 255 = 1.2e-7 or less."""


def pack_logprob(logprob: float) -> int:
    """Pack a log-probability (nats, <= 0) into one byte, rounded to the nearest sixteenth."""
    if not logprob > -255 * LOGPROB_STEP:  # also minus infinity, and not a number
        return 255
    return round(-logprob / LOGPROB_STEP) if logprob < 0 else 0


def unpack_logprob(byte: int) -> float:
    """Return the log-probability in nats that `byte` stands for."""
    return -byte * LOGPROB_STEP


MAX_HINTED = 8
"""Tokens of one `Hint`: as many as a draft ranks after a node."""

MAX_TOP_LOGPROBS = 20
"""Most alternatives that a session may request beside each token, as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Holds the target's log-probabilities at one token, in nats: log-softmax of the raw logits, before
    grammar, bias, penalties and temperature."""

    logprob: float  # of the token itself
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob), likeliest first, lowest id first among equals


class FinishReason(Enum):
    """The reason says why a session ended."""

    STOP = 1  # a stop token or the model's own end token was committed
    LENGTH = 2  # max_tokens were generated
    CANCELLED = 3  # the edge closed it


@dataclass(frozen=True, slots=True)
class Open:
    """The first message of a stream carries the prompt and, on a reconnect, the text that the edge has."""

    prompt: tuple[int, ...]  # token ids
    sampling: SamplingParams
    fingerprint: bytes  # of the edge's token table, `common.vocabulary`
    model: str = ""  # the target wanted; empty = whatever the verifier serves
    committed: tuple[int, ...] = ()  # tokens generated and committed on earlier streams of this session
    fill: bool = True  # evaluate the bare tip when no draft is there
    session_id: str = ""  # chosen by the edge, for logs
    acceptance: Acceptance = COUPLED  # how nodes are decided
    logprobs: int | None = None  # request each token's, and those of this many alternatives; None = none
    privacy: Privacy | None = None  # the least level; None = the edge does not know privacy
    hints: bool = False  # the edge takes a `Hint`


class Wait(NamedTuple):
    """Asks the verifier to await nodes: after a commit that leaves it none of the edge's, the next ones come
    `due_us` later, and it may rest for `most_us` until then."""

    due_us: int = 0
    most_us: int = 0


NO_WAIT = Wait()


@dataclass(frozen=True, slots=True)
class Propose:
    """The message adds nodes to the tree, in order; the nodes of one stream count 1, 2, 3 ...

    `parent_deltas` empty means a chain: the first node hangs at `anchor` if there is one, else below the
    node before it, and each other node below the one before it. Otherwise a delta d >= 1 names the node
    d ids earlier and 0 the committed token at position `anchor`.
    A Propose without nodes lets a session without fill evaluate its bare tip once.
    """

    tokens: tuple[int, ...] = ()
    logprobs: bytes = b""  # one byte a node, `pack_logprob`: chance that it is right if its parent is
    parent_deltas: tuple[int, ...] = ()
    anchor: int | None = None  # position of a committed token, counted from the prompt's first
    seen_advance: int = 0  # committed tokens the edge has learned of since its last Propose
    drafts: tuple[Draft | None, ...] = ()  # none, or one distribution a node (rule 18)
    wait: Wait | None = None  # from now on; None = as before, at first no wait


@dataclass(frozen=True, slots=True)
class Close:
    """The edge needs no more of the session. A half-close does not mean that."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The verifier took the session. `position` is the tip's."""

    position: int
    credit: int  # live nodes the verifier will hold for this session
    hold_us: int = 0  # from the arrival of `Open` to the sending of this
    privacy: Privacy | None = None  # the level from here on; None = the verifier does not know privacy
    cached: int = 0  # leading tokens of prompt and committed text that were in the verifier's prefix cache


@dataclass(frozen=True, slots=True)
class Commit:
    """The message commits tokens from position `start` on; times are the verifier's own, in microseconds.

    If messages take longer than steps, one message covers several steps: `queue_us`, `compute_us` and
    `evaluated` are then sums.
    """

    start: int
    tokens: tuple[int, ...]
    server_made: int = 0  # bit i set: token i was not among the edge's nodes
    echo: int = 0  # Propose messages received on this stream so far
    hold_us: int = 0  # from the arrival of the newest of them to the sending of this
    queue_us: int = 0  # from the tip's readiness to the begin of its step
    compute_us: int = 0  # the step's duration
    credit: int | None = None  # present when it changed
    evaluated: int = 0  # nodes the step evaluated for this session, the tip included
    steps: int = 1  # steps that this message covers
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token if the session asked, else none
    guessed: int = 0  # bit i set: token i was among the verifier's own guesses


@dataclass(frozen=True, slots=True)
class Hint:
    """The message names tokens that are likely at one place of the tree. It decides nothing.

    The place is where `path` leads from the edge's node `node`, or from the committed token at `anchor` if
    `node` is 0.
    """

    node: int  # its id on this stream
    anchor: int  # position, counted from the prompt's first; 0 with a node
    path: tuple[int, ...]
    tokens: tuple[int, ...]  # the likeliest first; at least one


@dataclass(frozen=True, slots=True)
class Drain:
    """This verifier is going away: reconnect (elsewhere) within `grace_us`."""

    grace_us: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """The session has ended at `position`, the last committed token's."""

    reason: FinishReason
    position: int


ClientMessage = Open | Propose | Close
ServerMessage = Opened | Commit | Hint | Drain | Finish
