"""Laws of worlds with several verifiers: which one serves each session, and that it does so independently."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from common.errors import UserError
from forerun.cli import main
from schemes.worlds.association import _Crowd
from simulator.events import Draws
from simulator.experiment import Pool
from simulator.files import experiment_from
from simulator.link_spec import LinkSpec
from simulator.schemes import FORERUN, SERVER_STREAMING, run_scheme
from simulator.world import NEAREST, VerifierSite, VerifierSpec, World, associated, dealt

PACE, MATCHING = "pace", "matching"
ASSOCIATIONS = NEAREST, PACE, MATCHING

SLOW = VerifierSpec(step_time=0.02, step_time_per_node=0.002)
CELLS = tuple(VerifierSite(SLOW, LinkSpec(rtt=rtt), spread=0.03) for rtt in (0.01, 0.02, 0.03))
CROWD = World(sites=CELLS, clients=18, tokens=30)


def rtts(world: World) -> list[list[float]]:
    return [
        [site.path(Draws(world.seed, key), place).rtt for place, site in enumerate(world.sites)]
        for key in range(world.num_sessions)
    ]


def test_the_nearest_verifier_serves_each_device() -> None:
    world = replace(CROWD, association=NEAREST)
    assert all(
        each[at] == min(each) and min(site.link.rtt for site in CELLS) <= each[at] <= 0.06
        for each, at in zip(rtts(world), associated(world), strict=True)
    )
    assert len(set(associated(world))) > 1, "devices are at different places"


def test_paces_spread_the_devices_that_the_nearest_would_have_to_serve_alone() -> None:
    near = replace(CROWD, sites=(replace(CELLS[0], spread=0.0), *CELLS[1:]), clients=30)
    assert set(associated(replace(near, association=NEAREST))) == {0}
    counts = [len(keys) for keys in dealt(replace(near, association=PACE))]
    assert sum(counts) == 30
    assert counts[0] < 24
    found = [
        fmean(each.arrivals[-1] for each in run_scheme(FORERUN, replace(near, association=association)))
        for association in ASSOCIATIONS
    ]
    assert found[0] > found[1]
    assert found[0] > found[2]


def test_a_device_goes_where_one_session_more_is_fast() -> None:
    """UARA: an empty verifier whose rows are dear is no better for the first session than a wide one."""
    narrow = VerifierSite(VerifierSpec(0.03, 0.03), LinkSpec(rtt=0.01))
    wide = VerifierSite(VerifierSpec(0.04, 0.0001), LinkSpec(rtt=0.01))
    assert set(associated(replace(CROWD, sites=(narrow, wide), association=PACE))) == {1}


@pytest.mark.parametrize("seed", range(1, 6))
def test_no_device_and_verifier_would_both_leave_their_match(seed: int) -> None:
    """Gale & Shapley 1962: a verifier that a device likes better is full of devices that it likes better."""
    world = replace(CROWD, seed=seed)
    crowd = _Crowd(world, rtts(world))
    found = crowd._accepted()
    places = [found.count(place) for place in range(3)]
    for device, own in enumerate(found):
        for other in range(3):
            mine = crowd._time(device, other, places[other])
            if mine < crowd._time(device, own, places[own]):
                held = [each for each, at in enumerate(found) if at == other]
                assert all(crowd._time(each, other, places[other]) <= mine for each in held)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_matching_is_about_as_good_as_the_best_of_all(seed: int) -> None:
    """Of 7 devices and 3 verifiers, whose 2,187 associations can be tried; no exchange improves it."""
    world = replace(CROWD, seed=seed, clients=7, association=MATCHING)
    crowd = _Crowd(world, rtts(world))
    found = list(associated(world))
    best = min(crowd._total(list(each)) for each in product(range(3), repeat=7))
    assert crowd._total(found) <= 1.01 * best
    assert crowd._exchanged(found) == found
    for other in (NEAREST, PACE):
        assert crowd._total(found) <= crowd._total(list(associated(replace(world, association=other))))


def test_one_site_is_as_a_world_with_one_verifier() -> None:
    alone = World(verifier=SLOW, link=LinkSpec(rtt=0.04, jitter=0.01), clients=3, tokens=30)
    site = VerifierSite(alone.verifier, alone.link)
    several = World(sites=(site,), clients=3, tokens=30)
    assert run_scheme(FORERUN, several) == run_scheme(FORERUN, alone)


@pytest.mark.parametrize("association", ASSOCIATIONS)
def test_each_session_has_its_text_and_its_place_whoever_serves_it(association: str) -> None:
    world = replace(CROWD, association=association)
    with Pool(2) as pool:
        (found,) = pool.map([(FORERUN, world)])
    assert found == run_scheme(FORERUN, world)
    streamed = run_scheme(SERVER_STREAMING, replace(world, association=NEAREST))
    assert [each.tokens for each in found] == [each.tokens for each in streamed]
    assert sorted(key for keys in dealt(world) for key in keys) == list(range(18))


DOCUMENT = {
    "clients": 4,
    "tokens": 20,
    "association": "matching",
    "schemes": ["forerun"],
    "verifiers": [
        {"step_ms": 20, "step_ms_per_node": 2, "link": {"rtt_ms": 5}, "spread_ms": 10},
        {"step_ms": 40, "link": {"profile": "lte"}},
    ],
}


def test_a_document_lists_verifiers_and_a_sweep_compares_associations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = experiment_from(DOCUMENT).world
    assert [site.verifier.step_time for site in world.sites] == [0.02, 0.04]
    assert [site.spread for site in world.sites] == [0.01, 0.0]
    assert world.association == MATCHING
    path = tmp_path / "w.json"
    path.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    assert main(["simulate", "run", str(path), "--repeats", "1", "--workers", "1"]) == 0
    assert "2 verifiers, association matching" in capsys.readouterr().out
    sweep = ["simulate", "sweep", str(path), "--repeats", "1", "--workers", "1", "--out", str(tmp_path / "s")]
    assert main([*sweep, "--axis", "association=nearest,pace"]) == 0
    table = (tmp_path / "s" / "results.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in table] == ["association", "nearest", "pace"]
    assert main([*sweep[:-1], str(tmp_path / "r"), "--axis", "rtt_ms=10"]) == 2
    assert main(["simulate", "replay", str(path)]) == 2
    assert "one verifier" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"association": "luck"}, "association is 'luck'; it can be nearest, matching, pace"),
        ({"link": {"rtt_ms": 10}}, "several verifiers have their own links and steps"),
        ({"verifier": {"step_ms": 10}}, "several verifiers have their own links and steps"),
        ({"clients": 1, "arrivals": {"rate_per_s": 1, "sessions": 3}}, "clients and|several verifiers"),
        ({"verifiers": [{"replicas": 2}]}, "one of several verifiers has no replicas"),
        ({"verifiers": [{"spread_ms": -1}]}, "spread is -0.001"),
        ({"verifiers": [{"rtt_ms": 1}]}, r"\[\[verifiers\]\] has no 'rtt_ms'"),
        ({"verifiers": []}, "association matching needs several verifiers"),
        ({"verifiers": {}}, r"no list of tables \[\[verifiers\]\]"),
    ],
)
def test_a_wrong_world_of_several_verifiers_is_refused(more: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        experiment_from({**DOCUMENT, **more})
