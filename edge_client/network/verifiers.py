"""Several verifiers, which background tasks probe."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from common.errors import (
    NOT_LET_IN,
    CapacityError,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from common.messages import Commit, Drain, ServerMessage
from common.vocabulary import Vocabulary
from common.wire.describe import Description
from edge_client.core.verifier_choice import (
    NO_DRAFT,
    SOON,
    Demerits,
    DraftSkill,
    VerifierCandidate,
    best,
    choose,
    common_target,
    has_another,
    pause,
)
from edge_client.network.addresses import VerifierAddress, parse_address, resolve
from edge_client.network.channel import OnLost, OnMessage, VerifierStream
from edge_client.network.client_tls import LiveClientTls, TlsSettings
from edge_client.network.member import Health, VerifierMember, VerifierStatus

logger = logging.getLogger(__name__)

RESOLVE_AGAIN, RESOLVE_OFTEN = 5.0, 30.0
"""Seconds between two look-ups of a name: after one of its machines failed, and otherwise. Only a look-up
shows that a cluster has grown or has replaced a machine."""

FRESH = 2.0
"""Seconds after which a verifier's last probe is too old for a new session, which has it probed again."""


OTHER_TARGET = (
    "it serves {own}, and this device's texts are written by {target}; serve the same model under the same "
    "name at all verifiers of a pair, or give this one a pair of its own ([pairs.NAME])"
)


@dataclass(slots=True)
class StreamPlace:
    """Holds a configured address and the machines behind it."""

    address: VerifierAddress
    members: dict[str, VerifierMember] = field(default_factory=dict)
    resolved_at: float = -1e9


