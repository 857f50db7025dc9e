"""Implements `python -m lab demo --page`: serves the daemon's page over the demo's link."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
import webbrowser
from dataclasses import asdict, dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge_client.edge_daemon import DaemonSurroundings, EdgeDaemon
from edge_client.formats.api_error import ApiError
from edge_client.formats.fields import Fields
from edge_client.pair import DraftFiles
from edge_client.process.paths import EdgePaths
from edge_client.settings import ApiSection, DraftSection, EdgeConfig, VerifierSection
from forerun.cli import own_version
from forerun.terminal import note
from lab.rig import VERIFIER, Processes, RigSettings
from simulator.proxy import Link, rtt

DEMO_LINK = "/v1/demo/link"

MAX_RTT_MS = 2000.0
"""Largest round-trip time; the page's own slider ends earlier."""


@dataclass(frozen=True, slots=True)
class DemoLinkState:
    """Holds the impairments of the link to the verifier."""

    rtt_ms: float = 0.0  # round trip
    jitter_ms: float = 0.0  # of the round trip
    down: bool = False  # nothing passes


NO_IMPAIRMENTS = DemoLinkState()


def read_link(body: bytes, now: DemoLinkState) -> DemoLinkState:
    """Return the link state that a request asks for; omitted fields stay as `now`. Raise `ApiError`."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError: also bytes that are no UTF-8
        raise ApiError(400, f"the body is not JSON: {error}"[:300], code="invalid_json") from error
    if not isinstance(given, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    fields = Fields(given)
    state = DemoLinkState(
        rtt_ms=fields.number("rtt_ms", now.rtt_ms, 0.0, MAX_RTT_MS),
        jitter_ms=fields.number("jitter_ms", now.jitter_ms, 0.0, MAX_RTT_MS),
        down=fields.flag("down", now.down),
    )
    fields.refuse_rest()
    return state


class DemoLink:
    """Lets the page's sliders show and change the link: `GET` and `POST /v1/demo/link`."""

    def __init__(self, link: Link, state: DemoLinkState = NO_IMPAIRMENTS) -> None:
        self.link, self.state = link, state

    @property
    def routes(self) -> tuple[Route, ...]:
        """Return the routes, without which the page shows no sliders."""
        return (
            Route(DEMO_LINK, self._show, methods=["GET"]),
            Route(DEMO_LINK, self._post, methods=["POST"]),
        )

    async def _show(self, request: Request) -> Response:
        return JSONResponse(asdict(self.state))

    async def _post(self, request: Request) -> Response:
        try:
            wanted = read_link(await request.body(), self.state)
        except ApiError as error:
            return JSONResponse(error.body, status_code=error.status)
        self.link.rtt(wanted.rtt_ms, jitter=wanted.jitter_ms)
        if wanted.down and not self.state.down:  # refuse new connections, and reset open ones
            await self.link.disable()
            self.link.cut()
        elif self.state.down and not wanted.down:
            await self.link.enable()
        self.state = wanted
        return await self._show(request)


async def show_page(settings: RigSettings, listen: str, browser: bool) -> None:
    """Serve the page until Ctrl-C; open it if `browser` is set. Raise `UserError` if `listen` is taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        note("loading the target model, in a process of its own")
        processes = await stack.enter_async_context(Processes(pin=False))
        _, address = await processes.start_verifier(*settings.target_options, module=VERIFIER)
        toxics = rtt(settings.rtt_ms, jitter=settings.jitter_ms)
        link = await stack.enter_async_context(Link.to(address, *toxics))
        sliders = DemoLink(link, DemoLinkState(settings.rtt_ms, settings.jitter_ms))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="forerun-demo-"))

        def tell(address: str, token: str) -> None:
            where = f"http://{address}/#token={token}"
            print(f"\nThe page is at {where}\nCtrl-C ends the demonstration.", flush=True)
            if browser:
                webbrowser.open(where)

        around = DaemonSurroundings(
            version=own_version(),
            drafts={"": DraftFiles(settings.draft, tokens=settings.tokens)},
            routes=sliders.routes,
            on_ready=tell,
        )
        config = EdgeConfig(
            verifier=VerifierSection(addresses=(str(link.address),), fallback="draft"),
            draft=DraftSection(model=settings.draft, threads=1),
            api=ApiSection(listen=listen),
        )
        paths = EdgePaths(*(Path(folder, name) for name in ("config", "state", "cache", "run")))
        await EdgeDaemon(config, paths, around).run(stop)
