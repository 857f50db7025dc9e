"""The metrics that no other server has under a common name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from cloud_verifier.telemetry.metric import Metric
from cloud_verifier.telemetry.monitor import TenantTotals
from cloud_verifier.telemetry.snapshot import SessionState, Snapshot
from common.errors import Code
from common.rpc.admin import Mode
from common.rpc.describe import PROTOCOL_VERSION

CODES = tuple(code.value for code in Code)
ENDS = ("STOP", "LENGTH", "CANCELLED", "LOST")
RECEIVED = ("Open", "Propose", "Close", "Part", "Filler")
SENT = ("Opened", "Commit", "Drain", "Finish", "Part", "Filler")


def _info(snapshot: Snapshot) -> Mapping[str, str]:
    return {
        "version": snapshot.version,
        "protocol": str(PROTOCOL_VERSION),
        "model": snapshot.target.name,
    }


def _modes(snapshot: Snapshot) -> Mapping[str, float]:
    found = Counter(each.mode for each in snapshot.sessions)
    return {mode.label: found[mode] for mode in Mode}


def _all_of(names: tuple[str, ...], counts: Mapping[str, float]) -> Mapping[str, float]:
    """With a zero for what has not come yet, so that its first time is seen as a rise."""
    return {**dict.fromkeys(names, 0.0), **counts}


def _rows(snapshot: Snapshot) -> Mapping[str, float]:
    counters = snapshot.counters
    num_tips = counters.num_evaluated - counters.num_drafts
    return {"prefill": counters.num_prefilled, "tip": num_tips, "draft": counters.num_drafts}


def _slots(snapshot: Snapshot) -> Mapping[str, float]:
    slots = snapshot.slots
    return {
        "free": slots.num_free,
        "cached": slots.num_cached,
        "shared": slots.num_shared,
        "owned": slots.num_owned,
    }


def _of_tenants(value: Callable[[TenantTotals], float]) -> Callable[[Snapshot], Mapping[str, float]]:
    return lambda snapshot: {name: value(totals) for name, totals in snapshot.tenants.items()}


def _of_live(value: Callable[[SessionState], float]) -> Callable[[Snapshot], Mapping[str, float]]:
    """Summed over the live sessions of each tenant that has a name here."""

    def summed(snapshot: Snapshot) -> Mapping[str, float]:
        found = dict.fromkeys(snapshot.tenants, 0.0)
        for each in snapshot.sessions:
            if each.series in found:
                found[each.series] += value(each)
        return found

    return summed


SESSIONS = (
    Metric("forerun_verifier", "info", "What runs here.", _info),
    Metric("forerun_start_time_seconds", "gauge", "When it began, since 1970.", lambda s: s.started_wall),
    Metric("forerun_draining", "gauge", "1 while it admits nobody any more and waits.", lambda s: s.draining),
    Metric("forerun_open_streams", "gauge", "Streams connected.", lambda s: s.num_open_streams),
    Metric("forerun_streams", "counter", "Streams that have connected.", lambda s: s.num_streams),
    Metric(
        "forerun_sessions",
        "gauge",
        "Open sessions by what they do: `prefill`, `decode`, `waiting` (without fill, for a Propose), "
        "`preempted`.",
        _modes,
        "mode",
    ),
    Metric("forerun_max_sessions", "gauge", "Sessions at most.", lambda s: s.config.max_sessions),
    Metric(
        "forerun_sessions_opened",
        "counter",
        "Sessions admitted.",
        lambda s: s.counters.num_opened,
    ),
    Metric(
        "forerun_sessions_resumed",
        "counter",
        "Sessions admitted that went on with a text begun on another stream, here or elsewhere.",
        lambda s: s.counters.num_resumed,
    ),
    Metric(
        "forerun_sessions_ended",
        "counter",
        "Sessions that have ended: by a `Finish`'s reason, `LOST` when the stream broke, or by the status.",
        lambda s: _all_of((*ENDS, *CODES), s.counters.num_finished),
        "reason",
    ),
    Metric(
        "forerun_refusals",
        "counter",
        "Streams that were ended before they had a session, by status. `RESOURCE_EXHAUSTED` is want of room.",
        lambda s: _all_of(CODES, s.counters.num_refused),
        "code",
    ),
    Metric(
        "forerun_resume_time_seconds",
        "histogram",
        "From the Open of a resumed session to its first commit.",
        lambda s: s.instruments.resumed,
    ),
)

STEPS = (
    Metric("forerun_steps", "counter", "Steps of the target.", lambda s: s.counters.num_steps),
    Metric(
        "forerun_failed_steps",
        "counter",
        "Steps that the engine could not run. A session that breaks one alone ends with `INTERNAL`.",
        lambda s: s.counters.num_failed_steps,
    ),
    Metric(
        "forerun_step_time_seconds",
        "histogram",
        "From the plan of a step to its result.",
        lambda s: s.instruments.step_time,
    ),
    Metric(
        "forerun_queue_time_seconds",
        "histogram",
        "How long a session was ready before its step began; one sample a session and step.",
        lambda s: s.instruments.queue_time,
    ),
    Metric("forerun_step_rows", "histogram", "Rows in a step.", lambda s: s.instruments.step_rows),
    Metric(
        "forerun_step_tips",
        "histogram",
        "Tips in a step: sessions that decoded in it.",
        lambda s: s.instruments.step_tips,
    ),
    Metric(
        "forerun_rows",
        "counter",
        "Rows evaluated: `prefill` (tokens of prompts, and of texts that are read again), `tip` and `draft`.",
        _rows,
        "kind",
    ),
    Metric(
        "forerun_wasted_rows",
        "counter",
        "Draft rows that were not right.",
        lambda s: s.counters.num_drafts - s.counters.num_won,
    ),
    Metric(
        "forerun_bare_tips",
        "counter",
        "Tips evaluated with no draft below: fill. Its share of all tips says how often drafts were missing.",
        lambda s: s.counters.num_bare,
    ),
    Metric(
        "forerun_accepted_tokens",
        "counter",
        "Committed tokens that the edge had proposed by then.",
        lambda s: s.counters.num_committed - s.counters.num_server_made,
    ),
    Metric(
        "forerun_server_made_tokens",
        "counter",
        "Committed tokens that the edge had not proposed by then.",
        lambda s: s.counters.num_server_made,
    ),
    Metric(
        "forerun_proposed_nodes", "counter", "Nodes that edges have sent.", lambda s: s.counters.num_proposed
    ),
    Metric(
        "forerun_dropped_nodes",
        "counter",
        "Nodes sent above the hard limit of their session: its edge keeps no credit.",
        lambda s: s.counters.num_dropped,
    ),
    Metric(
        "forerun_live_nodes",
        "gauge",
        "Nodes that could still become text, guesses included.",
        lambda s: sum(each.num_live for each in s.sessions),
    ),
    Metric(
        "forerun_credit_pressure",
        "gauge",
        "Share of the draft rows wanted that stay out of steps for others, smoothed. Credit shrinks with it.",
        lambda s: s.pressure,
    ),
)

CHOICES = (
    Metric(
        "forerun_near_ties",
        "counter",
        "Committed tokens whose margin was so small that other rounding might have chosen another.",
        lambda s: s.margins.num_near_ties,
    ),
    Metric(
        "forerun_near_tie_margin",
        "gauge",
        "Logits below which a margin is a near tie.",
        lambda s: s.margins.near_tie,
    ),
    Metric(
        "forerun_smallest_margin",
        "gauge",
        "The smallest margin of a committed token, in logits; infinite before the first.",
        lambda s: s.margins.smallest,
    ),
    Metric(
        "forerun_choice_margin",
        "histogram",
        "Margins of committed tokens over the runner-up, in logits. Without their sum.",
        lambda s: s.margins.counts,
    ),
)

COSTS = (
    Metric(
        "forerun_step_cost_fixed_seconds",
        "gauge",
        "What a step is believed to take without any row.",
        lambda s: s.costs.fixed,
    ),
    Metric(
        "forerun_step_cost_row_seconds",
        "gauge",
        "What each row adds to a step, as it is believed.",
        lambda s: s.costs.per_row,
    ),
    Metric(
        "forerun_step_cost_read_seconds",
        "gauge",
        "What each KV slot that is read adds to a step, as it is believed.",
        lambda s: s.costs.per_read,
    ),
    Metric(
        "forerun_step_time_ratio",
        "histogram",
        "A step's time over what had been expected of it.",
        lambda s: s.instruments.step_ratio,
    ),
)

MEMORY = (
    Metric(
        "forerun_kv_slots",
        "gauge",
        "KV slots by who has them: `free`, `cached` and read by nobody, `shared` (cached and read), `owned` "
        "by a session.",
        _slots,
        "state",
    ),
    Metric(
        "forerun_kv_slots_reserved",
        "gauge",
        "KV slots that sessions own or may come to own.",
        lambda s: s.slots.num_reserved,
    ),
    Metric(
        "forerun_kv_slots_available",
        "gauge",
        "KV slots that could still be promised: the room for new sessions.",
        lambda s: s.slots.num_available,
    ),
    Metric(
        "forerun_memory_short",
        "gauge",
        "1 while steps are smaller than they could be, because the engine ran out of memory.",
        lambda s: s.memory_short,
    ),
    Metric(
        "forerun_evicted_slots",
        "counter",
        "KV slots that the prefix cache gave up for sessions.",
        lambda s: s.slots.num_evicted,
    ),
)

WIRE = (
    Metric(
        "forerun_received_messages",
        "counter",
        "Messages from edges.",
        lambda s: _all_of(RECEIVED, s.received.num_messages),
        "message",
    ),
    Metric(
        "forerun_received_bytes",
        "counter",
        "Bytes of messages from edges, serialised; framing comes on top, 14 bytes or more each.",
        lambda s: _all_of(RECEIVED, s.received.num_bytes),
        "message",
    ),
    Metric(
        "forerun_sent_messages",
        "counter",
        "Messages to edges.",
        lambda s: _all_of(SENT, s.sent.num_messages),
        "message",
    ),
    Metric(
        "forerun_sent_bytes",
        "counter",
        "Bytes of messages to edges, serialised.",
        lambda s: _all_of(SENT, s.sent.num_bytes),
        "message",
    ),
)

TENANTS = (
    Metric("forerun_tenants", "gauge", "Tenants that have a session.", lambda s: s.num_tenants),
    Metric(
        "forerun_tenant_sessions",
        "gauge",
        "Open sessions of a tenant. What is told by tenant needs `--metrics-tenants`.",
        _of_live(lambda each: 1.0),
        "tenant",
    ),
    Metric(
        "forerun_tenant_kv_slots",
        "gauge",
        "KV slots promised to a tenant's sessions.",
        _of_live(lambda each: each.num_promised),
        "tenant",
    ),
    Metric(
        "forerun_tenant_sessions_opened",
        "counter",
        "Sessions of a tenant that were admitted.",
        _of_tenants(lambda totals: totals.num_sessions),
        "tenant",
    ),
    Metric(
        "forerun_tenant_prompt_tokens",
        "counter",
        "Tokens of a tenant's prompts.",
        _of_tenants(lambda totals: totals.num_prompt_tokens),
        "tenant",
    ),
    Metric(
        "forerun_tenant_generation_tokens",
        "counter",
        "Tokens committed for a tenant.",
        _of_tenants(lambda totals: totals.num_committed),
        "tenant",
    ),
    Metric(
        "forerun_tenant_rows",
        "counter",
        "Rows evaluated for a tenant: what it costs.",
        _of_tenants(lambda totals: totals.num_rows),
        "tenant",
    ),
    Metric(
        "forerun_tenant_wasted_rows",
        "counter",
        "Draft rows evaluated for a tenant that were not right.",
        _of_tenants(lambda totals: totals.num_wasted),
        "tenant",
    ),
)

METRICS = (*SESSIONS, *STEPS, *CHOICES, *COSTS, *MEMORY, *WIRE, *TENANTS)
