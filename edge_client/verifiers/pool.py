"""Several verifiers, asked in the background whether they are there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from common.errors import NOT_LET_IN, Code, ForerunError, PeerError, UnavailableError, UserError
from common.rpc.describe import Description
from common.vocabulary import Vocabulary
from edge_client.core.pacing import SOON, pause
from edge_client.core.ranking import nearest
from edge_client.tls import LiveTls, TlsSettings
from edge_client.verifiers.addresses import VerifierAddress, parse_address, resolve
from edge_client.verifiers.member import Member
from edge_client.verifiers.route import Route
from edge_client.verifiers.status import Health, VerifierStatus

logger = logging.getLogger(__name__)

RESOLVE_AGAIN, RESOLVE_OFTEN = 5.0, 30.0
"""Seconds after which a name is looked up again: if a machine of it fails or goes away, and if all is well. A
cluster that grows, or replaces its machines one by one, tells in no other way."""

FRESH = 2.0
"""Seconds; a session that begins has verifiers asked again that were asked longer ago."""


@dataclass(slots=True)
class Place:
    """An address as it was given, and the machines behind it."""

    address: VerifierAddress
    members: dict[str, Member] = field(default_factory=dict)
    resolved_at: float = -1e9
    offered: bool = False  # not by the owner of this device
    lapsed: bool = False  # was offered once, and is not any more


class Verifiers:
    """An async context manager. Entering raises nothing if nobody is there; `ready` waits for somebody.

    `vocabulary`, of the draft, that a verifier's must be; None for any. `insecure` allows plain text to other
    machines. Raises `UserError` for an address that is none, an address beyond this machine without TLS, and
    TLS files that cannot be used. `clock` and `chance` are the machine's own, unless a test has others.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        vocabulary: Vocabulary | None = None,
        tls: TlsSettings | None = None,
        insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        parsed = [parse_address(each, encrypted=tls is not None, insecure=insecure) for each in addresses]
        if not parsed:
            raise UserError("no verifier is named; give at least one HOST:PORT")
        if tls is not None:
            LiveTls(tls)
        self.chance = chance
        self._places = [Place(address) for address in dict.fromkeys(parsed)]
        self._vocabulary, self._tls, self._insecure, self._clock = vocabulary, tls, insecure, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by member's address
        self._lookups: dict[str, asyncio.Task[None]] = {}  # by place's address
        self._listeners: list[Callable[[], None]] = []
        self._routes: dict[Route, None] = {}  # under way, in the order of their beginnings
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Verifiers:
        for place in self._places:
            self._begin(place)
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

    # For sessions -----------------------------------------------------------------------------------------

    def route(self, key: str) -> Route:
        """Of one session; its key decides among verifiers that are equally near."""
        return Route(key, self, self._clock)

    async def ready(self, patience: float) -> Description:
        """What the best verifier serves, as soon as one can be used. Raises `UserError` if all that answer
        have other tokens, `UnavailableError` if none can be used within `patience` seconds; either says why,
        for each.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not self._any_ready() and not self._all_unfit():
                    self._changed.clear()
                    await self._changed.wait()
        found = self.best()
        if found is None or not self._any_ready():
            raise self._why_none()
        return found

    async def heard(self, patience: float) -> None:
        """Return when a verifier has told what it serves, or all have been asked in vain, or after `patience`
        seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self.best() is None and any(each.health is Health.ASKED for each in self.members):
                    self._changed.clear()
                    await self._changed.wait()

    def best(self) -> Description | None:
        """What the nearest verifier that is ready serves, or one that once was; None if nobody ever
        answered."""
        ready = {str(each.address): each for each in self.members if each.health is Health.READY}
        near = nearest([each.candidate() for each in ready.values()])
        if near:
            return ready[near[0].name].description
        known = (each.description for each in self.members if each.health is not Health.UNFIT)
        return next((each for each in known if each is not None), None)

    def refusal(self) -> ForerunError | None:
        """Why a text cannot be begun: no verifier fits, or none has ever answered. None if one may."""
        members = list(self.members)
        if self.best() is not None or any(each.health is Health.ASKED for each in members):
            return None
        sentences = "; ".join(f"{each.address}: {each.why}" for each in members)
        if not members or not self._all_unfit():
            return UnavailableError(f"no verifier can be used now: {sentences}")
        if members[0].code in NOT_LET_IN:
            return UserError(sentences, members[0].code)
        return PeerError(f"no verifier fits this device: {sentences}")

    # Offers -----------------------------------------------------------------------------------------------

    def offer(self, addresses: Iterable[str]) -> None:
        """Beside those that were named these may be used, and no others that were offered before. One that
        is not offered any more stays for as long as it answers: who makes offers may be away, and the
        verifier be there. What cannot be used is left out with a warning."""
        wanted = dict[str, VerifierAddress]()
        for text in addresses:
            try:
                address = parse_address(text, encrypted=self._tls is not None, insecure=self._insecure)
            except UserError as error:
                logger.warning("! an offer is not taken: %s", error)
            else:
                wanted[str(address)] = address
        for place in self._places:
            still = wanted.pop(str(place.address), None) is not None
            place.lapsed = place.offered and not still
        for address in wanted.values():
            logger.info("> the verifier %s is offered", address)
            place = Place(address, offered=True)
            self._places.append(place)
            self._begin(place)

    def _drop(self, place: Place) -> None:
        """Forget it. Streams that are on it end by themselves."""
        logger.info("> the verifier %s is offered no more, and does not answer", place.address)
        self._places.remove(place)
        self._set_members(place, ())
        self._tell()

    # For people -------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[VerifierStatus, ...]:
        """All of them, in the order in which they were named."""
        return tuple(member.status() for member in self.members)

    def listen(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` whenever a verifier's health becomes another one, or one is dropped; returns what
        ends that."""
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    # For routes -------------------------------------------------------------------------------------------

    @property
    def members(self) -> Iterable[Member]:
        """All machines of all names."""
        return [member for place in self._places for member in place.members.values()]

    def needed(self, route: Route, needed: bool) -> None:
        """See `route.Group`."""
        if not needed:
            self._routes.pop(route, None)
            return
        self._routes[route] = None
        for member in self.members:
            if self._clock() - member.asked_at > FRESH:
                member.wake.set()

    # Asking -----------------------------------------------------------------------------------------------

    async def _keep(self, place: Place, member: Member) -> None:
        while True:
            member.wake.clear()
            try:
                await member.probe()
            except Exception:  # outermost frame of this task: one verifier's oddity must not hide the others
                logger.exception("! the verifier %s could not be asked", member.address)
                member.failures += 1
            if place.lapsed and all(not each.is_reachable for each in place.members.values()):
                self._drop(place)
                return
            well = member.is_reachable and member.health is not Health.DRAINING
            self._look_up(place, RESOLVE_OFTEN if well else RESOLVE_AGAIN)
            member.idle = 0 if self._routes else member.idle + 1
            await self._rest(member)

    async def _rest(self, member: Member) -> None:
        """Until it is time to ask again, or somebody has a reason to; never less than a moment."""
        wait = pause(member.failures, member.idle, self.chance())
        await asyncio.sleep(min(wait, SOON / 2))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait - SOON / 2)):
                await member.wake.wait()

    def _begin(self, place: Place) -> None:
        self._set_members(place, (place.address,))
        self._look_up(place)

    def _look_up(self, place: Place, age: float = 0.0) -> None:
        """If that was not done in the last `age` seconds, and there is a name to look up."""
        name, now = str(place.address), self._clock()
        if place.address.is_literal or name in self._lookups or now - place.resolved_at < age:
            return
        place.resolved_at = now
        task = self._lookups[name] = asyncio.create_task(self._resolve(place))
        task.add_done_callback(lambda _: self._lookups.pop(name, None))

    async def _resolve(self, place: Place) -> None:
        try:
            found = await resolve(place.address)
        except ForerunError as error:
            logger.info("x %s", error)
            return  # the machines that are known, if any, may come back
        if place not in self._places:
            return  # dropped meanwhile
        for member in self._set_members(place, found):
            logger.info("> %s is none of %s any more", member.address, place.address)

    def _set_members(self, place: Place, addresses: Iterable[VerifierAddress]) -> list[Member]:
        """From now on these; returns those that are no longer. Sessions that are there go on."""
        wanted = {str(address): address for address in addresses}
        gone = [place.members.pop(name) for name in [*place.members] if name not in wanted]
        for member in gone:
            self._tasks.pop(str(member.address)).cancel()
            member.channel.retire()
        for name, address in wanted.items():
            if name not in place.members and name not in self._tasks:
                host, tls = place.address.bare_host, self._tls
                member = Member(address, host, self._vocabulary, tls, self._clock, self._on_change)
                place.members[name] = member
                self._tasks[name] = asyncio.create_task(self._keep(place, member))
        return gone

    def _on_change(self, member: Member) -> None:
        level = logging.WARNING if member.health is Health.UNFIT else logging.INFO
        logger.log(level, "%s is %s: %s", member.address, member.health.value, member.why)
        self._changed.set()
        if member.health is Health.READY:
            for route in [*self._routes]:
                route.came_back(str(member.address))
        self._tell()

    def _tell(self) -> None:
        for listener in [*self._listeners]:
            listener()

    # Why --------------------------------------------------------------------------------------------------

    def _any_ready(self) -> bool:
        return any(each.health is Health.READY for each in self.members)

    def _all_unfit(self) -> bool:
        return all(each.health is Health.UNFIT for each in self.members)

    def _why_none(self) -> ForerunError:
        sentences = "; ".join(f"{each.address}: {each.why}" for each in self.members)
        if self._all_unfit():
            return UserError(sentences, Code.FAILED_PRECONDITION)
        return UnavailableError(f"no verifier can be used now: {sentences}")
