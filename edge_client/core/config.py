"""What a generation is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from common.acceptance import COUPLED, Acceptance
from common.draft import MAX_TOKENS
from common.errors import UserError
from common.messages import MAX_TOP_LOGPROBS
from common.sampling import SamplingParams
from edge_client.core.confidence import Prior


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
    first_backoff: float = 0.1  # seconds before the first reconnect; doubles (gRPC's own policy doubles too)
    max_backoff: float = 5.0  # seconds; a person who watches the text should not wait longer for a retry
    max_attempts: int = 8  # reconnects in a row without text from the verifier
    patience: float | None = 1.0  # seconds without a server until the draft's guess is shown; None = never
    max_preview: int = 256  # tokens of that guess; bounds the work that a wrong guess wastes
    eos_token_ids: tuple[int, ...] = ()  # the target's own end tokens, where known: a guess ends there
    acceptance: Acceptance = COUPLED  # how the verifier decides
    logprobs: int | None = None  # have each token's told, and of so many of the likeliest; None = of nothing
    draft_top: int = MAX_TOKENS  # that a drawn draft may have; those of hardly any chance are left out anyway

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError("the prompt is empty; at least one token is needed")
        if not 0 < self.first_backoff <= self.max_backoff:
            raise UserError(f"backoff {self.first_backoff} to {self.max_backoff} s is not a range above 0")
        if self.max_attempts < 0:
            raise UserError(f"max_attempts is {self.max_attempts}; it must be 0 or more")
        if self.patience is not None and not self.patience > 0:
            raise UserError(f"patience is {self.patience} s; it must be above 0, or None for no preview")
        if self.max_preview < 1:
            raise UserError(f"max_preview is {self.max_preview}; it must be at least 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP_LOGPROBS:
            raise UserError(f"logprobs is {self.logprobs}; it must lie in [0, {MAX_TOP_LOGPROBS}]")
        if not 1 <= self.draft_top <= MAX_TOKENS:
            raise UserError(f"draft_top is {self.draft_top}; it must lie in [1, {MAX_TOKENS}]")

    @property
    def draws(self) -> bool:
        """Whether drafts are drawn at random and told with what they were drawn from."""
        return self.acceptance.draws(self.sampling.greedy)

    @property
    def ends(self) -> frozenset[int]:
        """Tokens known to end the text."""
        return self.sampling.ends(self.eos_token_ids)
