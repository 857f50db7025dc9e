"""Cascade Speculative Drafting (Chen et al. 2023, arXiv 2312.11462), its vertical cascade."""

from __future__ import annotations

from dataclasses import replace

from schemes.claims.claims import Claim, seeds, speedup
from simulator.drafts import BetaDraft
from simulator.world import DeviceSpec, SmallDraft, VerifierSpec, World

ALONE = World(
    device=DeviceSpec(0.012, 0.0003),
    verifier=VerifierSpec(step_time=0.030),
    draft=BetaDraft(mean=0.85),
    tokens=600,
)
CASCADED = replace(ALONE, device=replace(ALONE.device, small=SmallDraft(0.0002, 0.7)))

CLAIMS = (
    Claim(
        "CS Drafting",
        "speedup over speculative decoding, at most",
        1.81,
        speedup,
        seeds("colocated:sync:5", ALONE, 5) + seeds("colocated:sync:5", CASCADED, 5),
        remark="The abstract gives neither step times nor acceptances. Here a draft step takes 0.4 target "
        "steps, and a small draft that takes next to nothing agrees with 0.7 of its tokens. The horizontal "
        "cascade, which leaves late tokens to the small draft, is not used.",
    ),
)
