"""`forerun demo --page`: the daemon and its page over the demo's link, for a browser."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path

from edge_client.api.demo_link import LinkState, demo_routes
from edge_client.config import EdgeConfig
from edge_client.config.sections import ApiSection, DraftSection, VerifierSection
from edge_client.edge_daemon import EdgeDaemon, Surroundings
from edge_client.paths import EdgePaths
from forerun.cli import own_version
from forerun.paint import note
from forerun.rig import START_TIMEOUT, Child, RigSettings
from link import Link, rtt


@dataclass
class Knob:
    """The page's sliders. `down` refuses connections and resets those that are open."""

    link: Link
    state: LinkState = field(default_factory=LinkState)

    async def change(self, wanted: LinkState) -> None:
        """Make the link so."""
        self.link.rtt(wanted.rtt_ms, jitter=wanted.jitter_ms)
        if wanted.down and not self.state.down:
            await self.link.disable()
            self.link.cut()
        elif self.state.down and not wanted.down:
            await self.link.enable()
        self.state = wanted


async def show_page(settings: RigSettings, listen: str, fallback: str, browser: bool) -> None:
    """Serve the page until Ctrl-C. `browser`: open it there. Raises `UserError` if `listen` is taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        note("loading the target model, in a process of its own")
        verifier = await Child.start("verifier", *_verifier_arguments(settings))
        stack.push_async_callback(verifier.stop)
        address = (await verifier.read(START_TIMEOUT))["listening"]
        toxics = rtt(settings.rtt_ms, jitter=settings.jitter_ms)
        link = await stack.enter_async_context(Link.to(address, *toxics))
        knob = Knob(link, LinkState(settings.rtt_ms, settings.jitter_ms))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="forerun-demo-"))

        def tell(address: str, token: str) -> None:
            where = f"http://{address}/#token={token}"
            print(f"\nThe page is at {where}\nCtrl-C ends the demonstration.", flush=True)
            if browser:
                webbrowser.open(where)

        around = Surroundings(
            version=own_version(),
            draft_file=settings.draft,
            routes=demo_routes(lambda: knob.state, knob.change),
            on_ready=tell,
        )
        config = EdgeConfig(
            verifier=VerifierSection(addresses=(str(link.address),), fallback=fallback),
            draft=DraftSection(model=settings.draft, threads=1),
            api=ApiSection(listen=listen),
        )
        await EdgeDaemon(config, paths_below(Path(folder)), around).run(stop)


def paths_below(root: Path) -> EdgePaths:
    """Everything in one folder, which goes with the demonstration."""
    return EdgePaths(*(root / name for name in ("config", "state", "cache", "models", "run")))


def _verifier_arguments(settings: RigSettings) -> list[str]:
    common = ["verify", "--model", settings.target, "--listen", "127.0.0.1:0", "--json", "--threads", "1"]
    floor = ["--step-floor", str(settings.step_floor_ms)] if settings.step_floor_ms else []
    return [*common, "--grace", "0", "--log-level", "warning", *floor]
