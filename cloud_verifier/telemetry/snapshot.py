"""Take a snapshot of a verifier for metrics and for the operator's view of live sessions."""

from __future__ import annotations

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
class Snapshot:
    """Holds a verifier's state. `sessions` and `slots` are copies and all else is live, so the event loop's
    thread reads a snapshot at once."""

    scheduler: VerifyScheduler
    monitor: Monitor
    version: str
    uptime: float  # seconds
    sessions: tuple[dict[str, Any], ...]  # as `_live` describes them, the oldest stream first
    slots: KvSlots
    engine: Stats
    counters: VerifierCounters
    instruments: Instruments
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
        engine=engine,
        counters=scheduler.counters,
        instruments=monitor.instruments,
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
            "bytes_received": sum(snapshot.monitor.received.values()),
            "bytes_sent": sum(snapshot.monitor.sent.values()),
        },
        "slots": asdict(snapshot.slots),
        "sessions": snapshot.sessions,
    }


def in_us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _live(stream: StreamRecord, session: VerifySession, now: float) -> dict[str, Any]:
    """Describe an open session since the Open of its present stream. Times are whole microseconds."""
    tally = session.tally
    first_at, newest_at = tally.first_commit_at, tally.committed_at
    return {
        "stream": stream.key,  # its number, as in the log
        "mode": mode_of(session),
        "session_id": shortened(stream.session_id),  # chosen by the edge
        "tenant": shortened(stream.tenant),
        "age_us": in_us(now - session.opened_at),
        "prompt_tokens": stream.num_prompt_tokens,
        "resumed_tokens": stream.num_resumed_tokens,  # of the text, written on earlier streams
        "max_tokens": stream.max_tokens,  # of the text
        "cached_tokens": tally.num_cached,  # of the prompt, known to the prefix cache
        "committed": tally.num_committed,
        "accepted": tally.num_committed - tally.num_server_made,  # of them, proposed by the edge
        "steps": tally.num_steps,  # in which its tip was evaluated
        "rows": tally.num_rows,
        "drafts": tally.num_drafts,  # of the rows
        "won": tally.num_won,  # of the drafts, accepted
        "silent_us": None if newest_at is None else in_us(now - newest_at),  # since its newest commit
        "first_token_us": None if first_at is None else in_us(first_at - tally.opened_at),  # from its Open
        "credit": session.credit_told or 0,
        "lag": session.arrivals.lag,  # tokens that its edge had not seen when its newest Propose was sent
        "live_nodes": session.tree.num_speculative,
        "slots": len(session.lease.slots),  # that it reads, shared ones included
        "promised_slots": session.num_promised,
        "preempted": tally.num_preempted,
        "bytes_received": stream.num_received,
        "bytes_sent": stream.num_sent,
    }
