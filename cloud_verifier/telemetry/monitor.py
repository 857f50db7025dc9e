"""What a verifier's driver knows of its streams: for metrics, for the operator's view, and a line of log when
a session begins and when it ends.

No line, metric or view holds a prompt, a text or a token id: only how many there were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloud_verifier.core.report import StepReport, Tally
from cloud_verifier.core.session import VerifySession
from cloud_verifier.telemetry.instruments import Instruments, Wire
from cloud_verifier.telemetry.trust import NOTHING_TRUSTED, Trust
from common.acceptance import AcceptanceRule
from common.errors import NOT_LET_IN, CapacityError, ForerunError, LocalError, UnavailableError
from common.messages import FinishReason, Open
from common.rpc.admin import MAX_NAME_CHARS
from common.rpc.status import fault_word

logger = logging.getLogger(__name__)

OTHERS, NOBODY = "(others)", "(none)"
"""The tenants without a series of their own, and those who are not told apart."""

LOST = "LOST"
"""Why a session ended whose stream broke off, as `Counters.num_finished` has it."""

TOLD = (CapacityError, UnavailableError, LocalError)
"""Errors whose sentence is logged, beside those of `NOT_LET_IN`: it quotes nothing that a client has sent."""

REFUSALS_RATE, REFUSALS_BURST = 5.0, 50
"""Lines of log about refused streams: so many a second, and at once after a pause."""


@dataclass(slots=True)
class Stream:
    """One stream, as its driver knows it."""

    key: int
    tenant: str
    connected_at: float
    session_id: str = ""
    num_prompt_tokens: int = 0
    num_resumed_tokens: int = 0  # written on earlier streams
    max_tokens: int = 0
    session: VerifySession | None = None  # while it is open
    over: bool = False  # the reason of its end is known
    account: dict[str, object] | None = None  # of its session that is over, for the log
    num_received: int = 0  # bytes of messages
    num_sent: int = 0


@dataclass(slots=True)
class TenantTotals:
    """What one tenant has had in all. Each only grows."""

    num_sessions: int = 0
    num_prompt_tokens: int = 0
    num_committed: int = 0
    num_rows: int = 0
    num_wasted: int = 0  # draft rows that were not right

    def add(self, num_prompt_tokens: int, tally: Tally) -> None:
        """One session's share, as it stands."""
        self.num_sessions += 1
        self.num_prompt_tokens += num_prompt_tokens
        self.num_committed += tally.num_committed
        self.num_rows += tally.num_rows
        self.num_wasted += tally.num_drafts - tally.num_won


