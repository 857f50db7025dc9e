"""A smaller draft in front of the device's: the same text, in fewer batches where it agrees."""

from dataclasses import replace

import pytest

from simulator.files import experiment_from
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, SmallDraft, World

SLOW = World(device=DeviceSpec(0.012, 0.0003), tokens=150)


def with_small(agreement: float, time: float = 0.0005) -> World:
    return replace(SLOW, device=replace(SLOW.device, small=SmallDraft(time, agreement)))


def end(world: World, scheme: str) -> float:
    return run_scheme(scheme, world)[0].arrivals[-1]


@pytest.mark.parametrize("scheme", ["sync:4", "chain", "tree", "forerun"])
def test_a_small_draft_that_agrees_saves_time(scheme: str) -> None:
    assert end(with_small(0.9), scheme) < 0.97 * end(SLOW, scheme)


def test_a_chain_of_a_small_draft_that_never_agrees_is_paid_for_in_vain() -> None:
    plain, helped = (run_scheme("sync:4", world)[0].stats for world in (SLOW, with_small(0.0)))
    each = 4 * (0.0005 + 0.0003)
    assert helped.draft_time == pytest.approx(plain.draft_time + each * plain.draft_steps)


def test_a_small_draft_that_always_agrees_pays_one_step_for_five_tokens() -> None:
    world = replace(with_small(1.0, 0.0), device=DeviceSpec(0.010, 0.0, small=SmallDraft(0.0, 1.0)))
    stats = run_scheme("sync:5", world)[0].stats
    assert stats.draft_time == pytest.approx(0.010 * stats.proposed / 5, rel=0.02)


def test_a_small_draft_is_read_from_a_world() -> None:
    found = experiment_from({"device": {"small": {"ms": 0.5, "agreement": 0.7, "tokens": 3}}})
    assert found.world.device.small == SmallDraft(0.0005, 0.7, 3)
