"""Speculative decoding with a fixed block (Leviathan et al. 2023, arXiv 2211.17192)."""

from __future__ import annotations

from simulator.drafts import BetaDraft
from simulator.published.claims import Claim, Results, seeds
from simulator.world import DeviceSpec, VerifierSpec, World

ACCEPTANCES = (0.6, 0.8, 0.9)
BLOCK = 5


def _world(acceptance: float) -> World:
    """Return one machine whose draft is as sure of every token: acceptance is independent, as the paper
    assumes."""
    return World(
        device=DeviceSpec(0.002, 0.0),
        verifier=VerifierSpec(step_time=0.030),
        draft=BetaDraft(mean=acceptance, k=1e6),
        tokens=1200,
    )


def _expected_tokens(acceptance: float) -> float:
    """Return the mean number of tokens of a round (eq. 1)."""
    return (1.0 - acceptance ** (BLOCK + 1)) / (1.0 - acceptance)


def _tokens_per_step(results: Results) -> float:
    stats = [session.stats for sessions in results for session in sessions]
    return sum(each.committed for each in stats) / sum(each.target_steps for each in stats)


CLAIMS = tuple(
    Claim(
        "speculative decoding",
        f"tokens a round, block {BLOCK}, acceptance {acceptance:g}",
        _expected_tokens(acceptance),
        _tokens_per_step,
        seeds(f"colocated:sync:{BLOCK}", _world(acceptance), 20),
        within=0.01,
    )
    for acceptance in ACCEPTANCES
)
