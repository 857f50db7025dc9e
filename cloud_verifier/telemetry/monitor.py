"""Record the streams of a verifier for metrics and the operator's view, and log each session's begin and end.

Lines, metrics and views hold numbers of tokens, never a prompt, a text or a token id.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloud_verifier.core.ledger import StepReport
from cloud_verifier.core.verify_session import SessionTally, VerifySession
from cloud_verifier.telemetry.instruments import Instruments
from common.acceptance import AcceptanceRule
from common.errors import NOT_LET_IN, CapacityError, ForerunError, LocalError, UnavailableError
from common.messages import FinishReason, Open
from common.wire.status import fault_word

logger = logging.getLogger(__name__)

MAX_NAME_CHARS = 64
"""Characters to which names that clients choose are cut."""

LOST = "LOST"
"""Reason of a session whose stream broke, as in `VerifierCounters.num_finished`."""

TOLD = (CapacityError, UnavailableError, LocalError)
"""Errors whose message is logged, besides those of `NOT_LET_IN`. Their messages quote no client data."""

REFUSALS_RATE, REFUSALS_BURST = 5.0, 50
"""Most log lines about refused streams a second, and at once after a pause."""


FILES = CERTIFICATE, TOKEN_KEYS, SECRETS, TENANT_LIMITS, DENIED = (
    "certificate",
    "token_keys",
    "secrets",
    "tenant_limits",
    "denied",
)
"""Names of the files that identify and authorise the verifier and its edges."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Holds the certificate's expiry and the reloads of `FILES`. Counts are over all time, by name."""

    expires_at: float = math.inf  # seconds since 1970, of the TLS certificate; infinite without one
    reloads: Mapping[str, int] = field(default_factory=dict)  # newer files taken into use
    failures: Mapping[str, int] = field(default_factory=dict)  # newer files that could not be used


@dataclass(slots=True)
class StreamRecord:
    """Holds the facts of one stream for logs and views."""

    key: int
    tenant: str
    session_id: str = ""
    num_prompt_tokens: int = 0
    num_resumed_tokens: int = 0  # written on earlier streams
    max_tokens: int = 0
    session: VerifySession | None = None  # while it is open
    over: bool = False  # the reason of its end is known
    account: dict[str, object] | None = None  # figures of its ended session, for the log
    num_received: int = 0  # bytes of messages
    num_sent: int = 0


class Monitor:
    """Records streams, steps and messages; the worker and the service report them. All methods belong to the
    event loop's thread.

    Args: clock, seconds, the worker's; wall, seconds since 1970.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.instruments = Instruments()
        self.received, self.sent = Counter[str](), Counter[str]()  # bytes of messages, by kind, unframed
        self.streams: dict[int, StreamRecord] = {}
        self.trust: Callable[[], Trust] = Trust  # set by `Lifecycle`
        self.started_at, self.started_wall = clock(), wall()
        self._clock = clock
        self._last_step: StepReport | None = None
        self._refusals_full_at = clock()  # seconds; when a whole burst of lines may be written again
        self._num_untold = 0  # refused streams without a line, since the last line

    # Streams ----------------------------------------------------------------------------------------------

    def connected(self, key: int, tenant: str) -> None:
        self.streams[key] = StreamRecord(key, tenant)

    def asked(self, key: int, request: Open) -> None:
        """Note the `Open` of a stream. Only the number of its tokens is kept."""
        stream = self.streams[key]
        stream.session_id = request.session_id
        stream.num_prompt_tokens = len(request.prompt)
        stream.num_resumed_tokens = len(request.committed)
        stream.max_tokens = request.sampling.max_tokens

    def admitted(self, key: int, session: VerifySession) -> None:
        stream = self.streams[key]
        stream.session = session
        fields: dict[str, object] = {
            "max_tokens": stream.max_tokens,
            "cached_tokens": session.tally.num_cached,
            "fill": session.request.fill,
        }
        if session.request.acceptance.rule is not AcceptanceRule.COUPLED:
            fields["rule"] = session.request.acceptance.title
        self._log(stream, "session opened", **fields)

    def finished(self, key: int, reason: FinishReason) -> None:
        stream = self.streams.get(key)
        if stream is None or stream.over:
            return
        now = self._clock()
        tally = stream.session.tally if stream.session else SessionTally(now, resumed=True)
        if stream.session and reason is not FinishReason.CANCELLED:  # else it came with its whole text
            num_text = stream.num_resumed_tokens + tally.num_committed
            self.instruments.note_finished(tally, stream.num_prompt_tokens, num_text, now)
        self._close(stream, reason.name, tally, now)

    def failed(self, key: int, error: ForerunError) -> None:
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
        stream = self.streams.pop(key)
        if stream.session is not None:
            self._close(stream, LOST, stream.session.tally, self._clock())
        if stream.account is not None:  # no message is sent any more, so the sizes are final
            sizes = {"bytes_received": stream.num_received, "bytes_sent": stream.num_sent}
            self._log(stream, "session ended", **stream.account, **sizes)

    # The wire ---------------------------------------------------------------------------------------------

    def note_received(self, key: int, message: object, size: int) -> None:
        self.received[type(message).__name__] += size
        if (stream := self.streams.get(key)) is not None:
            stream.num_received += size

    def note_sent(self, key: int, message: object, size: int) -> None:
        self.sent[type(message).__name__] += size
        if (stream := self.streams.get(key)) is not None:
            stream.num_sent += size

    # Steps and the end ------------------------------------------------------------------------------------

    def stepped(self, report: StepReport | None) -> None:
        """Note the newest successful step; a `report` that was noted before is ignored."""
        if report is not None and report is not self._last_step:
            self._last_step = report
            self.instruments.note_step(report)

    def draining(self, grace: float, num_sessions: int) -> None:
        logger.info("draining", extra={"fields": {"grace_s": grace, "sessions": num_sessions}})

    # Inside -----------------------------------------------------------------------------------------------

    def _close(
        self, stream: StreamRecord, reason: str, tally: SessionTally, now: float, **fields: object
    ) -> None:
        stream.session, stream.over = None, True
        stream.account = {"reason": reason, **fields, **_account(tally, now)}

    def _refused(self, stream: StreamRecord, **fields: object) -> None:
        """Log a refused stream within the rate. The next line counts the streams without a line."""
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

    def _log(self, stream: StreamRecord, event: str, **fields: object) -> None:
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
    """Return a peer's name made printable and cut to `MAX_NAME_CHARS`."""
    printable = name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name)
    return printable if len(printable) <= MAX_NAME_CHARS else printable[: MAX_NAME_CHARS - 3] + "..."


def _account(tally: SessionTally, now: float) -> dict[str, object]:
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
