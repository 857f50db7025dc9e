"""Lists the published figures that the simulator is held against, one module for each paper."""

from __future__ import annotations

from schemes.claims import (
    amusd,
    bild,
    cs_drafting,
    dsd,
    hsd,
    leviathan,
    mirror,
    pacer,
    pearl,
    specedge,
    ssd,
    uara,
)
from schemes.claims.claims import Claim

CLAIMS: tuple[Claim, ...] = (
    *leviathan.CLAIMS,
    *amusd.CLAIMS,
    *pearl.CLAIMS,
    *ssd.CLAIMS,
    *specedge.CLAIMS,
    *bild.CLAIMS,
    *pacer.CLAIMS,
    *cs_drafting.CLAIMS,
    *mirror.CLAIMS,
    *dsd.CLAIMS,
    *hsd.CLAIMS,
    *uara.CLAIMS,
)
"""All claims, in the order of docs/schemes.md."""
