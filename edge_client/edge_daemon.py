"""Assembles the daemon: draft model, verifiers, texts, the local API, fleet and watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.routing import Route

from common.errors import LocalError
from common.privacy import Privacy
from edge_client.api.app import Api, ApiSettings
from edge_client.api.daemon_status import StatusPage
from edge_client.api.listening import UNIX, Listening, raise_descriptor_limit
from edge_client.api.page import page_routes, tree_routes
from edge_client.api.pairs import Pairs
from edge_client.api.security import Gate
from edge_client.api.stored import MOST, StoredResponses
from edge_client.draft.draft_models import DraftModels
from edge_client.pair import DraftFiles, Pair, open_pair
from edge_client.process import run_file as daemon_file
from edge_client.process.notify import Notifier, ServiceWatchdog
from edge_client.process.paths import EdgePaths, ensure_token, make_private, path_of
from edge_client.settings import EdgeConfig
from edge_client.texts.device_metrics import metrics_page
from edge_client.texts.queue import Admission
from edge_client.texts.resume import Journal

if TYPE_CHECKING:
    from edge_client.fleet.fleet_task import Fleet
    from edge_client.fleet.follower import Reconfigure

logger = logging.getLogger(__name__)

RESUME_TTL = 300.0
"""Seconds during which a broken stream can be resumed: a program's restart, or a change of networks."""

RESPONSE_TTL = 86_400.0
"""Seconds during which `previous_response_id` can name a response: a working day and its night."""

LAST_WORDS = 1.0
"""Seconds for clients to read that the daemon stops, before their connections are cut."""


@dataclass(frozen=True, slots=True)
class DaemonSurroundings:
    """Holds the facts that the command line found for the daemon."""

    version: str
    drafts: Mapping[str, DraftFiles]  # by pair
    notify_socket: str = ""  # of the service manager; empty: there is none
    watchdog: float | None = None  # seconds that the service manager waits for a sign of life
    routes: tuple[Route, ...] = ()  # beside the API's own
    flags: str = ""  # settings of its command line, for `forerun doctor`
    reconfigure: Reconfigure = field(default=lambda values: EdgeConfig())  # with what a fleet sets
    on_ready: Callable[[str, str], None] = field(default=lambda address, token: None)


