"""What a generation is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from common.acceptance import COUPLED, Acceptance
from common.draft import MAX_TOKENS
from common.errors import UserError
from common.messages import MAX_TOP_LOGPROBS
from common.privacy import Privacy
from common.sampling import SamplingParams
from edge_client.core.confidence import Prior


class Fallback(Enum):
    """What a session does when nobody has answered for `patience` seconds."""

    WAIT = "wait"  # says so, and reconnects for as long as `max_attempts` allows
    DRAFT = "draft"  # the same, and shows the draft's own guess meanwhile
    FAIL = "fail"  # ends with an error


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """One generation. Checked in the constructor."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    fingerprint: bytes
    model: str = ""
    session_id: str = ""
    prior: Prior | None = None  # how right the draft is believed to be at first; None: as shipped
    recall: bool = False  # also propose what the text repeats of itself, which takes no draft step
    first_backoff: float = 0.1  # seconds before the first reconnect, at least; see `reconnect`
    max_backoff: float = 5.0  # seconds; a person who watches the text should not wait longer for a retry
    max_attempts: int | None = None  # reconnects in a row without text from the verifier; None = for ever
    fallback: Fallback = Fallback.DRAFT
    patience: float | None = 1.0  # seconds without a server until the fallback begins; None = never
    max_preview: int | None = 256  # tokens of a guess, to bound what a wrong one wastes; None = to the end
    asks_when_silent: bool = True  # ask a verifier that owes text and is silent whether it is there
    committed: tuple[int, ...] = ()  # text that is there when the session begins, after a restart for example
    eos_token_ids: tuple[int, ...] = ()  # the target's own end tokens, where known: a guess ends there
    ends_are_told: bool = False  # a verifier has told those, so a text that stops has one at its end
    vocab_size: int | None = None  # ids that have a text run from 0 to this, exclusive; None = not known
    acceptance: Acceptance = COUPLED  # how the verifier decides
    logprobs: int | None = None  # have each token's told, and of so many of the likeliest; None = of nothing
    privacy: Privacy | None = None  # of the wire, at least; None = the verifier is not told
    draft_top: int = MAX_TOKENS  # that a drawn draft may have; those of hardly any chance are left out anyway

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError("the prompt is empty; at least one token is needed")
        if not 0 < self.first_backoff <= self.max_backoff:
            raise UserError(f"backoff {self.first_backoff} to {self.max_backoff} s is not a range above 0")
        if self.max_attempts is not None and self.max_attempts < 0:
            raise UserError(f"max_attempts is {self.max_attempts}; it must be 0 or more, or None for ever")
        if self.patience is not None and not self.patience > 0:
            raise UserError(f"patience is {self.patience} s; it must be above 0, or None for never")
        if self.fallback is Fallback.FAIL and self.patience is None:
            raise UserError("the fallback fail needs a patience: seconds after which it fails")
        if self.max_preview is not None and self.max_preview < 1:
            raise UserError(f"max_preview is {self.max_preview}; it must be at least 1, or None")
        if len(self.committed) > self.sampling.max_tokens:
            raise UserError(
                f"{len(self.committed)} tokens are there already, more than the {self.sampling.max_tokens} "
                "asked for"
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP_LOGPROBS:
            raise UserError(f"logprobs is {self.logprobs}; it must lie in [0, {MAX_TOP_LOGPROBS}]")
        if not 1 <= self.draft_top <= MAX_TOKENS:
            raise UserError(f"draft_top is {self.draft_top}; it must lie in [1, {MAX_TOKENS}]")

    @property
    def begins_with(self) -> tuple[int, ...]:
        """All tokens that are there before the first stream."""
        return self.prompt + self.committed

    @property
    def draws(self) -> bool:
        """Whether drafts are drawn at random and told with what they were drawn from."""
        return self.acceptance.draws(self.sampling.greedy)

    @property
    def ends(self) -> frozenset[int]:
        """Tokens known to end the text."""
        return self.sampling.ends(self.eos_token_ids)
