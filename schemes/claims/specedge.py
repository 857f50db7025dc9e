"""SpecEdge: trees drafted on edges, a server that only verifies (Park et al. 2025, arXiv 2505.17052)."""

from __future__ import annotations

from schemes.claims.claims import Claim, Results, mean_pace, seeds, speedup
from simulator.drafts import BetaDraft
from simulator.link import LinkSpec
from simulator.world import DeviceSpec, VerifierSpec, World

LATENCY = 1.0 - 0.1124  # per token, over the server alone without a network
THROUGHPUT = 2.22  # tokens of the server per second, over the server alone
RTT = 0.01407  # seconds, the paper's mean
TREE = "depth=4,beam=32,children=16"  # of the released settings, like the budgets below
SEEDS = 3

TARGET = 0.040  # seconds of a target step, assumed
EDGE_LEVEL = 0.010  # seconds of a draft step on an edge, assumed
SERVER_LEVEL = 0.0168  # seconds of a draft step on the server, which drafts for a batch: fitted to LATENCY


def _draft(level: float) -> DeviceSpec:
    """Return a GPU, where wider steps cost nothing."""
    return DeviceSpec(level, 0.0, draft_times=((1, level), (64, level)))


def _world(clients: int) -> World:
    return World(
        link=LinkSpec(rtt=RTT),
        device=_draft(EDGE_LEVEL),
        verifier=VerifierSpec(TARGET, 0.0, draft=_draft(SERVER_LEVEL)),
        draft=BetaDraft(mean=0.8),
        tokens=300,
        clients=clients,
    )


JOBS = (
    *seeds(f"colocated:specedge:budget=64,proactive=0,{TREE}", _world(1), SEEDS),
    *seeds(f"specedge:budget=32,{TREE}", _world(2), SEEDS),
)
"""The server alone drafts and verifies in turn. Two edges share a place in its batch, as in the paper."""


def _latency(results: Results) -> float:
    return 1.0 / speedup(results)


def _throughput(results: Results) -> float:
    """Return the tokens per second of two edges over those of the server alone."""
    half = len(results) // 2
    return 2.0 * mean_pace(results[:half]) / mean_pace(results[half:])


CLAIMS = (
    Claim(
        "SpecEdge",
        "latency over the server alone, RTT 14 ms",
        LATENCY,
        _latency,
        JOBS,
        remark=(
            "The abstract tells neither step times nor acceptance. A target step of 40 ms, 10 ms a level"
            " on the edge and acceptance 0.8 are assumed; 16.8 ms a level on the server are fitted to "
            "this claim, so it is no result. With a level as fast on both sides the edge takes 1.1 to "
            "1.2 times the latency."
        ),
    ),
    Claim(
        "SpecEdge",
        "server throughput over the server alone",
        THROUGHPUT,
        _throughput,
        JOBS,
        within=0.15,
        remark="Two edges a place in the batch, at 0.89 of the latency each, write 2.25 times the tokens.",
    ),
)
