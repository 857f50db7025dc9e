"""Big Little Decoder (Kim et al., NeurIPS 2023, arXiv 2302.07863)."""

from __future__ import annotations

from schemes.claims.claims import Claim, plain, seeds, speedup
from simulator.drafts import BetaDraft
from simulator.world import DeviceSpec, VerifierSpec, World

DEPTH = 6 / 24
"""Decoder layers of T5-small over those of T5-large. With one sentence at a time, depth sets the pace."""

WORLD = World(
    device=DeviceSpec(DEPTH * 0.030, 0.0),
    verifier=VerifierSpec(step_time=0.030),
    draft=BetaDraft(mean=0.9, k=2.0),
    tokens=600,
)

CLAIMS = (
    Claim(
        "BiLD",
        "speedup over the large model alone, T5, at most",
        2.12,
        speedup,
        plain(WORLD, 5) + seeds("colocated:bild", WORLD, 5),
        remark="The abstract gives no acceptance, which depends on the loose rollback. Here it is 0.9, by "
        "equality with the large model: the rollback, which changes the text, is not simulated.",
    ),
)
