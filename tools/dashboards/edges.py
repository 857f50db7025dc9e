"""The dashboard of a fleet's edges."""

from __future__ import annotations

from tools.dashboards.model import Dashboard, Panel

EDGES = '{instance=~"$instance"}'
REACHED = f"max by (instance) (forerun_edge_verifier_reachable{EDGES})"


def _edge(metric: str) -> str:
    return f"sum by (instance) (rate({metric}{EDGES}[$__rate_interval]))"


FLEET = Dashboard(
    "forerun-fleet",
    "Forerun: edges",
    "How devices do whose metrics Prometheus reads: what they write, with whose tokens, where time goes.",
    {"instance": "label_values(forerun_edge_texts_running, instance)"},
    {
        "At a glance": (
            Panel("Edges", "short", {"": f"count(forerun_edge_texts_running{EDGES})"}, width=6),
            Panel("Texts being written", "short", {"": f"sum(forerun_edge_texts_running{EDGES})"}, width=6),
            Panel(
                "Tokens a second", "short", {"": f"sum(rate(forerun_edge_tokens_total{EDGES}[5m]))"}, width=6
            ),
            Panel(
                "Edges without a verifier",
                "short",
                {"": f"count(({REACHED}) == 0) or vector(0)"},
                width=6,
            ),
        ),
        "Texts": (
            Panel(
                "Texts by mode", "short", {"{{mode}}": f"sum by (mode) (forerun_edge_texts_by_mode{EDGES})"}
            ),
            Panel(
                "Texts' ends",
                "reqps",
                {"{{ended}}": f"sum by (ended) (rate(forerun_edge_texts_total{EDGES}[$__rate_interval]))"},
            ),
            Panel(
                "Waiting in their own queue", "short", {"{{instance}}": f"forerun_edge_texts_waiting{EDGES}"}
            ),
            Panel(
                "Refused by their own queue",
                "reqps",
                {"{{instance}}": _edge("forerun_edge_texts_refused_total")},
            ),
            Panel(
                "Streams after a text's first", "ops", {"{{instance}}": _edge("forerun_edge_resumes_total")}
            ),
            Panel(
                "Verifiers that answer",
                "short",
                {"{{address}}": f"sum by (address) (forerun_edge_verifier_reachable{EDGES})"},
                "By their address: how many edges reach it.",
            ),
        ),
        "Drafting": (
            Panel(
                "Tokens a target step",
                "none",
                {
                    "{{instance}}": f"{_edge('forerun_edge_tokens_total')} / "
                    + _edge("forerun_edge_spec_decode_num_drafts_total")
                },
            ),
            Panel(
                "Of the tokens: proposed in time",
                "percentunit",
                {
                    "{{instance}}": f"{_edge('forerun_edge_spec_decode_num_accepted_tokens_total')} / "
                    + _edge("forerun_edge_tokens_total")
                },
            ),
            Panel(
                "Of what was proposed: in vain",
                "percentunit",
                {
                    "{{instance}}": f"{_edge('forerun_edge_wasted_tokens_total')} / "
                    + _edge("forerun_edge_spec_decode_num_draft_tokens_total")
                },
            ),
            Panel(
                "Of the tokens: the draft model's alone",
                "percentunit",
                {
                    "{{instance}}": f"{_edge('forerun_edge_device_tokens_total')} / "
                    + _edge("forerun_edge_tokens_total")
                },
                "Without a verifier. These are not the target's.",
            ),
            Panel("Bytes up", "Bps", {"{{instance}}": _edge("forerun_edge_bytes_up_total")}),
            Panel("Bytes down", "Bps", {"{{instance}}": _edge("forerun_edge_bytes_down_total")}),
        ),
        "Where texts' time goes (seconds of it, each second)": (
            Panel("In all", "none", {"{{instance}}": _edge("forerun_edge_text_seconds_total")}),
            Panel(
                "Network and waiting", "none", {"{{instance}}": _edge("forerun_edge_network_seconds_total")}
            ),
            Panel(
                "Target steps", "none", {"{{instance}}": _edge("forerun_edge_verifier_step_seconds_total")}
            ),
            Panel(
                "Verifiers' queues",
                "none",
                {"{{instance}}": _edge("forerun_edge_verifier_queue_seconds_total")},
            ),
            Panel("Own queue", "none", {"{{instance}}": _edge("forerun_edge_wait_seconds_total")}),
            Panel(
                "Draft steps, beside the rest",
                "none",
                {"{{instance}}": _edge("forerun_edge_draft_seconds_total")},
            ),
        ),
    },
)
