"""Lists the published figures that the simulator is held against, one module for each paper."""

from __future__ import annotations

from simulator.published import dsd, hsd, leviathan, uara
from simulator.published.claims import Claim

CLAIMS: tuple[Claim, ...] = (*leviathan.CLAIMS, *hsd.CLAIMS, *uara.CLAIMS, *dsd.CLAIMS)
"""All claims, in the order of docs/schemes.md."""
