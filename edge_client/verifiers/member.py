"""One verifier of several: its channel, and what asking it again and again has shown."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from common.errors import NOT_LET_IN, Code, ForerunError, UnavailableError
from common.estimators import RttEstimator
from common.rpc.describe import Description
from common.vocabulary import Vocabulary, explain_mismatch
from edge_client.channel import OWN_CONNECTION, VerifierChannel
from edge_client.core.ranking import Candidate
from edge_client.tls import TlsSettings, explain
from edge_client.verifiers.addresses import VerifierAddress
from edge_client.verifiers.status import Health, VerifierStatus

PROBE_TIME = 1.8
"""Seconds for an answer; a wrong address is known within two."""

RECENT = 8
"""Round trips of which the shortest counts: a route that has become longer is believed after so many."""


TABLE_AGAIN = 600.0
"""Seconds until a verifier with other tokens is asked for all of them once more: they are megabytes, and one
that says others each time is no reason to fetch them each time."""

OTHERS = "its tokens are others than the draft's, and others again than it said some minutes ago"


class Member:
    """Asked with `probe`; `on_change` is called when its health becomes another one."""

    def __init__(
        self,
        address: VerifierAddress,
        name: str,
        vocabulary: Vocabulary | None,
        tls: TlsSettings | None,
        clock: Callable[[], float],
        on_change: Callable[[Member], None],
    ) -> None:
        """`name`, of the host as it was named, which a certificate bears."""
        self.address = address
        self.description: Description | None = None
        self.health, self.why = Health.ASKED, "it is being asked for the first time"
        self.failures = 0  # in a row
        self.idle = 0  # probes in a row while nobody needed it
        self.asked_at = -1e9
        self.wake = asyncio.Event()
        self.channel = VerifierChannel(str(address), OWN_CONNECTION, tls, name)
        self._name, self._vocabulary, self._tls = name, vocabulary, tls
        self._clock, self._on_change = clock, on_change
        self._since = clock()
        self._rtt = RttEstimator()
        self._recent = deque[float](maxlen=RECENT)
        self._last_error = ""
        self._told = ""  # gRPC's own words for the newest failure
        self.code = Code.FAILED_PRECONDITION  # of why it is unfit
        self._fits: bool | None = None
        self._explained = (b"", "")  # the newest fingerprint that was not ours, and what differs
        self._table_at = clock() - TABLE_AGAIN  # all its tokens were asked for
        self._template = ("", "", "")  # of chats, and its begin and end words

    @property
    def is_reachable(self) -> bool:
        return self.health not in (Health.ASKED, Health.UNREACHABLE)

    def candidate(self) -> Candidate:
        rtt = min(self._recent, default=None)
        return Candidate(str(self.address), self.health is Health.READY, self._fits, rtt)

    def status(self) -> VerifierStatus:
        told, load, measured = self.description, None, self._rtt.num_samples > 0
        if told is not None:
            load = told.load
        return VerifierStatus(
            str(self.address),
            self.health,
            self.why,
            self._clock() - self._since,
            self._rtt.latest_rtt if measured else None,
            self._rtt.min_rtt if measured else None,
            self._rtt.smoothed_rtt if measured else None,
            "" if told is None else told.model,
            "" if told is None else told.version,
            self._fits,
            None if load is None else load.num_sessions,
            (load.max_sessions or None) if load is not None else None,
            self.channel.num_streams,
            self._last_error,
            self.channel.held,
        )

    # What is seen -----------------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Ask once, and before that for what is large and stays, if it was not there: a new connection's
        handshake is no round trip."""
        began = self.asked_at = self._clock()
        was_reachable = self.is_reachable
        try:
            if not was_reachable:
                whole = await self.channel.describe(include_chat_template=True, patience=PROBE_TIME)
                self._template = (whole.chat_template, whole.bos_token, whole.eos_token)
                began = self._clock()
            description = await self.channel.describe(patience=PROBE_TIME)
            self._measure(self._clock() - began)
            template, bos, eos = self._template
            await self._take(replace(description, chat_template=template, bos_token=bos, eos_token=eos))
        except UnavailableError as error:
            await self._fail(error)
        except ForerunError as error:  # it answers, and nothing that can be used
            # One that does not let this device in may fit: the next session may have a renewed token.
            self.failures, self._fits = 0, None if error.code in NOT_LET_IN else False
            self._last_error, self.code = str(error), error.code
            self._set(Health.UNFIT, str(error))

    def fell_silent(self) -> None:
        """A stream was silent, and a question beside it had no answer."""
        self.failures += 1
        self._last_error = "it fell silent"
        self._set(Health.UNREACHABLE, "it fell silent: a stream of it had to be given up")
        self.wake.set()

    def drains(self) -> None:
        """It said so on a stream."""
        self._set(Health.DRAINING, "it is draining: it goes away and takes no new sessions")
        self.wake.set()

    def failed(self, error: ForerunError) -> None:
        """A stream of it was lost."""
        self._last_error = str(error)
        self.wake.set()

    async def close(self) -> None:
        await self.channel.__aexit__()

    def _measure(self, elapsed: float) -> None:
        self._rtt.sample(elapsed)
        self._recent.append(elapsed)

    async def _take(self, told: Description) -> None:
        self.failures, self.description = 0, told
        mismatch = await self._mismatch(told)
        self._fits = not mismatch
        load = told.load
        if mismatch:
            self.code = Code.FAILED_PRECONDITION
            self._set(Health.UNFIT, mismatch)
        elif load is not None and load.draining:
            self._set(Health.DRAINING, "it is draining: it goes away and takes no new sessions")
        elif load is not None and 0 < load.max_sessions <= load.num_sessions:
            self._set(Health.FULL, f"it has {load.num_sessions} sessions, as many as it takes")
        else:
            self._set(Health.READY, f"it serves {told.model}")

    async def _mismatch(self, told: Description) -> str:
        """Which token differs first; empty if none does, or nobody has a vocabulary to compare."""
        own = self._vocabulary
        if own is None or told.fingerprint == own.fingerprint:
            return ""
        if told.fingerprint != self._explained[0]:
            if self._clock() - self._table_at < TABLE_AGAIN:
                return OTHERS
            self._table_at = self._clock()
            table = (await self.channel.describe(include_vocabulary=True)).vocabulary
            self._explained = (told.fingerprint, explain_mismatch(own, Vocabulary(list(table or ()))))
        return self._explained[1]

    async def _fail(self, error: UnavailableError) -> None:
        self.failures += 1
        if error.code is not Code.DEADLINE_EXCEEDED or not self.channel.num_streams:
            self.channel.renew()  # else sessions that still hear from it find out by themselves
        elif self.failures == 1:
            self._last_error = str(error)
            return
        if self.is_reachable:  # sessions go elsewhere at once; the reason follows
            self._set(Health.UNREACHABLE, str(error))
        elif self._tls is None and self._told == str(error):
            return
        self._told = self._last_error = str(error)
        if (reason := await self._explain()) is not None:
            self._last_error = f"the verifier at {self.address} cannot be used: {reason}"
        self._set(Health.UNREACHABLE, self._last_error)

    async def _explain(self) -> str | None:
        """What TLS has to do with a failure, in words."""
        return await explain(self.address.bare_host, self.address.port, self._tls, self._name)

    def _set(self, health: Health, why: str) -> None:
        changed, self.why = health is not self.health, why
        if changed:
            self.health, self._since = health, self._clock()
            self._on_change(self)
