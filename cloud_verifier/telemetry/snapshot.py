"""Take a snapshot of a verifier for metrics and for the operator's view of live sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from cloud_verifier.core.engine_protocol import Stats
from cloud_verifier.core.ledger import VerifierCounters
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.verify_session import VerifySession
from cloud_verifier.telemetry.instruments import Instruments
from cloud_verifier.telemetry.monitor import Monitor, StreamRecord, Trust, shortened


class SessionMode(StrEnum):
    """The mode says what a session does."""

    PREFILL = "prefill"  # its prompt is being read
    DECODE = "decode"  # its tip can be evaluated
    WAITING = "waiting"  # without fill, it waits for a Propose
    PREEMPTED = "preempted"  # it waits for KV slots


@dataclass(frozen=True, slots=True)
class KvSlots:
    """The first four fields are all KV slots."""

    free: int
    cached: int  # in the prefix cache, without a reader
    shared: int  # in the prefix cache, read by sessions
    owned: int  # by a session
    available: int  # can still be promised to new sessions


@dataclass(frozen=True, slots=True)
class LiveSession:
    """The fields describe one open session since the Open of its present stream. Times are whole
    microseconds."""

    stream: int  # its number, as in the log
    mode: SessionMode
    session_id: str  # chosen by the edge
    tenant: str
    age_us: int
    prompt_tokens: int
    resumed_tokens: int  # of the text, written on earlier streams
    max_tokens: int  # of the text
    cached_tokens: int  # of the prompt, known to the prefix cache
    committed: int
    accepted: int  # of the committed tokens, proposed by the edge
    steps: int  # in which its tip was evaluated
    rows: int
    drafts: int  # of the rows
    won: int  # of the drafts, accepted
    silent_us: int | None  # since its newest commit
    first_token_us: int | None  # from its Open
    credit: int
    lag: int  # tokens that its edge had not seen when its newest Propose was sent
    live_nodes: int
    slots: int  # that it reads, shared ones included
    promised_slots: int
    preempted: int
    bytes_received: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Holds a verifier's state. `sessions` and `slots` are copies and all other fields are live, so the event
    loop's thread reads a snapshot at once."""

    scheduler: VerifyScheduler
    monitor: Monitor
    version: str
    uptime: float  # seconds
    sessions: tuple[LiveSession, ...]  # the oldest stream first
    slots: KvSlots
    counters: VerifierCounters
    instruments: Instruments
    received: Mapping[str, int]  # bytes of messages, by kind, without the framing of gRPC and HTTP/2
    sent: Mapping[str, int]
    engine: Stats
    trust: Trust


def take(scheduler: VerifyScheduler, monitor: Monitor, now: float, engine: Stats, version: str) -> Snapshot:
    """Return a snapshot. `now` is the scheduler's time; `engine` holds the engine's own figures."""
    memory = scheduler.memory
    pool, cache = memory.pool, memory.cache
    return Snapshot(
        scheduler,
        monitor,
        version,
        uptime=now - monitor.started_at,
        sessions=tuple(
            _live(stream, stream.session, now) for stream in monitor.streams.values() if stream.session
        ),
        slots=KvSlots(
            free=pool.num_free,
            cached=cache.num_slots - cache.num_locked,
            shared=cache.num_locked,
            owned=memory.num_slots - pool.num_free - cache.num_slots,
            available=memory.num_unpromised,
        ),
        counters=scheduler.counters,
        instruments=monitor.instruments,
        received=monitor.received,
        sent=monitor.sent,
        engine=engine,
        trust=monitor.trust(),
    )


def mode_of(session: VerifySession) -> SessionMode:
    if session.preempted:
        return SessionMode.PREEMPTED
    if session.num_prefill:
        return SessionMode.PREFILL
    return SessionMode.DECODE if session.may_evaluate_tip else SessionMode.WAITING


def overview(snapshot: Snapshot) -> dict[str, Any]:
    """Return the operator's view in JSON's types: numbers and names, no prompt, text or token id.

    The totals count since the verifier began and only grow, so the difference of two views is what happened
    between them.
    """
    counters, instruments = snapshot.counters, snapshot.instruments
    return {
        "model": snapshot.scheduler.info.name,
        "version": snapshot.version,
        "uptime_us": in_us(snapshot.uptime),
        "draining": snapshot.scheduler.draining,
        "max_sessions": snapshot.scheduler.config.max_sessions,
        "totals": {
            "steps": counters.num_steps,
            "step_time_us": in_us(instruments.step_time.total),
            "queue_time_us": in_us(instruments.queue_time.total),  # of all sessions of all steps
            "queued": sum(instruments.queue_time.counts),  # sessions in steps
            "rows": counters.num_prefilled + counters.num_evaluated,
            "tips": counters.num_evaluated - counters.num_drafts,
            "drafts": counters.num_drafts,
            "won": counters.num_won,
            "committed": counters.num_committed,
            "accepted": counters.num_committed - counters.num_server_made,
            "prompt_tokens": counters.num_prompt_tokens,
            "cached_tokens": counters.num_cached_tokens,
            "opened": counters.num_opened,
            "refused": sum(counters.num_refused.values()),
            "preempted": snapshot.scheduler.preemption.num_preempted,
            "bytes_received": sum(snapshot.received.values()),
            "bytes_sent": sum(snapshot.sent.values()),
        },
        "slots": asdict(snapshot.slots),
        "sessions": [asdict(session) for session in snapshot.sessions],
    }


def in_us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _live(stream: StreamRecord, session: VerifySession, now: float) -> LiveSession:
    tally, first = session.tally, session.tally.first_commit_at
    return LiveSession(
        stream=stream.key,
        mode=mode_of(session),
        session_id=shortened(stream.session_id),
        tenant=shortened(stream.tenant),
        age_us=in_us(now - session.opened_at),
        prompt_tokens=stream.num_prompt_tokens,
        resumed_tokens=stream.num_resumed_tokens,
        max_tokens=stream.max_tokens,
        cached_tokens=tally.num_cached,
        committed=tally.num_committed,
        accepted=tally.num_committed - tally.num_server_made,
        steps=tally.num_steps,
        rows=tally.num_rows,
        drafts=tally.num_drafts,
        won=tally.num_won,
        silent_us=None if tally.committed_at is None else in_us(now - tally.committed_at),
        first_token_us=None if first is None else in_us(first - tally.opened_at),
        credit=session.credit_told or 0,
        lag=session.arrivals.lag,
        live_nodes=session.tree.num_speculative,
        slots=len(session.lease.slots),
        promised_slots=session.num_promised,
        preempted=tally.num_preempted,
        bytes_received=stream.num_received,
        bytes_sent=stream.num_sent,
    )
