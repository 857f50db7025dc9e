"""Types of the edge's core: nodes to draft, the effects, the configuration and the counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from common.acceptance import COUPLED, MAX_TOKENS, Acceptance, Draft
from common.calibration import Prior
from common.errors import ForerunError, UserError
from common.messages import MAX_TOP_LOGPROBS, Close, FinishReason, Open, Propose, TokenLogprobs
from common.privacy import Privacy
from common.sampling import SamplingParams

# Between the edge session and a drafter: nodes to expand, and their candidates.


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A node to expand: evaluate the draft model on it and rank its candidates.

    `parent` is the id of the node above, None for the tip. Its ancestors were expanded before, stand earlier
    in the same request, or (after a surprise) are evaluated on the way.
    """

    id: int
    parent: int | None
    token: int
    position: int


@dataclass(frozen=True, slots=True)
class Expansion:
    """Candidate tokens after a node, best first.

    `scores` are the draft's processed logits plus the shared noise at position + 1 (nats; no noise when
    greedy), decreasing. After a `start` for `plain` candidates they are the processed logits alone.
    """

    id: int
    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    draft: Draft | None = None  # set by a rule that drew `tokens` from it


@dataclass(frozen=True, slots=True)
class ReadingTime:
    """Committed tokens that a draft step evaluated before its rows: the prompt, or the verifier's text.

    `seconds` is the time of the batches that held such tokens, rows included. With `has_dear_masks` the step
    waited for its masks (`MaskTime`) and measures no pace. The step evaluated `levels` of the tree; 0: none,
    as an earlier one had.
    """

    num_tokens: int = 0
    seconds: float = 0.0
    has_dear_masks: bool = False
    levels: int = 1

    def __add__(self, other: ReadingTime) -> ReadingTime:
        return ReadingTime(
            self.num_tokens + other.num_tokens,
            self.seconds + other.seconds,
            self.has_dear_masks or other.has_dear_masks,
            self.levels,
        )


NOTHING_READ = ReadingTime()
DEAR_MASKS = ReadingTime(has_dear_masks=True)

Outcome = Sequence[Expansion] | ForerunError
"""The result of a draft step: its expansions, or the error that ended drafting."""

Drafted = Callable[[Outcome, ReadingTime], None]
"""Called with a draft step's outcome and its reading time."""


@dataclass(frozen=True, slots=True)
class Reroot:
    """The tip's move along `committed`, (node id, token) in order; `dead` are the ids of all other nodes that
    ended."""

    committed: tuple[tuple[int, int], ...]
    dead: tuple[int, ...]


class Mode(Enum):
    """Names the model or models that write the text."""

    AHEAD = "ahead"  # the device drafts, the verifier decides
    SERVER_ONLY = "server-only"  # the verifier alone
    DEVICE_ONLY = "device-only"  # the draft alone, and only a guess, because no server is there
    WAITING = "waiting"  # none: no server is there, and no guess is wanted


@dataclass(frozen=True, slots=True)
class ModeStatus:
    """A mode and its reason in words."""

    mode: Mode
    why: str


GOES_AHEAD = ModeStatus(Mode.AHEAD, "the draft runs ahead")
"""The constant status of a policy without a governor."""

ONLY_REPEATS = ModeStatus(Mode.AHEAD, "repeats of known texts are proposed, without a draft model")
STREAMS = ModeStatus(Mode.SERVER_ONLY, "the verifier writes alone")
"""The constant status of a session without a drafter: with and without texts to look up in."""


@dataclass(frozen=True, slots=True)
class StartDrafter:
    """Start the drafter on a text; later `Expand` and `MoveTip` refer to its nodes."""

    tokens: tuple[int, ...]  # prompt, then text that is there already
    tip: int
    sampling: SamplingParams
    plain: int = 0  # candidates after each node, ranked without noise; 0: the drafter's number, with noise
    generated: int = 0  # number of last `tokens` that are text, not prompt; penalties count them so


@dataclass(frozen=True, slots=True)
class Expand:
    """Run one draft step and answer with `on_drafted` (or `on_drafter_failed`). One at a time."""

    rows: tuple[DraftRow, ...]


@dataclass(frozen=True, slots=True)
class MoveTip:
    """Move the drafter's tip, after the draft step under way and before the next."""

    change: Reroot


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a new stream; its messages follow. Any unread message of the old stream is void."""


@dataclass(frozen=True, slots=True)
class Send:
    """Write the message on the current stream."""

    message: Open | Propose | Close


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the verifier for a sign of life beside the stream, for `patience` seconds; `on_probed` takes the
    answer. One at a time; a new stream makes it void."""

    patience: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Committed text for the user, from `start` on. Bit i of `server_made`: token i was not drafted."""

    start: int
    tokens: tuple[int, ...]
    server_made: int
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token, if requested


@dataclass(frozen=True, slots=True)
class Preview:
    """The draft's own guess from position `start` on. The session may withdraw it; text that agrees replaces
    it."""

    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Withdraw `tokens`, all of the preview from position `start` on; the preview before stays."""

    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PreviewEnds:
    """Report that the guess ends at `position`. With a reason: the draft holds the text for complete; None:
    the guess has its greatest length. Repeated only after the guess has changed."""

    position: int
    reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class ChangeMode:
    """Show the user the new mode and its reason."""

    standing: ModeStatus


