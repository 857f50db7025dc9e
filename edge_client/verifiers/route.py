"""One session's way to its verifiers: each stream goes to the best that has not just failed it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from common.errors import CapacityError, ForerunError, LocalError, UnavailableError
from common.messages import Commit, Drain, ServerMessage
from edge_client.channel import OnLost, OnMessage, Stream
from edge_client.core.ranking import Candidate, Demerits, choose, has_another
from edge_client.verifiers.member import Member


class Group(Protocol):
    """Who knows the verifiers of now."""

    @property
    def members(self) -> Iterable[Member]: ...

    def chance(self) -> float:
        """In [0, 1), another one each time."""
        ...

    def needed(self, route: Route, needed: bool) -> None:
        """A session is under way on this route, or no longer."""
        ...


class Route:
    """A `Streams` of one session, across all its streams."""

    def __init__(self, key: str, group: Group, clock: Callable[[], float] = time.monotonic) -> None:
        self.key = key
        self.address = ""  # of the newest stream's verifier, for people
        self._group = group
        self._clock = clock
        self._demerits = Demerits()
        self._on_ready: Callable[[], None] | None = None

    @property
    def elsewhere(self) -> bool:
        """See `Streams`."""
        return has_another(self._candidates(), self._demerits.passed_over(self._clock()))

    def open(self, on_message: OnMessage, on_lost: OnLost) -> Stream:
        """See `Streams`. Raises `UnavailableError` if no verifier fits, `LocalError` after the end of all."""
        found = choose(self.key, self._candidates(), self._demerits.passed_over(self._clock()))
        member = next(
            (each for each in self._group.members if found and str(each.address) == found.name), None
        )
        if member is None:
            raise self._nobody_fits()
        self.address = str(member.address)

        def heard(message: ServerMessage) -> None:
            if isinstance(message, Commit):
                self._demerits.forget(str(member.address))
            elif isinstance(message, Drain):
                self._blame(member, None)
                member.drains()
            on_message(message)

        def lost(error: ForerunError | None) -> None:
            if isinstance(error, UnavailableError | CapacityError):
                self._blame(member, error)
                member.failed(error)
            on_lost(error)

        def silent() -> None:
            self._blame(member, None)
            member.fell_silent()

        return member.channel.open(heard, lost, silent, self.key)

    def watch(self, on_ready: Callable[[], None] | None) -> None:
        """See `Streams`."""
        self._on_ready = on_ready
        self._group.needed(self, on_ready is not None)

    def came_back(self, address: str) -> None:
        """A verifier is ready that was not: what it did before is forgotten."""
        self._demerits.forget(address)
        if self._on_ready is not None and self.elsewhere:
            self._on_ready()

    def _blame(self, member: Member, error: ForerunError | None) -> None:
        retry_after = error.retry_after if isinstance(error, CapacityError) else None
        self._demerits.failed(str(member.address), self._clock(), self._group.chance(), retry_after)

    def _nobody_fits(self) -> ForerunError:
        """They may be replaced by others, so a session waits for that as for a verifier that is gone."""
        why = "; ".join(f"{each.address}: {each.why}" for each in self._group.members)
        if not why:
            return LocalError("a stream was asked for when the verifiers had been closed")
        return UnavailableError(f"no verifier fits this device: {why}")

    def _candidates(self) -> list[Candidate]:
        return [member.candidate() for member in self._group.members]
