"""A middle tier in the simulator: what its model knows, and when three places beat two."""

from dataclasses import replace

import pytest

from common.errors import UserError
from schemes.relay.tier import TieredDraft, TierSpec, both_knowledges
from simulator.files import experiment_from
from simulator.link_spec import LinkSpec
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, World

WORLD = World(
    link=LinkSpec(rtt=0.1),
    device=DeviceSpec(draft_time=0.004),
    draft=TieredDraft(mean=0.8, tier=TierSpec(rtt=0.01, draft_time=0.015, mean=0.9)),
    tokens=200,
)


def pace(scheme: str, world: World) -> float:
    """Seconds per token after the first."""
    (result,) = run_scheme(scheme, world)
    return (result.arrivals[-1] - result.arrivals[0]) / (len(result.arrivals) - 1)


def test_each_model_is_as_often_right_as_the_world_says() -> None:
    draft, middle = both_knowledges(WORLD, 0)
    places, agreed, right, both, device_right = 20_000, 0, 0, 0, 0
    for place in range(places):
        best, choice, truth = (
            draft.candidates(place)[0][0],
            middle.candidates(place)[0][0],
            middle.truth(place),
        )
        assert truth == draft.truth(place)
        agreed += best == choice
        right += choice == truth
        both += best == choice == truth
        device_right += best == truth
    assert agreed / places == pytest.approx(0.8, abs=0.01)
    assert right / places == pytest.approx(0.9, abs=0.01)
    assert both / right > 0.8, "what is easy is easy for both"
    assert both < device_right < right, "the device may be right by luck, and seldom is"


def test_three_places_beat_two_where_the_middle_model_is_good_and_slow() -> None:
    for world in (WORLD, replace(WORLD, seed=2)):
        relay = pace("relay", world)
        assert relay < 0.9 * min(pace("near", world), pace("forerun", world))


def test_a_middle_model_slower_than_the_target_costs_little() -> None:
    """The device's nodes pass it by: its policy sends them on before it has evaluated them."""
    slow = replace(WORLD, draft=TieredDraft(mean=0.8, tier=TierSpec(rtt=0.01, draft_time=0.060, mean=0.9)))
    assert pace("relay", slow) < pace("server_streaming", slow)


@pytest.mark.parametrize("scheme", ["near", "relay", "relay:tree"])
def test_a_world_without_a_tier_refuses_its_schemes(scheme: str) -> None:
    with pytest.raises(UserError, match="tier"):
        run_scheme(scheme, World(tokens=5))


@pytest.mark.parametrize(
    "change", [{"link": {"rtt_ms": 5}}, {"device": {"recall": True}}, {"tier": {"mean": 2.0}}]
)
def test_a_tier_that_cannot_be_is_refused(change: dict[str, dict[str, object]]) -> None:
    with pytest.raises(UserError):
        experiment_from({"tier": {"rtt_ms": 10}, **change})
