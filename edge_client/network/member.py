"""One verifier of several: its channel, and its health by repeated probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from common.errors import NOT_LET_IN, Code, ForerunError, UnavailableError
from common.estimators import RttEstimator
from common.vocabulary import Vocabulary
from common.wire.describe import Description
from edge_client.core.verifier_choice import VerifierCandidate, target_name
from edge_client.network.addresses import VerifierAddress
from edge_client.network.channel import OWN_CONNECTION, Held, VerifierChannel
from edge_client.network.client_tls import TlsSettings, explain

TOLD_ONCE = ("chat_template", "bos_token", "eos_token")
"""Fields of a description that a verifier is asked for on a new connection only."""

PROBE_TIME = 1.8
"""Seconds for an answer, so that a wrong address is known within two."""

IS_DRAINING = "it is draining: it goes away and takes no new sessions"


class Health(Enum):
    """States the health of one verifier, as an edge sees it."""

    ASKED = "asked"  # for the first time; it has not answered yet
    READY = "ready"
    FULL = "full"  # it has its maximum of sessions
    DRAINING = "draining"  # it goes away
    UNFIT = "unfit"  # its tokens, its protocol or its target differ
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class VerifierStatus:
    """Describes one verifier now. Times are in seconds; None and empty mean unknown."""

    address: str
    health: Health
    why: str  # a sentence
    lasts: float  # of the present health
    latest_rtt: float | None = None
    min_rtt: float | None = None
    smoothed_rtt: float | None = None
    model: str = ""
    version: str = ""
    fits: bool | None = None  # its token table is ours
    num_sessions: int | None = None  # of all edges
    max_sessions: int | None = None
    num_streams: int = 0  # of this edge
    last_error: str = ""  # stays after the verifier has recovered
    held: Held | None = None  # the privacy of the newest stream there


class VerifierMember:
    """Tracks one verifier by `probe`. Calls `on_change` when its health changes."""

    def __init__(
        self,
        address: VerifierAddress,
        name: str,
        vocabulary: Vocabulary | None,
        tls: TlsSettings | None,
        clock: Callable[[], float],
        on_change: Callable[[VerifierMember], None],
    ) -> None:
        """Take the host's `name` as the user gave it; the certificate must bear it."""
        self.address = address
        self.description: Description | None = None
        self.health, self.why = Health.ASKED, "it is being asked for the first time"
        self.failures = 0  # in a row
        self.idle = 0  # probes in a row while nobody needed it
        self.asked_at = self.answered_at = -1e9
        self.wake = asyncio.Event()
        self.channel = VerifierChannel(str(address), OWN_CONNECTION, tls, name)
        self._name, self._vocabulary, self._tls = name, vocabulary, tls
        self._clock, self._on_change = clock, on_change
        self._since = clock()
        self._rtt = RttEstimator()
        self._last_error = ""
        self._failure = ""  # gRPC's own words for the newest failure
        self.code = Code.FAILED_PRECONDITION  # of why it is unfit
        self._fits: bool | None = None
        self._explained = (b"", "")  # the newest fingerprint that was not ours, and what differs
        self._told_once: Description | None = None  # with the fields of `TOLD_ONCE`

    @property
    def is_reachable(self) -> bool:
        return self.health not in (Health.ASKED, Health.UNREACHABLE)

    @property
    def target(self) -> str:
        """Return the name of its target, as it last said; empty while unknown, or if it does not fit."""
        description = self.description if self._fits is not False else None
        return "" if description is None else target_name(description.model)

    @property
    def takes_texts(self) -> bool:
        """Tell whether it answers and does not go away."""
        return self.health in (Health.READY, Health.FULL)

    def candidate(self) -> VerifierCandidate:
        load = self.description.load if self.description is not None else None
        turn = load.turn_us * 1e-6 if load is not None and load.turn_us else None
        return VerifierCandidate(
            str(self.address), self.health is Health.READY, self._fits, self.channel.rtt, turn
        )

    def status(self) -> VerifierStatus:
        status = VerifierStatus(
            str(self.address),
            self.health,
            self.why,
            self._clock() - self._since,
            fits=self._fits,
            num_streams=self.channel.num_streams,
            last_error=self._last_error,
            held=self.channel.held,
        )
        if (rtt := self._rtt).num_samples:
            latest, smoothed = rtt.latest_rtt, rtt.smoothed_rtt
            status = replace(status, latest_rtt=latest, min_rtt=rtt.min_rtt, smoothed_rtt=smoothed)
        if (description := self.description) is not None:
            status = replace(status, model=description.model, version=description.version)
            if (load := description.load) is not None:
                most = load.max_sessions or None
                status = replace(status, num_sessions=load.num_sessions, max_sessions=most)
        return status

    async def probe(self) -> None:
        """Ask once. A new connection fetches the large parts first: a handshake is no round trip. If another
        target answers, the verifier has restarted unseen, and they are fetched again."""
        began = self.asked_at = self._clock()
        try:
            if not self.is_reachable:
                await self._ask_all()
                began = self._clock()
            description = await self.channel.describe(patience=PROBE_TIME)
            self._rtt.sample(self._clock() - began)
            if self._told_once is not None and _small(description) != _small(self._told_once):
                await self._ask_all()
            kept = {name: getattr(self._told_once, name) for name in TOLD_ONCE} if self._told_once else {}
            await self._take(replace(description, **kept))
        except UnavailableError as error:
            await self._fail(error)
        except ForerunError as error:  # it answers, but the answer cannot be used
            # A verifier that refuses this device may still fit: the next session may have a renewed token.
            self.failures, self._fits = 0, None if error.code in NOT_LET_IN else False
            self._last_error, self.code = str(error), error.code
            self._set(Health.UNFIT, str(error))

    async def _ask_all(self) -> None:
        self._told_once = await self.channel.describe(include_chat_template=True, patience=PROBE_TIME)

    def fell_silent(self) -> None:
        """Note a silent stream whose question beside it got no answer."""
        self.failures += 1
        self._last_error = "it fell silent"
        self._set(Health.UNREACHABLE, "it fell silent: a stream to it was given up")
        self.wake.set()

    def drains(self) -> None:
        """Note that the verifier announced on a stream that it drains."""
        self._set(Health.DRAINING, IS_DRAINING)
        self.wake.set()

    def failed(self, error: ForerunError) -> None:
        """Note a lost stream."""
        self._last_error = str(error)
        self.wake.set()

    async def close(self) -> None:
        await self.channel.__aexit__()

    async def _take(self, description: Description) -> None:
        self.failures, self.description = 0, description
        mismatch = await self._mismatch(description)
        self._fits = not mismatch
        load = description.load
        if mismatch:
            self.code = Code.FAILED_PRECONDITION
            self._set(Health.UNFIT, mismatch)
        elif load is not None and load.draining:
            self._set(Health.DRAINING, IS_DRAINING)
        elif load is not None and 0 < load.max_sessions <= load.num_sessions:
            self._set(Health.FULL, f"it has {load.num_sessions} sessions, which is its maximum")
        else:
            self._set(Health.READY, f"it serves {description.model}")

    async def _mismatch(self, description: Description) -> str:
        """Return the first differing token; empty if all match or no vocabulary is known."""
        own = self._vocabulary
        if own is None or description.fingerprint == own.fingerprint:
            return ""
        if description.fingerprint != self._explained[0]:
            self._explained = (description.fingerprint, await self.channel.explain_mismatch(own))
        return self._explained[1]

    async def _fail(self, error: UnavailableError) -> None:
        self.failures += 1
        if error.code is not Code.DEADLINE_EXCEEDED or not self.channel.num_streams:
            self.channel.renew()  # else its live sessions notice a loss by themselves
        elif self.failures == 1:
            self._last_error = str(error)
            return
        if self.is_reachable:  # sessions go elsewhere at once; the reason follows
            self._set(Health.UNREACHABLE, str(error))
        elif self._tls is None and self._failure == str(error):
            return
        self._failure = self._last_error = str(error)
        reason = await explain(self.address.bare_host, self.address.port, self._tls, self._name)
        if reason is not None:
            self._last_error = f"the verifier at {self.address} cannot be used: {reason}"
        self._set(Health.UNREACHABLE, self._last_error)

    def _set(self, health: Health, why: str) -> None:
        changed, self.why = health is not self.health, why
        if changed:
            self.health, self._since = health, self._clock()
            self._on_change(self)


def _small(description: Description) -> Description:
    """Return a description without its large parts and its load."""
    return replace(description, load=None, chat_template="", bos_token="", eos_token="")
