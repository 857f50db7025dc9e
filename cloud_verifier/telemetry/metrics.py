"""Define the metrics: name, kind, value and meaning of each.

The metrics under vLLM's names have vLLM's meaning, so dashboards, alerts, autoscalers and routers for vLLM
can read them. Names, kinds and labels are those of vLLM's `vllm/v1/metrics/loggers.py` and
`vllm/v1/spec_decode/metrics.py` up to version 0.32. Where a meaning differs, its text says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cloud_verifier.core.tenants import LIMITS
from cloud_verifier.telemetry.instruments import Histogram
from cloud_verifier.telemetry.monitor import FILES
from cloud_verifier.telemetry.snapshot import SessionMode, Snapshot
from common.errors import Code
from common.wire.describe import PROTOCOL_VERSION

Kind = Literal["gauge", "counter", "histogram", "info"]

Value = float | Histogram | Mapping[str, float] | Mapping[str, str]
"""A metric's value: a number, a distribution, or a number for each label value; for an info its labels."""

SUFFIXES: dict[Kind, str] = {"counter": "_total", "info": "_info"}
"""What the exposition adds to a name."""

CODES = tuple(code.value for code in Code)
ENDS = ("STOP", "LENGTH", "CANCELLED", "LOST")
RECEIVED = ("Open", "Propose", "Close")
SENT = ("Opened", "Commit", "Drain", "Finish")

PREFIX = "vllm:"

