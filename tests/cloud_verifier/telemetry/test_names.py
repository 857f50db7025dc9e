"""The names of the metrics are a promise to dashboards and alerts: this list changes only on purpose."""

from __future__ import annotations

import re

import pytest

from cloud_verifier.telemetry.collector import METRICS
from cloud_verifier.telemetry.metric import Metric

PROMISED = """
forerun_accepted_tokens_total counter
forerun_bare_tips_total counter
forerun_certificate_expiry_seconds gauge
forerun_choice_margin histogram
forerun_credit_pressure gauge
forerun_draining gauge
forerun_dropped_nodes_total counter
forerun_evicted_slots_total counter
forerun_failed_file_reloads_total counter file
forerun_failed_steps_total counter
forerun_file_reloads_total counter file
forerun_kv_slots gauge state
forerun_kv_slots_available gauge
forerun_kv_slots_reserved gauge
forerun_live_nodes gauge
forerun_max_sessions gauge
forerun_memory_short gauge
forerun_near_tie_margin gauge
forerun_near_ties_total counter
forerun_open_streams gauge
forerun_proposed_nodes_total counter
forerun_queue_time_seconds histogram
forerun_quota_held_total counter
forerun_quota_refusals_total counter limit
forerun_received_bytes_total counter message
forerun_received_messages_total counter message
forerun_refusals_total counter code
forerun_resume_time_seconds histogram
forerun_rows_total counter kind
forerun_sent_bytes_total counter message
forerun_sent_messages_total counter message
forerun_server_made_tokens_total counter
forerun_sessions gauge mode
forerun_sessions_ended_total counter reason
forerun_sessions_opened_total counter
forerun_sessions_resumed_total counter
forerun_smallest_margin gauge
forerun_start_time_seconds gauge
forerun_step_cost_fixed_seconds gauge
forerun_step_cost_read_seconds gauge
forerun_step_cost_row_seconds gauge
forerun_step_rows histogram
forerun_step_time_ratio histogram
forerun_step_time_seconds histogram
forerun_step_tips histogram
forerun_steps_total counter
forerun_streams_total counter
forerun_tenant_generation_tokens_total counter tenant
forerun_tenant_kv_slots gauge tenant
forerun_tenant_prompt_tokens_total counter tenant
forerun_tenant_rows_total counter tenant
forerun_tenant_sessions gauge tenant
forerun_tenant_sessions_opened_total counter tenant
forerun_tenant_wasted_rows_total counter tenant
forerun_tenants gauge
forerun_verifier_info info
forerun_wasted_rows_total counter
vllm:cache_config_info info
vllm:e2e_request_latency_seconds histogram
vllm:generation_tokens_total counter
vllm:gpu_cache_usage_perc gauge
vllm:inter_token_latency_seconds histogram
vllm:iteration_tokens_total histogram
vllm:kv_cache_usage_perc gauge
vllm:num_preemptions_total counter
vllm:num_requests_running gauge
vllm:num_requests_waiting gauge
vllm:prefix_cache_hits_total counter
vllm:prefix_cache_queries_total counter
vllm:prompt_tokens_total counter
vllm:request_decode_time_seconds histogram
vllm:request_generation_tokens histogram
vllm:request_prefill_time_seconds histogram
vllm:request_prompt_tokens histogram
vllm:request_queue_time_seconds histogram
vllm:request_success_total counter finished_reason
vllm:spec_decode_num_accepted_tokens_per_pos_total counter position
vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_drafts_total counter
vllm:time_to_first_token_seconds histogram
"""


def test_the_metrics_are_those_that_were_promised() -> None:
    found = [" ".join(filter(None, (each.exposed, each.kind, each.label))) for each in METRICS]
    assert sorted(found) == PROMISED.strip().splitlines()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.exposed)
def test_a_metric_says_what_it_means_in_a_sentence(metric: Metric) -> None:
    assert re.fullmatch(r"[A-Z0-9`].*\.", metric.meaning)
    assert re.fullmatch(r"(forerun_|vllm:)[a-z0-9_]+", metric.name)
