"""The demo's link: told and changed over the API, field by field, within its bounds."""

import pytest

from edge_client.formats.api_error import ApiError
from lab.demo.page import MAX_RTT_MS, DemoLinkState, read_link
from simulator.proxy import Link

NOW = DemoLinkState(60.0, 5.0, True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"rtt_ms": -1}', "rtt_ms"),
        (b'{"rtt_ms": %d}' % (MAX_RTT_MS + 1), "rtt_ms"),
        (b'{"rtt_ms": NaN}', "rtt_ms"),
        (b'{"rtt_ms": true}', "rtt_ms"),
        (b'{"jitter_ms": "5"}', "jitter_ms"),
        (b'{"down": 1}', "down"),
        (b'{"up": true}', "up"),
        (b"[]", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_what_cannot_be_is_refused_by_name(body: bytes, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        read_link(body, NOW)
    assert refused.value.param == param


@pytest.mark.api
async def test_the_link_is_told_as_it_has_become() -> None:
    import httpx
    from starlette.applications import Starlette

    from lab.demo.page import DemoLink

    async with Link.to("127.0.0.1:1") as link:
        app = Starlette(routes=list(DemoLink(link).routes))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
            before = await client.get("/v1/demo/link")
            after = await client.post("/v1/demo/link", json={"rtt_ms": 150, "down": True})
            refused = await client.post("/v1/demo/link", json={"rtt_ms": "far"})
    assert before.json() == {"rtt_ms": 0.0, "jitter_ms": 0.0, "down": False}
    assert after.json() == {"rtt_ms": 150.0, "jitter_ms": 0.0, "down": True}
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "rtt_ms"
