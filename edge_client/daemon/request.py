"""What a client of the daemon asks for, checked and in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from common.acceptance import COUPLED, Acceptance
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.config import Fallback
from edge_client.text import Origin

MAX_STOPS = 16
"""Stop strings of one request, each looked for at every token. OpenAI's API allows 4."""

MAX_STOP_CHARS = 256


class Writer(Enum):
    """Whose text is asked for."""

    SPLIT = "split"  # the target's, drafted here
    TARGET = "target"  # the target's, nothing drafted
    DRAFT = "draft"  # the draft model's own, no verifier asked


@dataclass(frozen=True, slots=True)
class Begun:
    """What of a text was written before, by an earlier run of the daemon."""

    tokens: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One text. Checked in the constructor; raises `UserError`."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    id: str = ""  # names it in logs, in status pages, and to the verifier
    writer: Writer = Writer.SPLIT
    stops: tuple[str, ...] = ()  # strings before which the text ends
    logprobs: int | None = None  # alternatives to tell beside each token; None: no log-probabilities at all
    fallback: Fallback = Fallback.WAIT
    revises: bool = False  # whether the client can take a guess back, and so is shown them
    policy: str = "adaptive"
    recall: bool = True  # also propose what the text repeats
    acceptance: Acceptance = COUPLED
    advised: tuple[tuple[str, float], ...] = ()  # sampling values that the target's makers chose, by name
    begun: Begun = Begun()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError("the prompt is empty; at least one token is needed")
        if len(self.stops) > MAX_STOPS:
            raise UserError(f"stop has {len(self.stops)} strings; at most {MAX_STOPS} are allowed")
        for stop in self.stops:
            if not 0 < len(stop) <= MAX_STOP_CHARS:
                raise UserError(
                    f"a stop string has {len(stop)} characters; 1 to {MAX_STOP_CHARS} are allowed"
                )
        if len(self.begun.tokens) != len(self.begun.origins):
            raise UserError("a text that goes on needs an origin for each of its tokens")
