"""The pace by which the edge ranks verifiers is the pace that the simulator finds."""

from dataclasses import replace

import pytest

from edge_client.core.verifier_choice import DraftSkill, token_time
from schemes.claims.runner import mean_pace
from simulator.drafts import BetaDraft
from simulator.link_spec import LinkSpec
from simulator.schemes import FORERUN, run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.6, 0.85])
@pytest.mark.parametrize("turn", [0.01, 0.03, 0.12])
@pytest.mark.parametrize("step", [0.005, 0.015])
def test_a_predicted_pace_is_about_the_simulated_one(mean: float, turn: float, step: float) -> None:
    """Within 30 %, less than what moves a session. The form of the prediction was chosen on such worlds;
    docs/adaptation.md has its error on others."""
    for rtt in (0.005, 0.03, 0.1, 0.3):
        world = World(
            link=LinkSpec(rtt=rtt),
            device=DeviceSpec(step),
            verifier=VerifierSpec(step_time=turn),
            draft=BetaDraft(mean=mean),
            tokens=200,
        )
        found = 1e-3 * mean_pace([run_scheme(FORERUN, replace(world, seed=seed)) for seed in (1, 2, 3)])
        assert token_time(rtt, turn, DraftSkill(mean, step)) == pytest.approx(found, rel=0.3)
