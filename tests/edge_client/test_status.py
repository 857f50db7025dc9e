"""Laws of the status page: what it tells of texts under way is how they stand."""

from __future__ import annotations

import asyncio

import pytest

from edge_client.core.config import Fallback
from edge_client.status import StatusPage

pytestmark = [pytest.mark.grpc, pytest.mark.api]


async def test_the_privacy_of_each_stream_is_told_beside_what_is_asked_for() -> None:
    """The verifier insists on no more than is asked for here: off is asked for, and padded holds."""
    from common.privacy import Privacy
    from edge_client.daemon.device import DeviceSettings
    from tests.edge_client.api.world import world

    async with world(settings=DeviceSettings(privacy=Privacy.OFF), step_time=0.005) as it:
        page = StatusPage(it.device, Fallback.WAIT, {}, dict, list, lambda: {"broker": ""}, lambda: 0.0)
        assert page()["streams"] == []
        text = asyncio.create_task(it.complete("abc", max_tokens=200, ignore_eos=True))
        async with asyncio.timeout(30):
            while not (streams := page()["streams"]):  # noqa: ASYNC110 - the page is what announces it
                await asyncio.sleep(0.005)
        told = page()
        assert told["privacy"] == "off"
        (one,) = streams
        assert (one["up"], one["down"], one["verifier"]) == ("padded", "padded", it.system.address)
        await text
        assert page()["streams"] == []


@pytest.mark.parametrize("fallback", list(Fallback))
async def test_a_daemon_whose_draft_fits_no_verifier_is_not_ready_and_says_why(fallback: Fallback) -> None:
    from tests.edge_client.api.world import world

    unfit = {"health": "unfit", "reachable": False, "why": "its token 5 is another"}
    async with world() as it:
        page = StatusPage(it.device, fallback, {}, dict, lambda: [unfit], dict, lambda: 0.0)
        assert "its token 5 is another" in page.why_not_ready()
