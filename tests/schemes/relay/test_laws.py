"""The laws of both machines hold for three of them in a row."""

import pytest

from common.sampling import SamplingParams
from tests.schemes.relay.relayed import RelayedWorld
from tests.worlds.models import target_alone
from tests.worlds.seeds import DRAFTERS, POLICIES, check_laws, spec_of
from tests.worlds.world import EdgeSpec, WorldSpec


def relayed(spec: WorldSpec, policy: str = "adaptive", drafter: str = "fair") -> RelayedWorld:
    world = RelayedWorld(spec, POLICIES[policy], DRAFTERS[drafter])
    world.run()
    return world


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_laws_hold_with_a_relay_on_many_seeds(first: int) -> None:
    """Streams of devices and relay break and fall silent, verifiers drain, both draft models lie."""
    policies, drafters = ("adaptive", "tree", "chain"), ("twin", "fair", "liar", "mute")
    for seed in range(first, first + 50):
        world = relayed(spec_of(seed), policies[seed % 3], drafters[seed % 4])
        check_laws(world)
        for relay in world.relays:
            assert relay.edge.end is not None, f"seed {seed}: the relay still holds a session"


@pytest.mark.parametrize("middle", ["twin", "liar"])
@pytest.mark.parametrize("device", ["twin", "liar"])
def test_the_text_does_not_depend_on_either_draft(middle: str, device: str) -> None:
    sampling = SamplingParams(temperature=0.9, max_tokens=60, seed=5, ignore_eos=True)
    spec = EdgeSpec((1, 2, 3), sampling, POLICIES["tree"], DRAFTERS[device])
    world = relayed(WorldSpec((spec,), seed=3, losses=2), drafter=middle)
    assert world.edges[0].session.text == target_alone((1, 2, 3), sampling, (0,))
