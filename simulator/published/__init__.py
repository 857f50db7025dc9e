"""Lists the published figures that the simulator is held against, one module for each paper."""

from __future__ import annotations

from simulator.published import leviathan, relay
from simulator.published.claims import Claim

CLAIMS: tuple[Claim, ...] = (*leviathan.CLAIMS, *relay.CLAIMS)
"""All claims, in the order of docs/schemes.md."""
