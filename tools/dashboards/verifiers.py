"""The dashboard of a namespace's verifiers."""

from __future__ import annotations

from tools.dashboards.model import Dashboard, Panel

PODS = '{namespace=~"$namespace",pod=~"$pod"}'
MOST = f"sum by (pod) (forerun_max_sessions{PODS})"


def _rate(metric: str, by: str = "pod", more: str = "") -> str:
    where = PODS.replace("}", f",{more}}}") if more else PODS
    return f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))"


def _percentiles(metric: str, where: str = PODS) -> dict[str, str]:
    summed = f"sum by (le) (rate({metric}_bucket{where}[$__rate_interval]))"
    return {f"p{share:g}": f"histogram_quantile({share / 100:g}, {summed})" for share in (50, 95, 99)}


VERIFIER = Dashboard(
    "forerun-verifier",
    "Forerun: verifiers",
    "How the verifiers of a namespace do: who waits, who is turned away, and what steps cost.",
    {
        "namespace": "label_values(forerun_verifier_info, namespace)",
        "pod": 'label_values(forerun_verifier_info{namespace=~"$namespace"}, pod)',
    },
    {
        "At a glance": (
            Panel(
                "Verifiers that answer", "short", {"": f"count(forerun_start_time_seconds{PODS})"}, width=4
            ),
            Panel("Sessions", "short", {"": f"sum(forerun_sessions{PODS})"}, width=4),
            Panel(
                "Tokens a second",
                "short",
                {"": f"sum(rate(vllm:generation_tokens_total{PODS}[5m]))"},
                width=4,
            ),
            Panel(
                "Refused for want of room",
                "short",
                {"": f'sum(increase(forerun_refusals_total{PODS[:-1]},code="RESOURCE_EXHAUSTED"}}[1h]))'},
                "In the last hour.",
                4,
            ),
            Panel("Draining", "short", {"": f"sum(forerun_draining{PODS})"}, width=4),
            Panel(
                "Oldest start",
                "dateTimeFromNow",
                {"": f"min(forerun_start_time_seconds{PODS}) * 1000"},
                width=4,
            ),
        ),
        "Do users wait?": (
            Panel("First token, without the network", "s", _percentiles("vllm:time_to_first_token_seconds")),
            Panel("Between two commits", "s", _percentiles("vllm:inter_token_latency_seconds")),
            Panel(
                "Queue: ready until the step begins",
                "s",
                _percentiles("forerun_queue_time_seconds"),
                "What the autoscaler follows.",
            ),
            Panel(
                "From a resumed Open to its first commit", "s", _percentiles("forerun_resume_time_seconds")
            ),
            Panel("Refusals", "reqps", {"{{code}}": _rate("forerun_refusals_total", "code")}),
            Panel("Sessions' ends", "reqps", {"{{reason}}": _rate("forerun_sessions_ended_total", "reason")}),
        ),
        "Is there room?": (
            Panel(
                "Sessions by what they do", "short", {"{{mode}}": f"sum by (mode) (forerun_sessions{PODS})"}
            ),
            Panel(
                "Share of the sessions that may be",
                "percentunit",
                {"{{pod}}": f"sum by (pod) (forerun_sessions{PODS}) / {MOST}"},
            ),
            Panel("KV slots", "short", {"{{state}}": f"sum by (state) (forerun_kv_slots{PODS})"}),
            Panel("KV slots that can be promised", "short", {"{{pod}}": f"forerun_kv_slots_available{PODS}"}),
            Panel("Preemptions", "ops", {"{{pod}}": _rate("vllm:num_preemptions_total")}),
            Panel(
                "Prefix cache: share that was known",
                "percentunit",
                {
                    "{{pod}}": f"{_rate('vllm:prefix_cache_hits_total')} / "
                    + _rate("vllm:prefix_cache_queries_total")
                },
            ),
        ),
        "What do steps cost?": (
            Panel("Step time", "s", _percentiles("forerun_step_time_seconds")),
            Panel("Step time over what was expected", "none", _percentiles("forerun_step_time_ratio")),
            Panel("Steps", "ops", {"{{pod}}": _rate("forerun_steps_total")}),
            Panel("Rows by kind", "ops", {"{{kind}}": _rate("forerun_rows_total", "kind")}),
            Panel("Steps that failed", "ops", {"{{pod}}": _rate("forerun_failed_steps_total")}),
            Panel("Smaller steps for want of memory", "short", {"{{pod}}": f"forerun_memory_short{PODS}"}),
        ),
        "Do drafts help?": (
            Panel(
                "Tokens a step and session",
                "none",
                {
                    "{{pod}}": f"1 + {_rate('vllm:spec_decode_num_accepted_tokens_total')}"
                    f" / {_rate('vllm:spec_decode_num_drafts_total')}"
                },
            ),
            Panel(
                "Tips without a draft",
                "percentunit",
                {
                    "{{pod}}": f"{_rate('forerun_bare_tips_total')} / "
                    + _rate("forerun_rows_total", more='kind="tip"')
                },
            ),
            Panel(
                "Draft rows in vain",
                "percentunit",
                {
                    "{{pod}}": f"{_rate('forerun_wasted_rows_total')} / "
                    + _rate("forerun_rows_total", more='kind="draft"')
                },
            ),
            Panel("Drafts kept out for others", "percentunit", {"{{pod}}": f"forerun_credit_pressure{PODS}"}),
            Panel("Nodes above the limit", "ops", {"{{pod}}": _rate("forerun_dropped_nodes_total")}),
            Panel("Near ties", "ops", {"{{pod}}": _rate("forerun_near_ties_total")}),
        ),
        "The wire and the process": (
            Panel(
                "Bytes from edges", "Bps", {"{{message}}": _rate("forerun_received_bytes_total", "message")}
            ),
            Panel("Bytes to edges", "Bps", {"{{message}}": _rate("forerun_sent_bytes_total", "message")}),
            Panel("Streams", "short", {"{{pod}}": f"forerun_open_streams{PODS}"}),
            Panel("Processor", "short", {"{{pod}}": _rate("process_cpu_seconds_total")}, "Cores in use."),
            Panel("Memory of the process", "bytes", {"{{pod}}": f"process_resident_memory_bytes{PODS}"}),
            Panel("Tenants with a session", "short", {"{{pod}}": f"forerun_tenants{PODS}"}),
        ),
    },
)
