"""Speculative decoding of a target whose layers lie on several machines (DSD, arXiv 2511.11733)."""

from __future__ import annotations

from schemes.claims.claims import Claim, Results, mean_pace, seeds, speedup
from simulator.drafts import BetaDraft
from simulator.schemes import SERVER_STREAMING
from simulator.world import DeviceSpec, VerifierSpec, World

STEP = 0.010  # t0, seconds: the target's computing on all machines together
NODES, HOP = 4, 5 * STEP  # N and t1: the middle of where the paper says it pays, 3 to 8 and 3 to 10 t0
BLOCK, ACCEPTANCE = 4, 0.7
TOKENS_PER_ROUND = (1.0 - ACCEPTANCE ** (BLOCK + 1)) / (1.0 - ACCEPTANCE)  # k (Leviathan 2023, eq. 1)
REPEATS = 10


def _world(nodes: int) -> World:
    """Return a draft beside the first machine, as sure of every token, that takes a tenth of the target."""
    return World(
        device=DeviceSpec(0.1 * STEP, 0.0),
        verifier=VerifierSpec(step_time=STEP, step_time_per_node=0.0, nodes=nodes, hop_time=HOP),
        draft=BetaDraft(mean=ACCEPTANCE, k=1e6),
        tokens=1200,
    )


SCHEMES = (SERVER_STREAMING, f"colocated:sync:{BLOCK}")
SPREAD, WHOLE = (tuple(seeds(scheme, _world(nodes), REPEATS) for scheme in SCHEMES) for nodes in (NODES, 1))
REMARK = (
    "The abstract and the theory give no N, t1/t0, block or acceptance for 2.56 and 2.59; here "
    f"N = {NODES}, t1 = {HOP / STEP:g} t0, block {BLOCK}, acceptance {ACCEPTANCE:g}. The paper's figures "
    "include lossy adaptive verification, worth 15 to 20 %, which is not built here."
)


def _saved_ms(results: Results) -> float:
    """Return the ms of hops per token that blocks save: what hops add without blocks, less what they add
    with them."""
    paces = [mean_pace(results[place : place + REPEATS]) for place in range(0, len(results), REPEATS)]
    streamed, drafted, streamed_whole, drafted_whole = paces
    return (streamed - streamed_whole) - (drafted - drafted_whole)


CLAIMS = (
    Claim(
        "DSD",
        f"ms of hops saved a token, (N-1) t1 (k-1)/k at k = {TOKENS_PER_ROUND:.2f}",
        1e3 * (NODES - 1) * HOP * (1.0 - 1.0 / TOKENS_PER_ROUND),
        _saved_ms,
        (*SPREAD[0], *SPREAD[1], *WHOLE[0], *WHOLE[1]),
        within=0.01,
    ),
    *(
        Claim(
            "DSD", f"speed-up over streaming, {task}", figure, speedup, SPREAD[0] + SPREAD[1], remark=REMARK
        )
        for task, figure in (("HumanEval", 2.56), ("GSM8K", 2.59))
    ),
)
