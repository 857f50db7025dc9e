"""A middle tier beside two tiers (HSD, arXiv 2510.19705), with all machines as they run in production."""

from __future__ import annotations

from simulator.drafts import BetaDraft
from simulator.link import LinkSpec
from simulator.middle import TierSpec
from simulator.published.claims import Claim, Results, mean_pace, seeds
from simulator.schemes import FORERUN, NEAR, RELAY
from simulator.world import DeviceSpec, VerifierSpec, World

REPEATS = 5


def _world(rtt: float, near: float) -> World:
    """Return Llama 3 of 1B, 8B and 70B with the step times and acceptances of `hsd`; RTTs in seconds."""
    return World(
        link=LinkSpec(rtt=rtt),
        device=DeviceSpec(draft_time=0.0018),
        tier=TierSpec(rtt=near, draft_time=0.012, mean=0.8),
        verifier=VerifierSpec(step_time=0.1059),
        draft=BetaDraft(mean=0.75),
        tokens=300,
    )


def _over_two_tiers(results: Results) -> float:
    """Return how many times as fast the relay is as the better arrangement of two tiers."""
    places = [results[place * REPEATS : (place + 1) * REPEATS] for place in range(3)]
    alone, near, relayed = map(mean_pace, places)
    return min(alone, near) / relayed


def _claim(where: str, world: World, remark: str) -> Claim:
    jobs = tuple(job for scheme in (FORERUN, NEAR, RELAY) for job in seeds(scheme, world, REPEATS))
    return Claim(
        "HSD",
        f"speed-up of a relay over the better of two tiers, {where}",
        1.2,
        _over_two_tiers,
        jobs,
        None,
        remark,
    )


CLAIMS = (
    _claim(
        "one machine",
        _world(0.0, 0.0),
        "The paper's single drafts wait for each verdict. Here both arrangements of two tiers draft ahead, "
        "which hides most of what a third tier could save on one machine.",
    ),
    _claim("RTT 50 ms, 5 ms of it near", _world(0.05, 0.005), "The paper has no network."),
)
