"""A draft whose step buys several levels: the same text, and depth is cheap where its masks see."""

from dataclasses import replace

import pytest

from common.errors import UserError
from simulator.drafts import BetaDraft
from simulator.files import experiment_from
from simulator.link_spec import LinkSpec
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, SmallDraft, World

SLOW = World(LinkSpec(rtt=0.06), DeviceSpec(0.060, 0.0), draft=BetaDraft(0.9, 2.0), tokens=150)


def parallel(sight: float, levels: int = 8) -> World:
    draft = BetaDraft(0.9, 2.0, sight=sight)
    return replace(SLOW, device=replace(SLOW.device, levels=levels), draft=draft)


def end(world: World, scheme: str) -> float:
    return run_scheme(scheme, world)[0].arrivals[-1]


@pytest.mark.parametrize("scheme", ["sync:8", "chain", "forerun"])
def test_masks_save_time(scheme: str) -> None:
    assert end(parallel(0.98), scheme) < 0.85 * end(SLOW, scheme)


def test_a_plain_draft_of_this_pace_rests_where_one_with_masks_does_not() -> None:
    streaming = end(SLOW, "server_streaming")
    assert end(SLOW, "forerun") == pytest.approx(streaming, rel=0.05)
    assert end(parallel(0.95), "forerun") < streaming / 1.15


def test_masks_that_see_nothing_cost_little() -> None:
    assert end(parallel(0.0), "forerun") < 1.05 * end(SLOW, "server_streaming")


def test_masks_that_see_all_pay_one_step_for_all_levels() -> None:
    stats = run_scheme("sync:8", replace(parallel(1.0), draft=BetaDraft(1.0, 2.0, sight=1.0)))[0].stats
    assert stats.draft_time == pytest.approx(0.060 * stats.proposed / 8, rel=0.05)


def test_levels_and_sight_are_read_from_a_world() -> None:
    found = experiment_from({"device": {"levels": 8}, "draft": {"mean": 0.8, "sight": 0.9}}).world
    assert (found.device.levels, found.draft) == (8, BetaDraft(0.8, sight=0.9))


def test_wrong_levels_are_refused() -> None:
    with pytest.raises(UserError):
        DeviceSpec(levels=0)
    with pytest.raises(UserError):
        DeviceSpec(levels=2, small=SmallDraft(0.001, 0.5))
    with pytest.raises(UserError):
        BetaDraft(sight=1.5)
