"""Hierarchical speculative decoding: a stack of models on one machine (HSD, arXiv 2510.19705)."""

from __future__ import annotations

from simulator.planner import TierModel, TierPair, best_hierarchies, gain
from simulator.published.claims import Claim

# Llama 3 of 1B, 8B and 70B: memory-bound steps take as long as the weights are large (12 ms for the 8B).
MODELS = [TierModel("1B", 0.0018), TierModel("8B", 0.012), TierModel("70B", 0.1059)]
PAIRS = {("1B", "8B"): TierPair(0.75), ("1B", "70B"): TierPair(0.65), ("8B", "70B"): TierPair(0.8)}

CLAIMS = (
    Claim(
        "HSD",
        "speed-up of the best hierarchy over the best single draft",
        1.2,
        lambda _: gain(best_hierarchies(MODELS, PAIRS)),
        remark=(
            "HSD: the figure is the paper's largest, of models whose acceptances and costs its abstract does "
            "not tell. Here Llama 3 of 1B, 8B and 70B with assumed acceptances .75 (1B to 8B), .65 (1B to "
            "70B) and .8 (8B to 70B), by the closed form. Five sets of acceptances were tried; they give 1.1 "
            "to 1.4."
        ),
    ),
)
