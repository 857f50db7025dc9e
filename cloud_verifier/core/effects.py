"""What the scheduler asks its driver to do, in order."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ForerunError
from common.messages import Commit, Drain, Finish, Opened


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this message on the session's stream."""

    session: int
    message: Opened | Commit | Drain | Finish


@dataclass(frozen=True, slots=True)
class End:
    """End the session's stream: with OK after a `Finish`, with the error's status otherwise."""

    session: int
    error: ForerunError | None = None


Effect = Reply | End
