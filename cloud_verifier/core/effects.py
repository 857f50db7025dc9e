"""Define the effects of the scheduler, which the driver carries out in order."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ForerunError
from common.messages import ServerMessage


@dataclass(frozen=True, slots=True)
class Reply:
    session: int
    message: ServerMessage


@dataclass(frozen=True, slots=True)
class End:
    """End the session's stream: with OK after a `Finish`, with the error's status otherwise."""

    session: int
    error: ForerunError | None = None


Effect = Reply | End
