"""Speculative decoding with a fixed block (Leviathan et al. 2023, arXiv 2211.17192)."""

from __future__ import annotations

from schemes.claims.claims import Claim, Results, seeds
from simulator.drafts import BetaDraft
from simulator.world import DeviceSpec, VerifierSpec, World

ACCEPTANCES = (0.6, 0.8, 0.9)
BLOCK = 5
SEEDS = 40  # so that the standard error is below 0.4 %


def _world(acceptance: float) -> World:
    """Return one machine. The draft is right independently from token to token, as the paper assumes."""
    return World(
        device=DeviceSpec(0.002, 0.0),
        verifier=VerifierSpec(step_time=0.030),
        draft=BetaDraft(mean=acceptance),
        tokens=1200,
    )


def _expected_tokens(acceptance: float) -> float:
    """Return the mean number of tokens of a round (eq. 1)."""
    return (1.0 - acceptance ** (BLOCK + 1)) / (1.0 - acceptance)


def _tokens_per_round(results: Results) -> float:
    """Leave out each text's first step, which reads the prompt and has no draft."""
    stats = [session.stats for sessions in results for session in sessions]
    return sum(each.committed - 1 for each in stats) / sum(each.target_steps - 1 for each in stats)


CLAIMS = tuple(
    Claim(
        "speculative decoding",
        f"tokens a round, block {BLOCK}, acceptance {acceptance:g}",
        _expected_tokens(acceptance),
        _tokens_per_round,
        seeds(f"colocated:sync:{BLOCK}", _world(acceptance), SEEDS),
        within=0.01,
    )
    for acceptance in ACCEPTANCES
)
