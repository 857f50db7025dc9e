"""Early hints save part of a step where the network is near, nothing where it is far, and change no text."""

from dataclasses import replace
from statistics import fmean

import pytest

from common.errors import UserError
from simulator.drafts import BetaDraft
from simulator.files import experiment_from
from simulator.link_spec import LinkSpec
from simulator.schemes import run_scheme
from simulator.world import VerifierSpec, World

NEAR = World(link=LinkSpec(rtt=0.0), draft=BetaDraft(mean=0.7), tokens=200)


def pace(world: World, scheme: str, hint_at: float, skill: float) -> float:
    verifier = VerifierSpec(hint_at=hint_at, hint_skill=skill)
    worlds = [replace(world, verifier=verifier, seed=seed) for seed in (1, 2, 3)]
    return fmean(run_scheme(scheme, each)[0].arrivals[-1] / each.tokens for each in worlds)


@pytest.mark.parametrize("scheme", ["chain", "forerun"])
def test_hints_that_hold_save_time_beside_the_target(scheme: str) -> None:
    """`run_scheme` itself compares the texts."""
    assert pace(NEAR, scheme, 0.25, 0.95) < 0.97 * pace(NEAR, scheme, 0.0, 0.0)


def test_hints_save_no_more_than_the_rest_of_each_step() -> None:
    without, helped = (pace(NEAR, "chain", at, 1.0) for at in (0.0, 0.5))
    steps = run_scheme("chain", replace(NEAR, verifier=VerifierSpec(hint_at=0.5, hint_skill=1.0)))[0].stats
    assert without - helped <= 0.5 * 0.030 * steps.target_steps / steps.committed * 1.1


def test_hints_are_read_from_a_world() -> None:
    spec = experiment_from({"verifier": {"hint_at": 0.5, "hint_skill": 0.8}}).world.verifier
    assert (spec.hint_at, spec.hint_skill) == (0.5, 0.8)
    with pytest.raises(UserError):
        experiment_from({"verifier": {"hint_at": 1.0}})
