"""PACER: blockwise pre-verification (Zhang et al. 2026, arXiv 2602.01274)."""

from __future__ import annotations

from schemes.claims.claims import Claim, plain, seeds, speedup
from simulator.drafts import BetaDraft
from simulator.world import DeviceSpec, VerifierSpec, World

WORLD = World(
    device=DeviceSpec(0.004, 0.0),
    verifier=VerifierSpec(step_time=0.030),
    draft=BetaDraft(mean=0.85, k=2.0),
    tokens=600,
)

CLAIMS = (
    Claim(
        "PACER",
        "speedup over autoregressive decoding, at most",
        2.66,
        speedup,
        plain(WORLD, 5) + seeds("colocated:pacer:stop=0.5", WORLD, 5),
        remark="The abstract gives neither step times nor acceptances: here 4 ms, 30 ms and 0.85. The "
        "simulated draft's promises are true chances, so there is nothing left to learn. On a recording of "
        "the bundled pair the learned stop has 0.2 % fewer nats than the promise.",
    ),
)
