"""Drafts of half a billion parameters on a processor: whatever is best there, `adaptive` finds it."""

from dataclasses import replace
from statistics import fmean

import pytest

from simulator.drafts import BetaDraft
from simulator.figures import pace
from simulator.link_spec import LinkSpec
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World

pytestmark = pytest.mark.slow


ROWS = {
    "q8_0": ((1, 0.023), (2, 0.085), (3, 0.106), (4, 0.124), (8, 0.135)),
    "q4_0": ((1, 0.017), (2, 0.045), (3, 0.062), (4, 0.065), (8, 0.077)),
}
"""Seconds of a draft step by rows, as measured on one core (docs/edge.md)."""


def real_size(draft: str, step_ms: float, right: float) -> World:
    rows = ROWS[draft]
    one, eight = rows[0][1], rows[-1][1]
    reads = ((1, 0.8 * one), (2, rows[1][1] - one), (8, eight - one), (32, eight - one + 24 * 0.007))
    device = DeviceSpec(one, draft_times=rows, read_times=reads, wake_time=0.3 * one)
    verifier = VerifierSpec(1e-3 * step_ms, 1e-4)
    return World(LinkSpec(rtt=0.060), device, verifier, BetaDraft(mean=right), tokens=400)


def ratio(world: World, rivals: tuple[str, ...]) -> float:
    """`adaptive` over the best of `rivals`, on three seeds."""
    worlds = [replace(world, seed=world.seed + 1000 * number) for number in range(3)]
    times = [fmean(pace([run_scheme(each, w)[0].as_run()]) for w in worlds) for each in ("forerun", *rivals)]
    return times[0] / min(times[1:])


@pytest.mark.parametrize(
    ("draft", "step_ms", "right"),
    [("q8_0", 100, 0.88), ("q8_0", 60, 0.88), ("q8_0", 30, 0.88), ("q4_0", 100, 0.3), ("q4_0", 60, 0.3)],
)
def test_it_is_as_fast_as_the_best_policy(draft: str, step_ms: float, right: float) -> None:
    assert ratio(real_size(draft, step_ms, right), ("off", "chain", "tree")) < 1.02


def test_far_away_it_is_as_fast_as_a_chain() -> None:
    """A round trip of several steps, a draft of half a step that is nearly always right: a look ends after
    the text went on, and catching up takes many draft steps."""
    slow_rows = DeviceSpec(
        0.05275224368989533,
        0.020166797649210248,
        draft_times=(
            (1, 0.05275224368989533),
            (2, 0.19518330165261275),
            (4, 0.2927749524789191),
            (8, 0.31229328264418044),
        ),
        read_times=((1, 0.05275224368989533), (32, 0.5433481100059219)),
    )
    lossy = World(
        LinkSpec(rtt=0.168228632332338, jitter=0.0019309297727238344, loss=0.02),
        slow_rows,
        VerifierSpec(0.07069251882587752, 0.0007069251882587752),
        BetaDraft(mean=0.948443995021768),
        tokens=400,
    )
    waking = DeviceSpec(
        0.026650260277183313,
        0.017901863989143247,
        read_times=((1, 0.026650260277183313), (32, 0.1092660671364516)),
        wake_time=0.013325130138591657,
    )
    far = World(
        LinkSpec(rtt=0.2888536164109282),
        waking,
        VerifierSpec(0.06535888862205899, 0.0019607666586617697),
        BetaDraft(mean=0.9481581751567018),
        tokens=400,
        seed=117,
    )
    assert ratio(lossy, ("chain",)) < 1.02
    assert ratio(far, ("chain",)) < 1.02
