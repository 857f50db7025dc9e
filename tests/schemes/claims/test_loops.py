"""Policies come to what their papers' own loops do on one machine, text by text."""

from dataclasses import replace
from statistics import fmean

import pytest

from schemes.claims.runner import mean_pace
from simulator.drafts import BetaDraft
from simulator.link_spec import LinkSpec
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World
from tests.schemes.claims import loops

pytestmark = pytest.mark.slow

ACCEPTANCES = (0.7, 0.85, 0.95)


def worlds(acceptance: float, draft_time: float = 0.005, step_time: float = 0.030) -> list[World]:
    """Three texts. The draft knows its pace, and wider steps cost nothing, as on a GPU."""
    device = DeviceSpec(draft_time, 0.0, draft_times=((1, draft_time), (64, draft_time)))
    verifier = VerifierSpec(step_time, 0.0)
    draft = BetaDraft(mean=acceptance)
    return [World(device=device, verifier=verifier, draft=draft, tokens=300, seed=seed) for seed in (1, 2, 3)]


def pace(scheme: str, texts: list[World]) -> float:
    """Milliseconds per token on one machine."""
    return mean_pace([run_scheme(f"colocated:{scheme}", world) for world in texts])


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_pearl_is_its_papers_loop(acceptance: float) -> None:
    texts = worlds(acceptance)
    expected = 1e3 * fmean(loops.pearl(world, gamma=6) for world in texts)
    assert pace("pearl", texts) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_amusd_is_its_papers_loop(acceptance: float) -> None:
    texts = worlds(acceptance, draft_time=0.012, step_time=0.027)
    expected = 1e3 * fmean(loops.amusd(world) for world in texts)
    assert pace("amusd", texts) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_saguaro_with_the_authors_settings_is_their_loop(acceptance: float) -> None:
    texts = worlds(acceptance, draft_time=0.00175, step_time=0.01828)
    expected = 1e3 * fmean(loops.ssd(world, block=7, fan_out=3)[0] for world in texts)
    assert pace("saguaro:block=7,fan_out=3", texts) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_specedge_is_its_papers_loop(acceptance: float) -> None:
    texts = [replace(world, link=LinkSpec(rtt=0.014)) for world in worlds(acceptance)]
    expected = 1e3 * fmean(loops.specedge(world, 32, 4, 8, 4) for world in texts)
    found = mean_pace([run_scheme("specedge:budget=32,depth=4,beam=8,children=4", world) for world in texts])
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_saguaros_own_rules_are_no_worse_than_the_authors_settings(acceptance: float) -> None:
    texts = worlds(acceptance, draft_time=0.00175, step_time=0.01828)
    assert pace("saguaro", texts) <= pace("saguaro:block=7,fan_out=3", texts)