class Monitor:
    """Is told by the worker what happens to streams and steps, and by the service what crosses the wire. All
    methods belong to the event loop's thread.

    Args: max_tenants, names that get series of their own in the metrics, first come first served; 0 tells no
    tenants apart. clock, seconds, the worker's; wall, seconds since 1970.
    """

    def __init__(
        self,
        max_tenants: int = 0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.instruments = Instruments()
        self.received, self.sent = Wire(), Wire()
        self.streams: dict[int, Stream] = {}
        self.num_streams = 0  # over all time
        self.max_tenants = max_tenants
        self.trust: Callable[[], Trust] = lambda: NOTHING_TRUSTED  # whoever has files to look after sets it
        self.started_at, self.started_wall = clock(), wall()
        self._clock = clock
        self._ended: dict[str, TenantTotals] = {}  # of the sessions that are over, by name
        self._last_step: StepReport | None = None
        self._refusals_full_at = clock()  # seconds; when a whole burst of lines may be written again
        self._num_untold = 0  # refused streams without a line, since the last line

    # Streams ----------------------------------------------------------------------------------------------

    def connected(self, key: int, tenant: str) -> None:
        self.streams[key] = Stream(key, tenant, self._clock())
        self.num_streams += 1

    def asked(self, key: int, request: Open) -> None:
        """Its `Open` has come. Of the tokens only their number is kept."""
        stream = self.streams[key]
        stream.session_id = request.session_id
        stream.num_prompt_tokens = len(request.prompt)
        stream.num_resumed_tokens = len(request.committed)
        stream.max_tokens = request.sampling.max_tokens

    def admitted(self, key: int, session: VerifySession) -> None:
        stream = self.streams[key]
        stream.session = session
        if self.max_tenants:
            self._ended.setdefault(
                self.series_of(stream.tenant), TenantTotals()
            )  # it has its name from now on
        fields: dict[str, object] = {
            "max_tokens": stream.max_tokens,
            "cached_tokens": session.tally.num_cached,
            "fill": session.request.fill,
        }
        if session.request.acceptance.rule is not AcceptanceRule.COUPLED:
            fields["rule"] = session.request.acceptance.title
        self._log(stream, "session opened", **fields)

    def finished(self, key: int, reason: FinishReason) -> None:
        """Its `Finish` is on its way."""
        stream = self.streams.get(key)
        if stream is None or stream.over:
            return
        now = self._clock()
        if stream.session is None:  # it came with its whole text
            self._close(stream, reason.name, Tally(now, resumed=True), now)
            return
        tally = stream.session.tally
        if reason is not FinishReason.CANCELLED:
            num_text = stream.num_resumed_tokens + tally.num_committed
            self.instruments.note_finished(tally, stream.num_prompt_tokens, num_text, now)
        self._close(stream, reason.name, tally, now)

    def failed(self, key: int, error: ForerunError) -> None:
        """It ends with this error."""
        stream = self.streams.get(key)
        if stream is None or stream.over:
            return
        fields: dict[str, object] = {"fault": fault_word(error)}
        if isinstance(error, TOLD) or error.code in NOT_LET_IN:
            fields["why"] = str(error)
        if stream.session is not None:
            self._close(stream, error.code.value, stream.session.tally, self._clock(), **fields)
            return
        stream.over = True
        self._refused(stream, reason=error.code.value, **fields)

    def disconnected(self, key: int) -> None:
        """It is gone for whatever reason."""
        stream = self.streams.pop(key)
        if stream.session is not None:
            self._close(stream, LOST, stream.session.tally, self._clock())
        if stream.account is not None:  # by now its last messages have left, or never will
            sizes = {"bytes_received": stream.num_received, "bytes_sent": stream.num_sent}
            self._log(stream, "session ended", **stream.account, **sizes)

    # The wire ---------------------------------------------------------------------------------------------

    def note_received(self, key: int, message: object, size: int) -> None:
        """A message of so many bytes, serialised, has come on this stream."""
        self.received.add(type(message).__name__, size)
        if (stream := self.streams.get(key)) is not None:
            stream.num_received += size

    def note_sent(self, key: int, message: object, size: int) -> None:
        """One has left."""
        self.sent.add(type(message).__name__, size)
        if (stream := self.streams.get(key)) is not None:
            stream.num_sent += size

    # Steps and the end ------------------------------------------------------------------------------------

    def stepped(self, report: StepReport | None) -> None:
        """The engine has answered; `report` is of the newest step that was well, each counted once."""
        if report is not None and report is not self._last_step:
            self._last_step = report
            self.instruments.note_step(report)

    def draining(self, grace: float, num_sessions: int) -> None:
        logger.info("draining", extra={"fields": {"grace_s": grace, "sessions": num_sessions}})

    # Tenants ----------------------------------------------------------------------------------------------

    def tenants(self) -> dict[str, TenantTotals]:
        """What each has had, those of sessions that are open included; empty unless tenants are told
        apart."""
        found = {name: replace(totals) for name, totals in self._ended.items()}
        for stream in self.streams.values():
            if stream.session is not None and self.max_tenants:
                totals = found.setdefault(self.series_of(stream.tenant), TenantTotals())
                totals.add(stream.num_prompt_tokens, stream.session.tally)
        return found

    def series_of(self, tenant: str) -> str:
        """Under which name its figures are kept: its own, or that of all others."""
        name = shortened(tenant) or NOBODY
        return name if name in self._ended or len(self._ended) < self.max_tenants else OTHERS

    # Inside -----------------------------------------------------------------------------------------------

    def _close(self, stream: Stream, reason: str, tally: Tally, now: float, **fields: object) -> None:
        stream.session, stream.over = None, True
        if self.max_tenants:
            name = self.series_of(stream.tenant)
            self._ended.setdefault(name, TenantTotals()).add(stream.num_prompt_tokens, tally)
        stream.account = {"reason": reason, **fields, **_account(tally, now)}

    def _refused(self, stream: Stream, **fields: object) -> None:
        """A line, unless there were many. The next line then says how many had none."""
        now = self._clock()
        full_at = max(self._refusals_full_at, now) + 1.0 / REFUSALS_RATE
        if full_at > now + REFUSALS_BURST / REFUSALS_RATE:
            self._num_untold += 1
            return
        self._refusals_full_at = full_at
        if self._num_untold:
            fields["untold"] = self._num_untold
            self._num_untold = 0
        self._log(stream, "stream refused", **fields)

    def _log(self, stream: Stream, event: str, **fields: object) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        names: dict[str, object] = {"stream": stream.key}
        if stream.session_id:
            names["session_id"] = shortened(stream.session_id)
        if stream.tenant:
            names["tenant"] = shortened(stream.tenant)
        names["prompt_tokens"] = stream.num_prompt_tokens
        if stream.num_resumed_tokens:
            names["resumed_tokens"] = stream.num_resumed_tokens
        logger.info(event, extra={"fields": {**names, **fields}})


def shortened(name: str) -> str:
    """A name that somebody else has chosen, at most `MAX_NAME_CHARS` long and printable."""
    printable = name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name)
    return printable if len(printable) <= MAX_NAME_CHARS else printable[: MAX_NAME_CHARS - 3] + "..."


def _account(tally: Tally, now: float) -> dict[str, object]:
    """What a session has had. Times in seconds."""
    account: dict[str, object] = {
        "cached_tokens": tally.num_cached,
        "committed": tally.num_committed,
        "accepted": tally.num_committed - tally.num_server_made,
        "rows": tally.num_rows,
        "draft_rows": tally.num_drafts,
        "steps": tally.num_steps,
        "seconds": round(now - tally.opened_at, 6),
    }
    if tally.first_commit_at is not None:
        account["first_token_seconds"] = round(tally.first_commit_at - tally.opened_at, 6)
    if tally.num_preempted:
        account["preempted"] = tally.num_preempted
    return account
