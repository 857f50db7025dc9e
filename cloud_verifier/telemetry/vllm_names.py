"""The metrics that have vLLM's names, because they mean what they mean there: dashboards, alerts, autoscalers
and routers that know vLLM can read them.

Names, kinds and labels are those of its `vllm/v1/metrics/loggers.py` and `vllm/v1/spec_decode/metrics.py`, as
they were up to version 0.32. Where a meaning is not quite the same, the text says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloud_verifier.telemetry.metric import Metric
from cloud_verifier.telemetry.snapshot import Snapshot
from common.rpc.admin import Mode

PREFIX = "vllm:"

REASONS = {"STOP": "stop", "LENGTH": "length", "CANCELLED": "abort", "LOST": "abort"}
"""Why sessions end, in vLLM's words. Anything else is an error."""


def _running(snapshot: Snapshot) -> float:
    return sum(each.mode is not Mode.PREEMPTED for each in snapshot.sessions)


def _waiting(snapshot: Snapshot) -> float:
    return sum(each.mode is Mode.PREEMPTED for each in snapshot.sessions)


def _success(snapshot: Snapshot) -> Mapping[str, float]:
    found = dict.fromkeys((*REASONS.values(), "error"), 0.0)
    for reason, number in snapshot.counters.num_finished.items():
        found[REASONS.get(reason, "error")] += number
    return found


def _queried(snapshot: Snapshot) -> float:
    return snapshot.counters.num_prompt_tokens if snapshot.config.prefix_cache else 0.0


def _cache_config(snapshot: Snapshot) -> Mapping[str, str]:
    return {
        "block_size": "1",
        "num_gpu_blocks": str(snapshot.target.num_slots),
        "enable_prefix_caching": str(snapshot.config.prefix_cache),
    }


def _num_drafted(snapshot: Snapshot) -> float:
    counters = snapshot.counters
    return counters.num_evaluated - counters.num_drafts - counters.num_bare


def _by_depth(snapshot: Snapshot) -> Mapping[str, float]:
    """Every depth that a step can have, so that no series comes late."""
    won = snapshot.counters.won_by_depth
    deepest = max(len(won), snapshot.config.max_nodes_per_session - 1)
    return {str(depth): won[depth] if depth < len(won) else 0.0 for depth in range(deepest)}


METRICS = (
    Metric("vllm:num_requests_running", "gauge", "Sessions that hold KV slots.", _running),
    Metric(
        "vllm:num_requests_waiting",
        "gauge",
        "Sessions that wait for KV slots, having given theirs up. One that comes and finds no room does not "
        "wait: it is refused.",
        _waiting,
    ),
    Metric(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "Share of the KV slots that sessions use, 0 to 1. What is cached and read by nobody counts as free.",
        lambda s: s.slots.used,
    ),
    Metric(
        "vllm:gpu_cache_usage_perc",
        "gauge",
        "`vllm:kv_cache_usage_perc` under the name that it had in older versions.",
        lambda s: s.slots.used,
    ),
    Metric(
        "vllm:cache_config",
        "info",
        "KV slots in all, as blocks of one token.",
        _cache_config,
    ),
    Metric(
        "vllm:prefix_cache_queries",
        "counter",
        "Tokens looked for in the prefix cache.",
        _queried,
    ),
    Metric(
        "vllm:prefix_cache_hits",
        "counter",
        "Tokens looked for in the prefix cache whose KV was there.",
        lambda s: s.counters.num_cached_tokens,
    ),
    Metric(
        "vllm:prompt_tokens",
        "counter",
        "Tokens that sessions came with: prompts, and what they had written on earlier streams.",
        lambda s: s.counters.num_prompt_tokens,
    ),
    Metric("vllm:generation_tokens", "counter", "Committed tokens.", lambda s: s.counters.num_committed),
    Metric(
        "vllm:num_preemptions",
        "counter",
        "Times that a session gave its KV up for an older one.",
        lambda s: s.num_preempted,
    ),
    Metric(
        "vllm:request_success",
        "counter",
        "Sessions that have ended; `abort` if the client ended or lost them, `error` by any error.",
        _success,
        "finished_reason",
    ),
    Metric(
        "vllm:spec_decode_num_drafts",
        "counter",
        "Times that a step evaluated drafts of a session, however many.",
        _num_drafted,
    ),
    Metric(
        "vllm:spec_decode_num_draft_tokens",
        "counter",
        "Draft rows evaluated, the verifier's own guesses included.",
        lambda s: s.counters.num_drafts,
    ),
    Metric(
        "vllm:spec_decode_num_accepted_tokens",
        "counter",
        "Draft rows that were right. Of siblings one at most is.",
        lambda s: s.counters.num_won,
    ),
    Metric(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "Steps of sessions in which more than so many drafts were right.",
        _by_depth,
        "position",
    ),
    Metric(
        "vllm:iteration_tokens_total",
        "histogram",
        "Prompt tokens read and tokens committed in a step.",
        lambda s: s.instruments.step_tokens,
    ),
    Metric(
        "vllm:time_to_first_token_seconds",
        "histogram",
        "From a session's Open to its first commit, here and not at the user's end. Not of resumed ones.",
        lambda s: s.instruments.first_token,
    ),
    Metric(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "From one commit of a session to its next, of however many tokens.",
        lambda s: s.instruments.later_tokens,
    ),
    Metric(
        "vllm:e2e_request_latency_seconds",
        "histogram",
        "From Open to Finish, of sessions that came to their text's end.",
        lambda s: s.instruments.whole_time,
    ),
    Metric(
        "vllm:request_queue_time_seconds",
        "histogram",
        "From Open to the first step's beginning, of sessions that came to their text's end.",
        lambda s: s.instruments.first_queue_time,
    ),
    Metric(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "From the first step's beginning to the first commit, of sessions that came to their text's end.",
        lambda s: s.instruments.prefill_time,
    ),
    Metric(
        "vllm:request_decode_time_seconds",
        "histogram",
        "From the first commit to Finish, of sessions that came to their text's end.",
        lambda s: s.instruments.decode_time,
    ),
    Metric(
        "vllm:request_prompt_tokens",
        "histogram",
        "Tokens of the prompt, of sessions that came to their text's end.",
        lambda s: s.instruments.prompt_tokens,
    ),
    Metric(
        "vllm:request_generation_tokens",
        "histogram",
        "Tokens of the text, over all its streams, of sessions that came to its end.",
        lambda s: s.instruments.text_tokens,
    ),
)
