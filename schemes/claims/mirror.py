"""Mirror Speculative Decoding (Bhendawade et al. 2025, arXiv 2510.13161), its early-exit hints."""

from __future__ import annotations

from dataclasses import replace

from schemes.claims.claims import Claim, seeds, speedup
from simulator.drafts import BetaDraft
from simulator.link import LinkSpec
from simulator.schemes import SERVER_STREAMING
from simulator.world import DeviceSpec, VerifierSpec, World

PLAIN = World(
    link=LinkSpec(rtt=0.0),
    device=DeviceSpec(0.005, 0.0003),
    draft=BetaDraft(mean=0.8),
    tokens=600,
)
HINTED = replace(PLAIN, verifier=VerifierSpec(hint_at=0.5, hint_skill=0.9))

REMARK = (
    "Draft and target stand side by side. The abstract tells neither step times, the exit's layer nor how "
    "often it holds: here 5 and 30 ms, half the layers and 0.9. Its draft also writes several tokens a step "
    "(speculative streaming), which is not here. In place of EAGLE-3 stands the same chain without hints, so "
    "the second figure is the hints' share."
)

CLAIMS = (
    Claim(
        "Mirror-SD",
        "speedup over autoregressive decoding, at least",
        2.8,
        speedup,
        seeds(SERVER_STREAMING, PLAIN, 5) + seeds("forerun", HINTED, 5),
        remark=REMARK,
    ),
    Claim(
        "Mirror-SD",
        "speedup over EAGLE-3, mean",
        1.30,
        speedup,
        seeds("chain", PLAIN, 5) + seeds("chain", HINTED, 5),
        remark=REMARK,
    ),
)
