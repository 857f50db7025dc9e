"""User association in a network of cells (UARA, Koh & Yang, arXiv 2511.01695)."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

from schemes.claims.claims import Claim, Results
from simulator.drafts import BetaDraft
from simulator.events import Draws, DrawStream
from simulator.experiment import Job
from simulator.link import LinkSpec, Trace
from simulator.world import NEAREST, VerifierSite, VerifierSpec, World

SEEDS = range(1, 9)
CELLS = (0.008, 0.011, 0.014)  # seconds to each without fading: the first is nearest to most devices

# Fading: a block is sent anew every 8 ms (LTE) until the energy of all tries suffices (chase combining).
TRY, NEEDED, MOST_TRIES = 0.008, 0.5, 8
BLOCK, KEPT = 0.050, 0.8  # seconds of a fade, about walking pace; correlation of one amplitude with the next
BLOCKS = 400


def _fading(seed: int, cell: int, wired: float) -> Trace:
    """Return the round trips of a Rayleigh channel."""
    draws, rtts = Draws(seed, cell), list[float]()
    real, imaginary = (draws.normal(DrawStream.SITE, each) for each in (0, 1))
    for block in range(1, BLOCKS + 1):
        fresh = math.sqrt(1.0 - KEPT * KEPT)
        real = KEPT * real + fresh * draws.normal(DrawStream.SITE, 2 * block)
        imaginary = KEPT * imaginary + fresh * draws.normal(DrawStream.SITE, 2 * block + 1)
        gain = 0.5 * (real * real + imaginary * imaginary)
        tries = min(MOST_TRIES, math.ceil(NEEDED / gain))
        rtts.append(wired + TRY * tries)
    return Trace(f"cell {cell}", tuple(BLOCK * block for block in range(BLOCKS)), tuple(rtts))


def _world(seed: int) -> World:
    """Return the cells with channels and devices of their own for each seed."""
    sites = tuple(
        VerifierSite(
            VerifierSpec(step_time=0.040, step_time_per_node=0.001),
            LinkSpec(trace=_fading(seed, cell, wired)),
            spread=0.020,
        )
        for cell, wired in enumerate(CELLS)
    )
    return World(sites=sites, clients=30, draft=BetaDraft(mean=0.8), tokens=60, seed=seed)


def _jobs(association: str) -> tuple[Job, ...]:
    return tuple(("chain", replace(_world(seed), association=association)) for seed in SEEDS)


def _reductions(results: Results) -> list[float]:
    """Return, for each seed, by how many percent the mean time of a whole text is shorter with matching."""
    times = [fmean(session.arrivals[-1] for session in sessions) for sessions in results]
    half = len(times) // 2
    return [100.0 * (1.0 - ours / base) for base, ours in zip(times[:half], times[half:], strict=True)]


REMARK = (
    "The paper also allots bandwidth and computing by multi-agent reinforcement learning, over "
    "channels of Sionna; its abstract gives neither cells, devices nor baseline. Here only the association "
    "runs (two phases of matching, no learning) against the nearest cell: 30 devices, 3 cells, Rayleigh "
    "traces, shared steps. The gain depends on the crowd at the nearest cell: over 12 seeds 14 % on average "
    "and 26 % at most, and with cells at 5, 12 and 16 ms instead of 8, 11 and 14 it is 31 % and 48 %."
)

CLAIMS = tuple(
    Claim("UARA", quantity, figure, measure, (*_jobs(NEAREST), *_jobs("matching")), remark=REMARK)
    for quantity, figure, measure in (
        ("% less end-to-end latency, mean", 23.7, lambda results: fmean(_reductions(results))),
        (
            f"% less end-to-end latency, greatest of {len(SEEDS)} seeds",
            28.0,
            lambda results: max(_reductions(results)),
        ),
    )
)
