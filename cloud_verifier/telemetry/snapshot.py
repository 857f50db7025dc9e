"""A verifier at one moment, for metrics and for the operator's view: taken between two steps' bookkeeping, in
the event loop's thread, read in any other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.margins import BOUNDS
from cloud_verifier.core.report import Counters, Tally
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.session import VerifySession
from cloud_verifier.core.target import TargetInfo
from cloud_verifier.engine.stats import Stats
from cloud_verifier.telemetry.histogram import Histogram
from cloud_verifier.telemetry.instruments import Instruments, Wire
from cloud_verifier.telemetry.monitor import Monitor, Stream, TenantTotals, shortened
from cloud_verifier.telemetry.trust import Trust
from common.rpc.admin import Mode


@dataclass(frozen=True, slots=True)
class SessionState:
    """One live session. `tally` is a copy."""

    key: int
    session_id: str
    tenant: str
    series: str  # the tenant's name in the metrics
    mode: Mode
    age: float  # seconds since its Open
    num_prompt_tokens: int
    num_resumed_tokens: int
    max_tokens: int
    tally: Tally
    credit: int
    lag: int  # tokens that its edge had not seen when its newest Propose was sent
    num_live: int  # nodes that could still become text
    num_slots: int  # KV slots that it reads, shared ones included
    num_promised: int
    num_received: int  # bytes
    num_sent: int


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the KV slots are: the first four are all of them."""

    num_free: int
    num_cached: int  # by the prefix cache, and nobody reads them
    num_shared: int  # by the prefix cache, and sessions read them
    num_owned: int  # by sessions, those of the running step included
    num_reserved: int  # that sessions own or may come to own
    num_available: int  # that could still be promised
    num_evicted: int  # from the prefix cache, over all time

    @property
    def num_all(self) -> int:
        return self.num_free + self.num_cached + self.num_shared + self.num_owned

    @property
    def used(self) -> float:
        """The share that sessions use."""
        return (self.num_shared + self.num_owned) / self.num_all


@dataclass(frozen=True, slots=True)
class Costs:
    """What the scheduler believes that a step costs, in seconds."""

    fixed: float
    per_row: float
    per_read: float


@dataclass(frozen=True, slots=True)
class Margins:
    """How narrowly committed tokens were chosen, in logits."""

    near_tie: float  # below which rounding could turn a choice
    num_near_ties: int
    smallest: float  # infinite before the first
    counts: Histogram  # nobody keeps their sum: it is not a number


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is told of a verifier. Nothing in it changes any more."""

    version: str
    target: TargetInfo
    config: SchedulerConfig
    uptime: float  # seconds
    started_wall: float  # seconds since 1970
    draining: bool
    counters: Counters
    num_preempted: int
    sessions: tuple[SessionState, ...]  # the oldest stream first
    slots: Slots
    memory_short: bool  # steps are smaller than they could be, as the engine ran out of memory
    costs: Costs
    margins: Margins
    pressure: float  # share of the draft rows wanted that stay out for others
    num_tenants: int
    tenants: Mapping[str, TenantTotals]
    num_open_streams: int
    num_streams: int
    received: Wire
    sent: Wire
    instruments: Instruments
    engine: Stats
    trust: Trust
    quota_refusals: Mapping[str, int]  # sessions refused, by the limit of their tenant's quota
    num_held: int  # times that a session was ready, and its tenant had had its rate


def take(scheduler: VerifyScheduler, monitor: Monitor, now: float, engine: Stats, version: str) -> Snapshot:
    """Look at everything once. `now` is the scheduler's time; `engine`, its own figures."""
    counters = scheduler.counters
    return Snapshot(
        version=version,
        target=scheduler.info,
        config=scheduler.config,
        uptime=now - monitor.started_at,
        started_wall=monitor.started_wall,
        draining=scheduler.draining,
        counters=replace(
            counters,
            num_refused=counters.num_refused.copy(),
            num_finished=counters.num_finished.copy(),
            won_by_depth=counters.won_by_depth.copy(),
        ),
        num_preempted=scheduler.room.num_preempted,
        sessions=tuple(
            _state(stream, stream.session, monitor, now)
            for stream in monitor.streams.values()
            if stream.session is not None
        ),
        slots=_slots(scheduler),
        memory_short=scheduler.rows.active,
        margins=_margins(scheduler),
        costs=Costs(scheduler.cost.fixed, scheduler.cost.per_row, scheduler.cost.per_read),
        pressure=scheduler.credit.pressure,
        num_tenants=len(scheduler.tenants),
        tenants=monitor.tenants(),
        num_open_streams=len(monitor.streams),
        num_streams=monitor.num_streams,
        received=monitor.received.copy(),
        sent=monitor.sent.copy(),
        instruments=monitor.instruments.copy(),
        engine=engine,
        trust=monitor.trust(),
        quota_refusals=dict(scheduler.rationing.refused),
        num_held=scheduler.rationing.num_held,
    )


def mode_of(session: VerifySession) -> Mode:
    """What it does now."""
    if session.preempted:
        return Mode.PREEMPTED
    if session.num_prefill:
        return Mode.PREFILL
    return Mode.DECODE if session.may_evaluate_tip else Mode.WAITING


def _state(stream: Stream, session: VerifySession, monitor: Monitor, now: float) -> SessionState:
    return SessionState(
        key=stream.key,
        session_id=shortened(stream.session_id),
        tenant=shortened(stream.tenant),
        series=monitor.series_of(stream.tenant),
        mode=mode_of(session),
        age=now - session.opened_at,
        num_prompt_tokens=stream.num_prompt_tokens,
        num_resumed_tokens=stream.num_resumed_tokens,
        max_tokens=stream.max_tokens,
        tally=replace(session.tally),
        credit=session.credit_told or 0,
        lag=session.arrivals.lag,
        num_live=session.tree.num_speculative,
        num_slots=len(session.lease.slots),
        num_promised=session.num_promised,
        num_received=stream.num_received,
        num_sent=stream.num_sent,
    )


def _margins(scheduler: VerifyScheduler) -> Margins:
    kept, counts = scheduler.ledger.margins, Histogram(BOUNDS)
    counts.counts, counts.total = kept.counts.copy(), math.nan
    return Margins(kept.near_tie, kept.num_near_ties, kept.smallest, counts)


def _slots(scheduler: VerifyScheduler) -> Slots:
    memory = scheduler.memory
    pool, cache = memory.pool, memory.cache
    return Slots(
        num_free=pool.num_free,
        num_cached=cache.num_slots - cache.num_locked,
        num_shared=cache.num_locked,
        num_owned=memory.num_slots - pool.num_free - cache.num_slots,
        num_reserved=memory.num_reserved,
        num_available=memory.num_unpromised,
        num_evicted=cache.num_evicted,
    )