@dataclass(frozen=True, slots=True)
class Finished:
    """End the session, with a reason or with the error that ended it. No effect follows."""

    reason: FinishReason | None
    error: ForerunError | None = None


Shown = Emit | Preview | Withdraw | PreviewEnds | ChangeMode
"""Effects that the user sees, in order."""

DraftEffect = StartDrafter | MoveTip | Expand
"""What is asked of the draft model."""

Effect = DraftEffect | Connect | Send | Probe | Shown | Finished


# What a generation is asked to do.


class Fallback(Enum):
    """Selects a session's behaviour when no verifier has answered for `patience` seconds."""

    WAIT = "wait"  # shows the mode, and reconnects for as long as `max_attempts` allows
    DRAFT = "draft"  # the same, and shows the draft's own guess meanwhile
    FAIL = "fail"  # ends with an error


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Configures one generation. Checked in the constructor."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    fingerprint: bytes
    model: str = ""
    session_id: str = ""
    prior: Prior | None = None  # the draft's initial calibration; None: as shipped
    has_drafter: bool = True  # without one only repeats are proposed
    draft_waits: bool = False  # until the first Commit: on shared cores it would delay the target's prefill
    recall: bool = False  # also propose repeats of the text, which take no draft step
    references: tuple[tuple[int, ...], ...] = ()  # token ids of texts that this one may repeat
    first_backoff: float = 0.1  # seconds before the first reconnect, at least; see `reconnect`
    max_backoff: float = 5.0  # seconds; a user who watches the text should not wait longer for a retry
    max_attempts: int | None = None  # reconnects in a row without text from the verifier; None = for ever
    fallback: Fallback = Fallback.DRAFT
    patience: float | None = 1.0  # seconds without a server until the fallback begins; None = never
    max_preview: int | None = 256  # tokens of a guess, to bound the waste of a wrong one; None = no limit
    asks_when_silent: bool = True  # probe a verifier that owes text and is silent
    committed: tuple[int, ...] = ()  # text present when the session begins, after a restart for example
    num_read: int = 0  # leading tokens that the draft model has evaluated already, for an earlier text
    eos_token_ids: tuple[int, ...] = ()  # the target's own end tokens, where known: a guess ends there
    ends_are_told: bool = False  # a verifier reported them, so a text that stops ends with one
    vocab_size: int | None = None  # token ids with a text are below this; None = not known
    acceptance: Acceptance = COUPLED  # how the verifier decides
    logprobs: int | None = None  # report each token's, and this many of the likeliest; None = none
    privacy: Privacy | None = None  # least level on the wire; None = not sent to the verifier
    draft_top: int = MAX_TOKENS  # most tokens of a drawn draft; hardly possible ones are left out anyway

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError("the prompt is empty; at least one token is needed")
        if self.patience is not None and not self.patience > 0:
            raise UserError(f"patience is {self.patience} s; it must be above 0, or None for never")
        if self.fallback is Fallback.FAIL and self.patience is None:
            raise UserError("the fallback fail needs a patience: seconds after which it fails")
        if len(self.committed) > self.sampling.max_tokens:
            raise UserError(
                f"{len(self.committed)} tokens are committed already, more than max_tokens, "
                f"{self.sampling.max_tokens}"
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP_LOGPROBS:
            raise UserError(f"logprobs is {self.logprobs}; it must lie in [0, {MAX_TOP_LOGPROBS}]")

    @property
    def begins_with(self) -> tuple[int, ...]:
        """All tokens present before the first stream."""
        return self.prompt + self.committed

    @property
    def draws(self) -> bool:
        """Whether drafts are drawn at random and sent with their distribution."""
        return self.acceptance.draws(self.sampling.greedy)

    @property
    def ends(self) -> frozenset[int]:
        """Tokens known to end the text."""
        return self.sampling.ends(self.eos_token_ids)


# What a session counted on the edge.


@dataclass(slots=True)
class SessionStats:
    """Counts of one session, over all its streams. Times in seconds."""

    cached: int = 0  # tokens of the prompt that the verifier had in its prefix cache
    committed: int = 0  # tokens
    accepted: int = 0  # committed tokens that the edge had proposed in time
    target_steps: int = 0  # commits: each is one target step
    evaluated: int = 0  # nodes the target evaluated, tips included
    proposed: int = 0  # nodes sent
    proposes: int = 0  # messages that carried nodes, and empty nudges
    draft_steps: int = 0
    drafted: int = 0  # nodes the draft model evaluated
    read: int = 0  # tokens of the prompt and of committed text that it evaluated
    resumes: int = 0  # streams after the first
    draft_time: float = 0.0  # spent in draft steps
    queue_time: float = 0.0  # the verifier's, as it reported
    compute_time: float = 0.0  # the verifier's, as it reported

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per target step (vLLM counts it so)."""
        return self.committed / self.target_steps if self.target_steps else 0.0


@dataclass(slots=True)
class Traffic:
    """Counts the serialised bytes of all streams so far; gRPC and HTTP/2 framing excluded."""

    up: int = 0
    down: int = 0
