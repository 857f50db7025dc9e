"""A drafter beside the target: what it guesses is as right as the world says, and both ends together win."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import GuessItem, GuessPlan
from common.calibration import Confidence
from common.errors import UserError
from common.sampling import SamplingParams
from simulator.drafts import BetaDraft
from simulator.events import Draws
from simulator.figures import SessionResult, pace
from simulator.files import experiment_from
from simulator.heads import HeadKnowledge, HeadsSpec, guess
from simulator.link_spec import LinkSpec
from simulator.schemes import FORERUN, SERVER_STREAMING, run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World

ACCURACY = (0.8, 0.7, 0.6)
TOLERATED = 1.02


def world(heads: HeadsSpec | None, rtt: float = 0.060, tokens: int = 400) -> World:
    verifier = VerifierSpec(heads=heads).with_product_limits()
    return World(LinkSpec(rtt=rtt), verifier=verifier, draft=BetaDraft(mean=0.8), tokens=tokens)


def item(position: int, depth: int) -> GuessItem:
    prefix = np.arange(position, dtype=np.int32)
    return GuessItem(1, prefix, 0, depth, 2, Confidence(), SamplingParams())


def test_each_level_is_as_often_right_as_the_world_says() -> None:
    knowledge = BetaDraft(mean=0.8).session(Draws(1, 1))
    guesses = HeadKnowledge(HeadsSpec(ACCURACY), knowledge, Draws(1, 1))
    right, asked = [0] * 3, [0] * 3
    for position in range(1, 6000):
        for said in guess({1: guesses}, GuessPlan((item(position, 3),))).guesses[0]:
            level, truth = len(said.path), knowledge.truth(position + len(said.path) + 1)
            if all(token == knowledge.truth(position + at + 1) for at, token in enumerate(said.path)):
                asked[level] += 1
                right[level] += said.tokens[0] == truth
            assert list(said.scores) == sorted(said.scores, reverse=True)
            assert len(set(said.tokens)) == len(said.tokens)
    shares = [hits / number for hits, number in zip(right, asked, strict=True)]
    assert shares == pytest.approx(ACCURACY, abs=0.02)


GOOD = HeadsSpec((0.75, 0.7, 0.68, 0.66))
POOR = HeadsSpec((0.25,) * 5, time=0.002, time_per_level=0.0005, k=8.0, likeness=0.4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "one",
    [
        world(GOOD, 0.0),
        world(GOOD, 0.060),
        replace(world(POOR, 0.0094), device=DeviceSpec(0.0037, 0.0025), draft=BetaDraft(mean=0.777)),
    ],
)
def test_both_ends_are_as_fast_as_the_better_one(one: World) -> None:
    def ms(scheme: str, spec: HeadsSpec | None) -> float:
        worlds = [replace(one, verifier=replace(one.verifier, heads=spec), seed=seed) for seed in (1, 2)]
        return fmean(
            pace([each.as_run() for each in run_scheme(scheme, each_world)]) for each_world in worlds
        )

    heads = one.verifier.heads
    alone = min(ms(SERVER_STREAMING, heads), ms(FORERUN, None))
    assert ms(FORERUN, heads) < TOLERATED * alone


@pytest.mark.slow
def test_a_device_sends_less_to_a_verifier_that_drafts_well() -> None:
    def sent(spec: HeadsSpec | None) -> float:
        return only(run_scheme(FORERUN, world(spec))).stats.proposed / 400

    assert sent(HeadsSpec((0.92,) * 8)) < 0.2 * sent(None)


@pytest.mark.parametrize(
    "heads", [3, {"accuracy": "high"}, {"accuracy": [1.5]}, {"accuracy": []}, {"k": 2.0}]
)
def test_heads_that_cannot_be_are_refused(heads: object) -> None:
    with pytest.raises(UserError):
        experiment_from({"verifier": {"heads": heads}})


def only(results: list[SessionResult]) -> SessionResult:
    (found,) = results
    return found