REASONS = {"STOP": "stop", "LENGTH": "length", "CANCELLED": "abort", "LOST": "abort"}
"""Reasons for the end of sessions, in vLLM's words. Any other reason is an error."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str  # without suffix
    kind: Kind
    value: Callable[[Snapshot], Value] = field(repr=False)
    meaning: str
    label: str = ""  # the label of the values, if there are several

    @property
    def exposed(self) -> str:
        """The metric's name in queries. A histogram's series append `_bucket`, `_sum` and `_count`."""
        return self.name + SUFFIXES.get(self.kind, "")


def _info(snapshot: Snapshot) -> Mapping[str, str]:
    return {
        "version": snapshot.version,
        "protocol": str(PROTOCOL_VERSION),
        "model": snapshot.scheduler.info.name,
    }


def _modes(snapshot: Snapshot) -> Mapping[str, float]:
    counts = Counter(session["mode"] for session in snapshot.sessions)
    return {mode.value: counts[mode] for mode in SessionMode}


def _all_of(names: tuple[str, ...], counts: Mapping[str, float]) -> Mapping[str, float]:
    """Return the counts with a zero for every missing name, so that its first event shows as a rise."""
    return {**dict.fromkeys(names, 0.0), **counts}


def _rows(snapshot: Snapshot) -> Mapping[str, float]:
    counters = snapshot.counters
    num_tips = counters.num_evaluated - counters.num_drafts
    return {"prefill": counters.num_prefilled, "tip": num_tips, "draft": counters.num_drafts}


def _slots(snapshot: Snapshot) -> Mapping[str, float]:
    slots = snapshot.slots
    return {"free": slots.free, "cached": slots.cached, "shared": slots.shared, "owned": slots.owned}


def _used(snapshot: Snapshot) -> float:
    slots = snapshot.slots
    return (slots.shared + slots.owned) / (slots.free + slots.cached + slots.shared + slots.owned)


def _running(snapshot: Snapshot) -> float:
    return len(snapshot.sessions) - _waiting(snapshot)


def _waiting(snapshot: Snapshot) -> float:
    return _modes(snapshot)[SessionMode.PREEMPTED]


def _success(snapshot: Snapshot) -> Mapping[str, float]:
    ends = dict.fromkeys((*REASONS.values(), "error"), 0.0)
    for reason, number in snapshot.counters.num_finished.items():
        ends[REASONS.get(reason, "error")] += number
    return ends


def _queried(snapshot: Snapshot) -> float:
    return snapshot.counters.num_prompt_tokens if snapshot.scheduler.config.prefix_cache else 0.0


def _cache_config(snapshot: Snapshot) -> Mapping[str, str]:
    return {
        "block_size": "1",
        "num_gpu_blocks": str(snapshot.scheduler.info.num_slots),
        "enable_prefix_caching": str(snapshot.scheduler.config.prefix_cache),
    }


def _num_drafted(snapshot: Snapshot) -> float:
    counters = snapshot.counters
    return counters.num_evaluated - counters.num_drafts - counters.num_bare


def _by_depth(snapshot: Snapshot) -> Mapping[str, float]:
    """Return a count for every depth that a step can have, so that no series appears late."""
    won = snapshot.counters.won_by_depth
    deepest = max(len(won), snapshot.scheduler.config.max_nodes_per_session - 1)
    return {str(depth): won[depth] if depth < len(won) else 0.0 for depth in range(deepest)}


OWN = (
    # sessions
    Metric("forerun_verifier", "info", _info, "Version, protocol and model of the verifier."),
    Metric("forerun_start_time_seconds", "gauge", lambda s: s.monitor.started_wall,
        "Start time of the verifier, in seconds since 1970."),
    Metric("forerun_draining", "gauge", lambda s: s.scheduler.draining,
        "1 while the verifier is draining and admits no session, else 0."),
    Metric("forerun_open_streams", "gauge", lambda s: len(s.monitor.streams), "Connected streams."),
    Metric("forerun_sessions", "gauge", _modes,
        "Open sessions by mode: `prefill`, `decode`, `waiting` (without fill, for a Propose), "
        "`preempted`.", "mode"),
    Metric("forerun_max_sessions", "gauge", lambda s: s.scheduler.config.max_sessions,
        "Most sessions that may be open at once."),
    Metric("forerun_sessions_opened", "counter", lambda s: s.counters.num_opened, "Sessions admitted."),
    Metric("forerun_sessions_ended", "counter", lambda s: _all_of((*ENDS, *CODES), s.counters.num_finished),
        "Ended sessions by reason: that of the `Finish`, `LOST` for a broken stream, or the status of an "
        "error.", "reason"),
    Metric("forerun_refusals", "counter", lambda s: _all_of(CODES, s.counters.num_refused),
        "Streams ended without a session, by status. `RESOURCE_EXHAUSTED` means lack of room.", "code"),
    Metric("forerun_resume_time_seconds", "histogram", lambda s: s.instruments.resumed,
        "Seconds from the Open of a resumed session to its first commit."),
    # steps
    Metric("forerun_steps", "counter", lambda s: s.counters.num_steps, "Steps of the target."),
    Metric("forerun_failed_steps", "counter", lambda s: s.counters.num_failed_steps,
        "Steps that failed in the engine. A session that alone makes a step fail ends with `INTERNAL`."),
    Metric("forerun_step_time_seconds", "histogram", lambda s: s.instruments.step_time,
        "Seconds from the plan of a step to its result."),
    Metric("forerun_queue_time_seconds", "histogram", lambda s: s.instruments.queue_time,
        "Seconds from a session's readiness to the begin of its step; one sample a session and step."),
    Metric("forerun_rows", "counter", _rows,
        "Rows evaluated, by kind: `prefill` (tokens of prompts and of texts that are read again), `tip` and "
        "`draft`.", "kind"),
    Metric("forerun_wasted_rows", "counter", lambda s: s.counters.num_drafts - s.counters.num_won,
        "Draft rows that were rejected."),
    Metric("forerun_bare_tips", "counter", lambda s: s.counters.num_bare,
        "Tips evaluated without a draft below them (fill). Their share of all tips shows how often drafts "
        "were missing."),
    Metric("forerun_accepted_tokens", "counter",
        lambda s: s.counters.num_committed - s.counters.num_server_made,
        "Committed tokens that the edge had proposed in time."),
    Metric("forerun_dropped_nodes", "counter", lambda s: s.counters.num_dropped,
        "Nodes dropped above the hard limit of their session; the edge ignored its credit."),
    Metric("forerun_guessed_nodes", "counter", lambda s: s.counters.num_guessed,
        "Nodes that the verifier's own drafter proposed and no edge had proposed."),
    Metric("forerun_guessed_tokens", "counter", lambda s: s.counters.num_guesses_won,
        "Committed tokens that steps wrote more because of the verifier's own drafter."),
    Metric("forerun_credit_pressure", "gauge", lambda s: s.scheduler.credit.pressure,
        "Share of the wanted draft rows that other sessions' rows displace, smoothed. Credit shrinks as it "
        "grows."),
    # choices
    Metric("forerun_near_ties", "counter", lambda s: s.scheduler.ledger.near_ties.num_near_ties,
        "Committed tokens whose margin was so small that different rounding might have changed the choice."),
    Metric("forerun_smallest_margin", "gauge", lambda s: s.scheduler.ledger.near_ties.smallest,
        "Smallest margin of a committed token, in logits; infinite before the first token."),
    # the cost of steps
    Metric("forerun_step_time_ratio", "histogram", lambda s: s.instruments.step_ratio,
        "Measured over predicted time of a step."),
    # memory
    Metric("forerun_kv_slots", "gauge", _slots,
        "KV slots by state: `free`, `cached` (without a reader), `shared` (cached and read), `owned` by a "
        "session.", "state"),
    Metric("forerun_kv_slots_available", "gauge", lambda s: s.slots.available,
        "KV slots that can still be reserved for new sessions."),
    Metric("forerun_memory_short", "gauge", lambda s: s.scheduler.backoff.active,
        "1 while the size of steps is reduced because the engine ran out of memory, else 0."),
    # the wire
    Metric("forerun_received_bytes", "counter", lambda s: _all_of(RECEIVED, s.monitor.received),
        "Serialised bytes of messages from edges, without framing, which takes 14 bytes or more each.",
        "message"),
    Metric("forerun_sent_bytes", "counter", lambda s: _all_of(SENT, s.monitor.sent),
        "Serialised bytes of messages to edges, without framing.", "message"),
    # tenants
    Metric("forerun_tenants", "gauge", lambda s: len(s.scheduler.tenants), "Tenants with an open session."),
    # files that are renewed while the verifier runs, and quotas
    Metric("forerun_certificate_expiry_seconds", "gauge", lambda s: s.trust.expires_at,
        "Expiry of the TLS certificate in use, in seconds since 1970; infinite without one."),
    Metric("forerun_file_reloads", "counter", lambda s: _all_of(FILES, s.trust.reloads),
        "Newer files taken into use: `certificate`, `token_keys`, `secrets`, and the like.", "file"),
    Metric("forerun_failed_file_reloads", "counter", lambda s: _all_of(FILES, s.trust.failures),
        "Newer files that could not be used; the previous file stays. The log names the reason.", "file"),
    Metric("forerun_quota_refusals", "counter",
        lambda s: _all_of(LIMITS, s.scheduler.tenants.refused),
        "Sessions refused by their tenant's quota, by limit; also counted in `forerun_refusals_total`.",
        "limit"),
)  # fmt: skip

VLLM = (
    Metric("vllm:num_requests_running", "gauge", _running, "Sessions that hold KV slots."),
    Metric("vllm:num_requests_waiting", "gauge", _waiting,
        "Preempted sessions that wait for KV slots. A new session without room is refused instead."),
    Metric("vllm:kv_cache_usage_perc", "gauge", _used,
        "Share of the KV slots that sessions use, 0 to 1. Cached slots without a reader count as free."),
    Metric("vllm:cache_config", "info", _cache_config, "All KV slots, as blocks of one token."),
    Metric("vllm:prefix_cache_queries", "counter", _queried, "Tokens looked up in the prefix cache."),
    Metric("vllm:prefix_cache_hits", "counter", lambda s: s.counters.num_cached_tokens,
        "Tokens found in the prefix cache."),
    Metric("vllm:prompt_tokens", "counter", lambda s: s.counters.num_prompt_tokens,
        "Tokens of admitted sessions' prompts and of their texts on earlier streams."),
    Metric("vllm:generation_tokens", "counter", lambda s: s.counters.num_committed, "Committed tokens."),
    Metric("vllm:num_preemptions", "counter", lambda s: s.scheduler.preemption.num_preempted,
        "Times that a session lost its KV slots to an older session."),
    Metric("vllm:request_success", "counter", _success,
        "Ended sessions by reason; `abort`: the client closed or lost the stream; `error`: any error.",
        "finished_reason"),
    Metric("vllm:spec_decode_num_drafts", "counter", _num_drafted,
        "Times that a step evaluated drafts of a session, whatever their number."),
    Metric("vllm:spec_decode_num_draft_tokens", "counter", lambda s: s.counters.num_drafts,
        "Draft rows evaluated, the verifier's own guesses included."),
    Metric("vllm:spec_decode_num_accepted_tokens", "counter", lambda s: s.counters.num_won,
        "Accepted draft rows, at most one of several siblings."),
    Metric("vllm:spec_decode_num_accepted_tokens_per_pos", "counter", _by_depth,
        "Times that a step accepted more than `position` drafts of a session.", "position"),
    Metric("vllm:iteration_tokens_total", "histogram", lambda s: s.instruments.step_tokens,
        "Prompt tokens read and tokens committed in a step."),
    Metric("vllm:time_to_first_token_seconds", "histogram", lambda s: s.instruments.first_token,
        "Seconds from a session's Open to its first commit, at the verifier. Resumed sessions do not count."),
    Metric("vllm:inter_token_latency_seconds", "histogram", lambda s: s.instruments.later_tokens,
        "Seconds from one commit of a session to its next, whatever their numbers of tokens."),
    Metric("vllm:e2e_request_latency_seconds", "histogram", lambda s: s.instruments.whole_time,
        "Seconds from Open to Finish, of sessions with a complete text."),
    Metric("vllm:request_queue_time_seconds", "histogram", lambda s: s.instruments.first_queue_time,
        "Seconds from Open to the begin of the first step, of sessions with a complete text."),
    Metric("vllm:request_prefill_time_seconds", "histogram", lambda s: s.instruments.prefill_time,
        "Seconds from the begin of the first step to the first commit, of sessions with a complete text."),
    Metric("vllm:request_decode_time_seconds", "histogram", lambda s: s.instruments.decode_time,
        "Seconds from the first commit to Finish, of sessions with a complete text."),
    Metric("vllm:request_prompt_tokens", "histogram", lambda s: s.instruments.prompt_tokens,
        "Tokens of the prompt, of sessions with a complete text."),
    Metric("vllm:request_generation_tokens", "histogram", lambda s: s.instruments.text_tokens,
        "Tokens of the text over all its streams, of sessions with a complete text."),
)  # fmt: skip

METRICS: tuple[Metric, ...] = (*OWN, *VLLM)
"""Every metric with a fixed name; the engine's figures come on top."""
