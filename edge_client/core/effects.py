"""What the edge session asks its driver to do, in order."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ForerunError
from common.messages import Close, FinishReason, Open, Propose, TokenLogprobs
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Reroot
from edge_client.core.policies.governor import Standing


@dataclass(frozen=True, slots=True)
class StartDrafter:
    """Hand the drafter its text; what follows it are `Expand` and `MoveTip` for these nodes."""

    tokens: tuple[int, ...]
    tip: int
    sampling: SamplingParams
    plain: int = 0  # candidates after each node, ranked without the noise; 0: under it, as the drafter likes


@dataclass(frozen=True, slots=True)
class Expand:
    """Run one draft step and answer with `on_drafted` (or `on_drafter_failed`). One at a time."""

    rows: tuple[DraftRow, ...]


@dataclass(frozen=True, slots=True)
class MoveTip:
    """Tell the drafter that the tip moved; after the draft step under way, before the next."""

    change: Reroot


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a new stream; the messages to send follow. Whatever the old one still holds is void."""


@dataclass(frozen=True, slots=True)
class Send:
    """Write the message on the current stream."""

    message: Open | Propose | Close


@dataclass(frozen=True, slots=True)
class Emit:
    """Committed text for the user, from `start` on. Bit i of `server_made`: token i was not drafted. What the
    session asked to be told of the tokens, one a token; empty if it did not ask."""

    start: int
    tokens: tuple[int, ...]
    server_made: int
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """The draft's own guess of what follows all that is shown, from position `start` on. Not text: it may be
    withdrawn. Later `Emit` tokens take the place of the guess at their positions, with which they agree."""

    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """All of the preview from position `start` on, `tokens`, is void; what of it stands before is not."""

    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChangeMode:
    """Who writes the text is another one now; tell the user why."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Finished:
    """The session is over: with a reason, or with the error that ended it. Nothing follows."""

    reason: FinishReason | None
    error: ForerunError | None = None


Effect = StartDrafter | Expand | MoveTip | Connect | Send | Emit | Preview | Withdraw | ChangeMode | Finished
