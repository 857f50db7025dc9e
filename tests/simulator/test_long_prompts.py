"""A prompt of 20,000 tokens: the draft model's reading of it delays no token."""

import pytest

from simulator.drafts import BetaDraft
from simulator.figures import SessionResult
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World

PROMPT, READING = 20_000, 20.0  # tokens; seconds that the draft model needs for them


def run(scheme: str, mean: float = 0.8, tokens: int = 1500) -> SessionResult:
    device = DeviceSpec(read_times=((1, 0.001), (PROMPT, READING)))
    verifier = VerifierSpec(step_time=0.030, step_time_per_node=0.00005)
    (found,) = run_scheme(
        scheme,
        World(device=device, verifier=verifier, draft=BetaDraft(mean), prompt_tokens=PROMPT, tokens=tokens),
    )
    return found


@pytest.mark.parametrize("mean", [0.2, 0.8])
def test_no_token_comes_later_than_from_the_verifier_alone(mean: float) -> None:
    alone, drafted = run("off", mean), run("adaptive", mean)
    assert drafted.arrivals[0] == pytest.approx(alone.arrivals[0], abs=0.001)
    late = [mine - theirs for mine, theirs in zip(drafted.arrivals, alone.arrivals, strict=True)]
    assert max(late) < 0.03, "not by one step"


def test_the_draft_catches_up_and_then_helps() -> None:
    alone, drafted = run("off"), run("adaptive")
    read = next(at for at, time in enumerate(drafted.arrivals) if time > READING + 1.0)
    assert drafted.arrivals[read - 1] == pytest.approx(alone.arrivals[read - 1], rel=0.05)
    rest = [each.arrivals[-1] - each.arrivals[read] for each in (alone, drafted)]
    assert rest[1] < 0.7 * rest[0]


@pytest.mark.parametrize("waits", [False, True])
def test_a_draft_that_waits_takes_no_step_before_the_first_token(waits: bool) -> None:
    found = dict[int, SessionResult]()
    for tokens in (1, 200):
        world = World(device=DeviceSpec(draft_waits=waits), draft=BetaDraft(0.8), tokens=tokens)
        (found[tokens],) = run_scheme("tree", world)
    assert (found[1].stats.draft_steps == 0) is waits
    assert found[200].stats.accepted > 50
