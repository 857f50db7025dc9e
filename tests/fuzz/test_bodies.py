"""Whatever a body holds, the daemon answers with a text or an error of the endpoint."""

import pytest

from edge_client.formats.dialects import DIALECTS
from lab.tools.bodies import GOOD
from tests.edge_client.api.world import Filling, world
from tests.fuzz.bodies import run

pytestmark = [pytest.mark.api, pytest.mark.grpc]


async def test_every_endpoint_is_played_and_its_good_bodies_are_answered() -> None:
    assert {each.path for each in DIALECTS} <= set(GOOD)
    async with world(endpoints=Filling) as daemon:
        for path, bodies in GOOD.items():
            for body in bodies:
                answer = await daemon.client.post(path, json=body)
                assert answer.status_code == 200, (path, answer.text)


@pytest.mark.parametrize("cases", [400, pytest.param(20_000, marks=pytest.mark.soak)])
async def test_no_body_brings_a_defect_or_waits_for_ever(cases: int) -> None:
    tally = await run(1, cases)
    assert sum(tally.values()) == cases
    assert {each.rpartition(" ")[2] for each in tally} >= {"200", "400"}
