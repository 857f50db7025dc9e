"""Hierarchical speculative decoding: a stack of models (HSD, arXiv 2510.19705), by its closed form and as a
relay between two machines."""

from __future__ import annotations

from schemes.claims.claims import Claim, Results, mean_pace, seeds
from schemes.relay.tier import TieredDraft, TierSpec
from schemes.worlds.hierarchy import TierModel, TierPair, best_hierarchies, gain
from simulator.link import LinkSpec
from simulator.schemes import FORERUN
from simulator.world import DeviceSpec, VerifierSpec, World

# Llama 3 of 1B, 8B and 70B: memory-bound steps take as long as the weights are large (12 ms for the 8B).
MODELS = [TierModel("1B", 0.0018), TierModel("8B", 0.012), TierModel("70B", 0.1059)]
PAIRS = {("1B", "8B"): TierPair(0.75), ("1B", "70B"): TierPair(0.65), ("8B", "70B"): TierPair(0.8)}

REPEATS = 5


def _world(rtt: float, near: float) -> World:
    """Return the same models as device, middle tier and target; round trips in seconds."""
    return World(
        link=LinkSpec(rtt=rtt),
        device=DeviceSpec(draft_time=0.0018),
        verifier=VerifierSpec(step_time=0.1059),
        draft=TieredDraft(mean=0.75, tier=TierSpec(rtt=near, draft_time=0.012, mean=0.8)),
        tokens=300,
    )


def _over_two_tiers(results: Results) -> float:
    """Return how many times as fast the relay is as the better arrangement of two tiers."""
    places = [results[place * REPEATS : (place + 1) * REPEATS] for place in range(3)]
    alone, near, relayed = map(mean_pace, places)
    return min(alone, near) / relayed


def _claim(where: str, world: World, remark: str) -> Claim:
    jobs = tuple(job for scheme in (FORERUN, "near", "relay") for job in seeds(scheme, world, REPEATS))
    quantity = f"speed-up of a relay over the better of two tiers, {where}"
    return Claim("HSD", quantity, 1.2, _over_two_tiers, jobs, remark=remark)


CLAIMS = (
    Claim(
        "HSD",
        "speed-up of the best hierarchy over the best single draft",
        1.2,
        lambda _: gain(best_hierarchies(MODELS, PAIRS)),
        remark=(
            "The figure is the paper's largest, of models whose acceptances and costs its abstract does "
            "not tell. Here Llama 3 of 1B, 8B and 70B with assumed acceptances .75 (1B to 8B), .65 (1B to "
            "70B) and .8 (8B to 70B), by the closed form. Five sets of acceptances were tried; they give 1.1 "
            "to 1.4."
        ),
    ),
    _claim(
        "one machine",
        _world(0.0, 0.0),
        "The paper's single drafts wait for each verdict. Here both arrangements of two tiers draft ahead, "
        "which hides most of what a third tier could save on one machine.",
    ),
    _claim("RTT 50 ms, 5 ms of it near", _world(0.05, 0.005), "The paper has no network."),
)