class EdgeDaemon:
    """Runs one daemon, once. Makes the folders of `paths` as needed."""

    def __init__(self, config: EdgeConfig, paths: EdgePaths, around: DaemonSurroundings) -> None:
        self._config = config
        self._paths = paths
        self._around = around
        self._began_at = time.monotonic()
        self._notifier = Notifier(around.notify_socket)
        self._fleet: Fleet | None = None

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:
        """Serve until `stop` is set, then let requests end for `service.stop_timeout` seconds, or until
        `hurry` is set. Raise `UserError` if the daemon cannot start."""
        raise_descriptor_limit()
        make_private(self._paths.state)
        daemon_file.refuse_second(self._paths.daemon)
        token = self._token()
        async with contextlib.AsyncExitStack() as stack:
            pairs = await self._pairs(stack)
            page = self._status_page(pairs)
            app = self._api(pairs, page, token)
            stack.push_async_callback(app.streams.close)
            listening = await stack.enter_async_context(self._listening(app))
            stack.enter_context(self._announced(listening.address, token))
            await stack.enter_async_context(self._watched(pairs))
            if self._config.fleet.broker:
                await stack.enter_async_context(self._in_fleet(pairs, page))
            await self._until_told(stop, listening)
            self._notifier.stopping("waiting for requests to end")
            await self._let_end(pairs, app, listening, hurry or asyncio.Event())

    # Parts ------------------------------------------------------------------------------------------------

    async def _pairs(self, stack: contextlib.AsyncExitStack) -> list[Pair]:
        """Open all pairs, the default first. They share one queue, which admits as many texts at once as the
        largest pair has seats."""
        configs = self._config.each_pair
        seats = max(each.draft.seats for each in configs.values())
        admission, models = Admission(seats, self._config.api.max_queue), DraftModels(self._paths, stack)
        drafts = self._around.drafts
        return [
            await open_pair(name, config, drafts[name], models, admission, stack)
            for name, config in configs.items()
        ]

    def _api(self, pairs: Sequence[Pair], page: StatusPage, token: str) -> Api:
        config = self._config
        gate = Gate(
            token=token,
            hosts=(*config.api.allowed_hosts, *_host(config.api.listen)),
            origins=config.api.allowed_origins,
            is_socket=config.api.listen.startswith(UNIX),
        )
        settings = ApiSettings(
            gate,
            max_body_bytes=config.api.max_body_bytes,
            keep=RESUME_TTL,
            limit=config.api.request_timeout,
            resumes=config.api.resume != "off",
        )
        durable = config.api.resume == "durable"
        reachable = lambda: {each["address"]: each["reachable"] for each in page.verifiers()}  # noqa: E731
        texts = {pair.name: pair.texts for pair in pairs}
        return Api(
            Pairs(*(pair.service for pair in pairs)),
            settings,
            status=page,
            ready=page.why_not_ready,
            metrics=metrics_page(texts, reachable),
            journal=Journal(make_private(self._paths.journal)) if durable else None,
            stored=StoredResponses(
                RESPONSE_TTL,
                make_private(self._paths.responses) if durable else None,
                MOST if config.api.resume != "off" else 0,
            ),
            more=(
                *(page_routes() if config.api.page else ()),
                *tree_routes(*texts.values()),
                *self._around.routes,
            ),
        )

    def _token(self) -> str:
        """Return the API's token; empty if the API requires none."""
        api = self._config.api
        if not api.auth or api.listen.startswith(UNIX):
            return ""
        return ensure_token(self._token_file)

    @property
    def _token_file(self) -> Path:
        return path_of(self._config.api.token_file) or self._paths.token

    def _status_page(self, pairs: Sequence[Pair]) -> StatusPage:
        about = {
            "version": self._around.version,
            "pid": os.getpid(),
            "started_at": round(time.time(), 1),
            "page": self._config.api.page and not self._config.api.listen.startswith(UNIX),
            "demo_link": bool(self._around.routes),
        }
        return StatusPage(
            {pair.name: pair.status for pair in pairs},
            about,
            fleet=lambda: self._fleet.status() if self._fleet is not None else {},
            uptime=lambda: time.monotonic() - self._began_at,
        )

    def _listening(self, app: Api) -> Listening:
        """Return the listener. It resumes the last run's streams once it holds the address and before clients
        connect."""
        api, grace = self._config.api, self._config.service.stop_timeout + 2 * LAST_WORDS
        cert, key, before = api.tls_cert, api.tls_key, app.streams.go_on
        return Listening(app.app, api.listen, grace=grace, cert=cert, key=key, before=before)

    # Life -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _announced(self, address: str, token: str) -> Iterator[None]:
        """Announce the daemon to client commands and the service manager inside the block."""
        record = daemon_file.this_process(
            started_at=time.time(),
            listen=address,
            version=self._around.version,
            token_file=str(self._token_file) if token else "",
            tls_cert=self._config.api.tls_cert,
            log_file=self._config.log.file,
            flags=self._around.flags,
        )
        daemon_file.write(self._paths.daemon, record)
        self._notifier.ready(f"serving at {address}")
        where = f"; the token is in {self._token_file}" if token else ""
        logger.info("serving at %s%s", address, where)
        if any(each.verifier.privacy == Privacy.OFF.title for each in self._config.each_pair.values()):
            logger.warning("privacy is off: sizes and times of messages reveal facts about the texts")
        self._around.on_ready(address, token)
        try:
            yield
        finally:
            daemon_file.remove(self._paths.daemon, record)

    @contextlib.asynccontextmanager
    async def _watched(self, pairs: Sequence[Pair]) -> AsyncIterator[None]:
        """Feed the service manager's watchdog, if there is one, inside the block."""
        if self._around.watchdog is None:
            yield
            return
        patience = self._around.watchdog

        async def drafter_ping() -> None:
            drafts = [model for pair in pairs if pair.drafts is not None for model in pair.drafts.models]
            if not all(await asyncio.gather(*(each.ping(patience) for each in drafts))):
                raise LocalError("the draft model's thread does not answer")

        watchdog = ServiceWatchdog(self._notifier.alive, patience, drafter_ping)
        task = asyncio.create_task(watchdog.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    @contextlib.asynccontextmanager
    async def _in_fleet(self, pairs: Sequence[Pair], page: StatusPage) -> AsyncIterator[None]:
        """Join the fleet inside the block. Failures there are logged and end nothing here."""
        from edge_client.fleet.fleet_task import GOODBYE_TIME, Fleet  # a daemon without a fleet starts sooner
        from edge_client.fleet.follower import FleetFollower

        link = FleetFollower(
            pairs=pairs,
            mode=page.first.mode_word,
            reconfigure=self._around.reconfigure,
            version=self._around.version,
            began_at=self._began_at,
        )
        self._fleet = Fleet(self._config.fleet, self._paths.state, link)
        stop_listening = [pair.verifiers.listen(self._fleet.wake) for pair in pairs]
        task = asyncio.create_task(self._fleet.run())
        task.add_done_callback(_tell_failure)
        try:
            yield
        finally:
            for stop in stop_listening:
                stop()
            task.cancel()
            await asyncio.wait({task}, timeout=2 * GOODBYE_TIME)

    async def _until_told(self, stop: asyncio.Event, listening: Listening) -> None:
        stopping, broken = asyncio.create_task(stop.wait()), asyncio.create_task(listening.wait())
        await asyncio.wait({stopping, broken}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if broken.done():
            await broken
        broken.cancel()

    async def _let_end(
        self, pairs: Sequence[Pair], app: Api, listening: Listening, hurry: asyncio.Event
    ) -> None:
        """Let running texts end within the grace time, then send the others an error."""
        grace = self._config.service.stop_timeout
        num_live = sum(len(pair.texts.live) for pair in pairs)
        logger.info("stopping: %d texts are under way", num_live)
        listening.close()
        over, hurried = asyncio.create_task(listening.wait()), asyncio.create_task(hurry.wait())
        await asyncio.wait({over, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not over.done():
            app.stop()
            await asyncio.wait({over}, timeout=LAST_WORDS)
            listening.cut()
        await over


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("! this device left its fleet: %s", error)


def _host(listen: str) -> tuple[str, ...]:
    """Return the host that clients use; none for a unix socket or for all addresses."""
    host = "" if listen.startswith(UNIX) else listen.rpartition(":")[0]
    return (host.lower(),) if host not in ("", "0.0.0.0", "[::]") else ()  # noqa: S104 - compared only
