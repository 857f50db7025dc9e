"""Cells with fading channels, in the manner of UARA (Koh & Yang, arXiv 2511.01695)."""

from __future__ import annotations

import math

from simulator.drafts import BetaDraft
from simulator.events import Draws, DrawStream
from simulator.link_spec import LinkSpec, Trace
from simulator.world import VerifierSite, VerifierSpec, World

CELLS = (0.008, 0.011, 0.014)  # seconds to each without fading: the first is nearest to most devices

# Fading: a block is sent anew every 8 ms (LTE) until the energy of all tries suffices (chase combining).
TRY, NEEDED, MOST_TRIES = 0.008, 0.5, 8
BLOCK, KEPT = 0.050, 0.8  # seconds of a fade, about walking pace; correlation of one amplitude with the next
BLOCKS = 400


def cells(seed: int, association: str) -> World:
    """Return thirty devices between three cells, with channels and places of their own for each seed."""
    sites = tuple(
        VerifierSite(
            VerifierSpec(step_time=0.040, step_time_per_node=0.001),
            LinkSpec(trace=_fading(seed, cell, wired)),
            spread=0.020,
        )
        for cell, wired in enumerate(CELLS)
    )
    draft = BetaDraft(mean=0.8)
    return World(sites=sites, clients=30, draft=draft, tokens=60, seed=seed, association=association)


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