class Verifiers:
    """Manages the verifiers as an async context manager. Entering does not fail without any; `heard` waits.

    A verifier must have the draft's `vocabulary`; None accepts any. New texts are by the common `target`, and
    each text is to its end by the target that it began with. Raises `UserError` for an invalid address, one
    beyond this machine without TLS or `insecure`, and TLS files that cannot be used.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        vocabulary: Vocabulary | None = None,
        tls: TlsSettings | None = None,
        insecure: bool = False,
    ) -> None:
        parsed = [parse_address(each, encrypted=tls is not None, insecure=insecure) for each in addresses]
        if not parsed:
            raise UserError("no verifier is named; give at least one HOST:PORT")
        if tls is not None:
            LiveClientTls(tls)
        self._places = [StreamPlace(address) for address in dict.fromkeys(parsed)]
        self._vocabulary, self._tls = vocabulary, tls
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by member's address
        self._lookups: dict[str, asyncio.Task[None]] = {}  # by place's address
        self._listeners: list[Callable[[], None]] = []
        self._noted = dict[str, tuple[str, str]]()  # by address of one with another target, that and ours
        self._routes: dict[Route, None] = {}  # under way, in the order of their beginnings
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Verifiers:
        for place in self._places:
            self._set_members(place, (place.address,))
            self._look_up(place)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks.values(), *self._lookups.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self.members:
            await member.close()
        for place in self._places:
            place.members.clear()

    def route(self, key: str, skill: DraftSkill = NO_DRAFT, target: str = "") -> Route:
        """Return a session's route. Its key decides among verifiers that are equally good for its drafts."""
        return Route(key, self, skill, target)

    @property
    def target(self) -> str:
        """Return the name of the target of new texts; empty if no verifier has told one."""
        return common_target([(each.target, each.takes_texts) for each in self.members if each.target])

    def of(self, target: str) -> list[VerifierMember]:
        """Return the verifiers of `target`; empty: of that of new texts, or of an unknown one.

        A lost verifier of a given target comes back with its next answer, since it may serve another by then.
        """
        if target:
            serving = (each for each in self.members if each.target == target)
            return [each for each in serving if each.health is not Health.UNREACHABLE]
        return [each for each in self.members if each.target in ("", self.target)]

    async def heard(self, patience: float) -> None:
        """Wait until a verifier has answered, all have failed, or `patience` seconds have passed.

        Answers count for `FRESH` seconds: a verifier that restarted while nobody needed it may serve another
        target.
        """
        since = time.monotonic() - FRESH
        self._ask_again()

        def awaited() -> list[VerifierMember]:
            old = [each for each in self.members if each.answered_at < since]
            ready = [each for each in self.members if each.health is Health.READY]
            return [each for each in ready if each in old] if ready else old

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while awaited():
                    self._changed.clear()
                    await self._changed.wait()

    def best(self) -> Description | None:
        """Return what the best ready verifier serves, else one that was ready once, else None."""
        members = self.of("")
        ready = {str(each.address): each for each in members if each.health is Health.READY}
        nearest = best([each.candidate() for each in ready.values()], NO_DRAFT)
        if nearest:
            return ready[nearest[0].name].description
        known = (each.description for each in members if each.health is not Health.UNFIT)
        return next((each for each in known if each is not None), None)

    def refusal(self) -> ForerunError | None:
        """Return why a text cannot begin: no verifier fits or has ever answered. None if one may."""
        members = self.members
        if self.best() is not None or any(each.health is Health.ASKED for each in members):
            return None
        if not members or any(each.health is not Health.UNFIT for each in members):
            return UnavailableError(f"no verifier can be used now: {_reasons(members)}")
        if members[0].code in NOT_LET_IN:
            return UserError(_reasons(members), members[0].code)
        return PeerError(f"no verifier fits this device: {_reasons(members)}")

    def snapshot(self) -> tuple[VerifierStatus, ...]:
        """Return the status of all verifiers in the order of their configuration."""
        target = self.target
        return tuple(self._status(member, target) for member in self.members)

    @staticmethod
    def _status(member: VerifierMember, target: str) -> VerifierStatus:
        status, own = member.status(), member.target
        if own in ("", target) or status.health not in (Health.READY, Health.FULL, Health.DRAINING):
            return status
        return replace(status, health=Health.UNFIT, why=OTHER_TARGET.format(own=own, target=target))

    def listen(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` whenever a verifier's health changes. Return a function that ends this."""
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    @property
    def members(self) -> list[VerifierMember]:
        return [member for place in self._places for member in place.members.values()]

    def needed(self, route: Route, needed: bool) -> None:
        """Note whether a session is under way on this route."""
        if not needed:
            self._routes.pop(route, None)
            return
        self._routes[route] = None
        self._ask_again()

    def _ask_again(self) -> None:
        """Have each verifier probed whose last probe is old."""
        for member in self.members:
            if time.monotonic() - member.asked_at > FRESH:
                member.wake.set()

    async def _keep(self, place: StreamPlace, member: VerifierMember) -> None:
        while True:
            member.wake.clear()
            try:
                await member.probe()
            except Exception:  # outermost frame of this task: one verifier's defect must not hide the others
                logger.exception("! the verifier %s could not be probed", member.address)
                member.failures += 1
            member.answered_at = time.monotonic()
            self._note_others()
            self._changed.set()
            well = member.is_reachable and member.health is not Health.DRAINING
            self._look_up(place, RESOLVE_OFTEN if well else RESOLVE_AGAIN)
            member.idle = 0 if self._routes else member.idle + 1
            await self._rest(member)

    def _note_others(self) -> None:
        """Warn once of each verifier that serves another target than the new texts'."""
        target = self.target
        before, self._noted = self._noted, {}
        for member in self.members:
            if (own := member.target) not in ("", target):
                address = str(member.address)
                self._noted[address] = own, target
                if before.get(address) != (own, target):
                    why = OTHER_TARGET.format(own=own, target=target)
                    logger.warning("x %s gets no new text: %s", address, why)

    async def _rest(self, member: VerifierMember) -> None:
        """Wait for the next probe's time or for an earlier reason, and always for a moment."""
        wait = pause(member.failures, member.idle, random.random())
        await asyncio.sleep(min(wait, SOON / 2))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait - SOON / 2)):
                await member.wake.wait()

    def _look_up(self, place: StreamPlace, age: float = 0.0) -> None:
        """Look up a place's name, if it has one and its last look-up is older than `age` seconds."""
        name, now = str(place.address), time.monotonic()
        if place.address.is_literal or name in self._lookups or now - place.resolved_at < age:
            return
        place.resolved_at = now
        task = self._lookups[name] = asyncio.create_task(self._resolve(place))
        task.add_done_callback(lambda _: self._lookups.pop(name, None))

    async def _resolve(self, place: StreamPlace) -> None:
        try:
            machines = await resolve(place.address)
        except ForerunError as error:
            logger.info("x %s", error)
            return  # known machines may come back
        for member in self._set_members(place, machines):
            logger.info("> %s is no longer a machine of %s", member.address, place.address)

    def _set_members(self, place: StreamPlace, addresses: Iterable[VerifierAddress]) -> list[VerifierMember]:
        """Replace a place's members; return the dropped ones. Their sessions go on."""
        wanted = {str(address): address for address in addresses}
        gone = [place.members.pop(name) for name in [*place.members] if name not in wanted]
        for member in gone:
            self._tasks.pop(str(member.address)).cancel()
            member.channel.retire()
        for name, address in wanted.items():
            if name not in place.members and name not in self._tasks:
                host, tls = place.address.bare_host, self._tls
                member = VerifierMember(address, host, self._vocabulary, tls, time.monotonic, self._on_change)
                place.members[name] = member
                self._tasks[name] = asyncio.create_task(self._keep(place, member))
        return gone

    def _on_change(self, member: VerifierMember) -> None:
        level = logging.WARNING if member.health is Health.UNFIT else logging.INFO
        logger.log(level, "%s is %s: %s", member.address, member.health.value, member.why)
        self._changed.set()
        if member.health is Health.READY:
            for route in [*self._routes]:
                route.came_back(str(member.address))
        for listener in [*self._listeners]:
            listener()


class Route:
    """Opens each stream of one session at the best verifier that has not just failed. A `StreamSource`.

    All of them serve one `target`: if it is empty, that of the first.
    """

    def __init__(self, key: str, verifiers: Verifiers, skill: DraftSkill, target: str = "") -> None:
        self.address = ""  # of the newest stream's verifier, for people
        self._target = target
        self._key, self._skill = key, skill
        self._verifiers = verifiers
        self._demerits = Demerits()
        self._on_ready: Callable[[], None] | None = None

    @property
    def elsewhere(self) -> bool:
        return has_another(self._candidates(), self._demerits.passed_over(time.monotonic()))

    @property
    def shares_machine(self) -> bool:
        member = self._best()
        return member is not None and member.channel.shares_machine

    def open(self, on_message: OnMessage, on_lost: OnLost) -> VerifierStream:
        """Open a stream. Raises `UnavailableError` if no verifier fits now, `PeerError` if all of them serve
        another target than the text's, and `LocalError` after the end."""
        member, members = self._best(), self._verifiers.members
        if not members:
            raise LocalError("a stream was requested after the verifiers had been closed")
        if member is None and all(each.target not in ("", self._target) for each in members):
            raise PeerError(
                f"no verifier serves {self._target} any more, which wrote this text so far: "
                f"{_reasons(members)}; send the request again"
            )
        if member is None:  # a fitting one may replace them, so a session waits as for a lost verifier
            raise UnavailableError(f"no verifier fits this device: {_reasons(members)}")
        self.address = str(member.address)
        self._target = self._target or member.target

        def heard(message: ServerMessage) -> None:
            if isinstance(message, Commit):
                self._demerits.forget(str(member.address))
                self._target = self._target or member.target
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

        return member.channel.open(heard, lost, silent, self._key)

    def watch(self, on_ready: Callable[[], None] | None) -> None:
        self._on_ready = on_ready
        self._verifiers.needed(self, on_ready is not None)

    def came_back(self, address: str) -> None:
        """Forget the failures of a verifier that has become ready again."""
        self._demerits.forget(address)
        if self._on_ready is not None and self.elsewhere:
            self._on_ready()

    def _blame(self, member: VerifierMember, error: ForerunError | None) -> None:
        retry_after = error.retry_after if isinstance(error, CapacityError) else None
        self._demerits.failed(str(member.address), time.monotonic(), random.random(), retry_after)

    def _best(self) -> VerifierMember | None:
        """Return the verifier of a stream that is opened now; None if none fits."""
        passed_over = self._demerits.passed_over(time.monotonic())
        candidate = choose(self._key, self._candidates(), passed_over, self._skill)
        members = {str(each.address): each for each in self._verifiers.members}
        return None if candidate is None else members[candidate.name]

    def _candidates(self) -> list[VerifierCandidate]:
        return [member.candidate() for member in self._verifiers.of(self._target)]


def _reasons(members: Iterable[VerifierMember]) -> str:
    return "; ".join(f"{each.address}: {each.why}" for each in members)
