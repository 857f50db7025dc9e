"""A client's request for a text, checked and in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from common.acceptance import COUPLED, Acceptance
from common.errors import UserError
from common.messages import TokenLogprobs
from common.sampling import SamplingParams
from edge_client.core.effects import Fallback
from edge_client.texts.detokenizer import TokenOrigin


class Writer(Enum):
    """Names the requested writer of a text."""

    SPLIT = "split"  # the target's, drafted here
    TARGET = "target"  # the target's, nothing drafted
    DRAFT = "draft"  # the draft model's own, no verifier asked


@dataclass(frozen=True, slots=True)
class Begun:
    """Holds the part of a text that an earlier run of the daemon wrote."""

    tokens: tuple[int, ...] = ()
    origins: tuple[TokenOrigin, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()  # of each token; empty: of none


NOTHING = Begun()


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Requests one text. The constructor raises `UserError` for bad values."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    id: str = ""  # names it in logs, in status pages, and to the verifier
    writer: Writer = Writer.SPLIT
    stops: tuple[str, ...] = ()  # strings before which the text ends
    logprobs: int | None = None  # alternatives shown with each token; None: no log-probabilities
    fallback: Fallback = Fallback.WAIT
    revises: bool = False  # show guesses, because the client can take them back
    policy: str = "adaptive"
    recall: bool = True  # also propose repetitions of the text
    references: tuple[tuple[int, ...], ...] = ()  # texts in tokens that this one may repeat
    drafting: bool = True  # run the draft model; without it repeats alone are proposed
    acceptance: Acceptance = COUPLED
    advised: tuple[tuple[str, float], ...] = ()  # sampling values that the target's makers chose, by name
    begun: Begun = NOTHING
    target: str = ""  # name of the target that writes; empty: the one that its first verifier serves

    @property
    def drafts(self) -> bool:
        """Tell whether the draft model takes part."""
        return self.drafting and self.writer is not Writer.TARGET and self.policy != "off"

    @property
    def repeats(self) -> bool:
        """Tell whether repeats are proposed without the draft model."""
        return self.recall and not self.drafting and self.writer is Writer.SPLIT

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError("the prompt is empty; at least one token is needed")
        if len(self.begun.tokens) != len(self.begun.origins):
            raise UserError("a text that goes on needs an origin for each of its tokens")
