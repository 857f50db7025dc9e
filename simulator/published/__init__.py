"""Lists the published figures that the simulator is held against, one module for each paper."""

from __future__ import annotations

from simulator.published import amusd, leviathan, pearl, specedge, ssd
from simulator.published.claims import Claim

CLAIMS: tuple[Claim, ...] = (
    *leviathan.CLAIMS,
    *amusd.CLAIMS,
    *pearl.CLAIMS,
    *ssd.CLAIMS,
    *specedge.CLAIMS,
)
"""All claims, in the order of docs/schemes.md."""
