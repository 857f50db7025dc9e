"""AMUSD: both models run without waiting for each other (McDanel 2024, arXiv 2410.17375)."""

from __future__ import annotations

from typing import NamedTuple

from schemes.claims.claims import Claim, fitted_acceptance, plain, seeds, speedup
from schemes.policies.rounds import tokens_per_round
from simulator.drafts import BetaDraft
from simulator.world import DeviceSpec, VerifierSpec, World


class Dataset(NamedTuple):
    """The published times in ms per token, and the mean verify step in ms of the released sample logs."""

    name: str
    autoregressive: float
    speculative: float
    verify: float
    figure: float  # AMUSD over autoregressive


DATASETS = (
    Dataset("HumanEval", 22.15, 17.88, 26.6, 1.57),
    Dataset("MT-Bench", 21.89, 20.64, 26.6, 1.31),  # no log: its contexts are about as short as HumanEval's
    Dataset("RefactorChat", 27.42, 19.18, 31.2, 1.96),
)
SYNC_DRAFT, DRAFT = 11.7, 12.0  # ms a draft step, alone and beside the verifier, in the same logs
BLOCK = 5
SEEDS = 5


def acceptance(data: Dataset) -> float:
    """Return the acceptance that gives the published speculative decoding.

    The released loop drafts a sixth token after a block that was right to its end.
    """

    def speculative(chance: float) -> float:
        drafting = SYNC_DRAFT * (BLOCK + chance**BLOCK)
        return (drafting + data.verify) / tokens_per_round(BLOCK, chance)

    return fitted_acceptance(speculative, data.speculative)


def _world(step_time: float, chance: float) -> World:
    """Return one machine; `step_time` in ms."""
    return World(
        device=DeviceSpec(1e-3 * DRAFT, 0.0),
        verifier=VerifierSpec(1e-3 * step_time, 0.0),
        draft=BetaDraft(mean=chance),
        tokens=800,
    )


CLAIMS = tuple(
    Claim(
        "AMUSD",
        f"times as fast as autoregressive, {data.name}",
        data.figure,
        speedup,
        (
            *plain(_world(data.autoregressive, 0.0), SEEDS),
            *seeds("colocated:amusd", _world(data.verify, acceptance(data)), SEEDS),
        ),
        within=0.08,
        remark="Acceptance is fitted to the published speculative decoding; times are of the released logs.",
    )
    for data in DATASETS
)
