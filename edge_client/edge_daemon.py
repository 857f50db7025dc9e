"""The daemon put together: draft model, verifiers, texts, the local API, and whoever watches over it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from common.errors import LocalError, UserError
from common.privacy import Privacy, privacy_named
from common.vocabulary import Vocabulary
from edge_client import daemon_file
from edge_client.api.app import Api, ApiSettings
from edge_client.api.connections import raise_descriptor_limit
from edge_client.api.listening import UNIX, Listening
from edge_client.api.page import page_routes
from edge_client.api.security import Gate
from edge_client.api.service import Defaults, TextService
from edge_client.api.tree import tree_routes
from edge_client.config import EdgeConfig
from edge_client.config.checks import is_loopback
from edge_client.config.sections import DraftSection, VerifierSection
from edge_client.core.config import Fallback
from edge_client.core.policies import make_policy
from edge_client.core.priors import PriorTable
from edge_client.daemon.device import Device, DeviceSettings
from edge_client.daemon.journal import Journal
from edge_client.daemon.metrics import metrics_page
from edge_client.draft_model import DraftModel
from edge_client.llama.model import LlamaModel
from edge_client.llama.settings import LlamaSettings
from edge_client.llama.trial import Trials
from edge_client.notify import Notifier, Watchdog, loop_ping
from edge_client.paths import EdgePaths, make_private
from edge_client.status import StatusPage, verifier_status
from edge_client.tls import TlsSettings
from edge_client.token_file import ensure_token
from edge_client.verifiers import Verifiers

if TYPE_CHECKING:
    from edge_client.fleet.fleet import Fleet
    from edge_client.fleet_link import Reconfigure

logger = logging.getLogger(__name__)

DURABLE = "durable"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the command line found out for the daemon."""

    version: str
    draft_file: str  # of the draft model, or of one whose tokens are the target's
    priors: PriorTable | None = None
    notify_socket: str = ""  # of the service manager; empty: there is none
    watchdog: float | None = None  # seconds that the service manager waits for a sign of life
    routes: tuple[Route, ...] = ()  # beside the API's own
    reconfigure: Reconfigure = field(default=lambda values: EdgeConfig())  # with what a fleet sets
    on_ready: Callable[[str, str], None] = field(default=lambda address, token: None)


class EdgeDaemon:
    """One daemon. `run` it once.

    Args: config; paths, whose folders are made as they are needed; around. Raises `UserError` from `run` for
    whatever keeps it from starting.
    """

    def __init__(self, config: EdgeConfig, paths: EdgePaths, around: Surroundings) -> None:
        self._config = config
        self._paths = paths
        self._around = around
        self._began_at = time.monotonic()
        self._notifier = Notifier(around.notify_socket)
        self._fleet: Fleet | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let requests end for `service.stop_timeout` seconds."""
        raise_descriptor_limit()
        make_private(self._paths.state)
        daemon_file.refuse_second(self._paths.daemon)
        token = self._token()
        async with contextlib.AsyncExitStack() as stack:
            drafts, words = self._models(stack)
            vocabulary = Vocabulary(words.token_table())
            verifiers = await stack.enter_async_context(self._verifiers(vocabulary))
            device = Device(words, vocabulary, verifiers, drafts, self._device_settings())
            page = self._status_page(device, drafts, verifiers)
            app = self._api(device, words, page, token)
            stack.push_async_callback(app.streams.close)
            listening = await stack.enter_async_context(self._listening(app))
            stack.enter_context(self._announced(listening.address, token))
            await stack.enter_async_context(self._watched(drafts))
            if self._config.fleet.broker:
                await stack.enter_async_context(self._in_fleet(device, app, drafts, verifiers, page))
            await self._until_told(stop, listening)
            self._notifier.stopping("waiting for requests to end")

    # Parts ------------------------------------------------------------------------------------------------

    def _llama(self) -> LlamaSettings:
        draft = self._config.draft
        return LlamaSettings(
            path=self._around.draft_file,
            n_ctx=draft.context,
            threads=draft.threads,
            gpu_layers=draft.gpu_layers,
        )

    def _models(self, stack: contextlib.AsyncExitStack) -> tuple[DraftModel | None, LlamaModel]:
        """The draft model, if one is to draft, and the tokens. The file is tried before it is loaded here."""
        draft, trials = self._config.draft, Trials(self._paths.tried)
        if draft.policy == "off":
            trials.ensure(self._llama(), weights=False)
            return None, stack.enter_context(LlamaModel(self._llama(), weights=False))
        drafts = DraftModel(self._llama(), draft.seats, draft.keep_alive, trials=trials)
        stack.push_async_callback(drafts.close)
        return drafts, drafts.tokens

    def _verifiers(self, vocabulary: Vocabulary) -> Verifiers:
        section = self._config.verifier
        tls = verifier_tls(section)
        return Verifiers(section.addresses, vocabulary=vocabulary, tls=tls, insecure=section.insecure)

    def _device_settings(self) -> DeviceSettings:
        config = self._config
        return DeviceSettings(
            seats=config.draft.seats,
            max_waiting=config.api.max_queue,
            ngrams=config.draft.ngrams if config.draft.recall else 0,
            patience=config.verifier.patience,
            privacy=privacy_named(config.verifier.privacy),
            priors=self._around.priors,
        )

    def _api(self, device: Device, words: LlamaModel, page: StatusPage, token: str) -> Api:
        config = self._config
        defaults = Defaults(
            draft_name=Path(self._around.draft_file).stem if device.can_draft else "",
            policy=policy_of(config.draft),
            recall=config.draft.recall,
            fallback=Fallback(config.verifier.fallback),
            template=words.chat_template,
        )
        gate = Gate(
            token=token,
            hosts=(*config.api.allowed_hosts, *_host(config.api.listen)),
            origins=config.api.allowed_origins,
            is_socket=config.api.listen.startswith(UNIX),
        )
        settings = ApiSettings(
            gate,
            max_body_bytes=config.api.max_body_bytes,
            keep=config.api.resume_ttl,
            limit=config.api.request_timeout,
            resumes=config.api.resume != "off",
        )
        reachable = lambda: {each["address"]: each["reachable"] for each in page.verifiers()}  # noqa: E731
        return Api(
            TextService(device, defaults),
            settings,
            status=page,
            ready=page.why_not_ready,
            metrics=metrics_page(device, reachable) if config.api.metrics else None,
            journal=self._journal(),
            more=(*(page_routes() if config.api.page else ()), *tree_routes(device), *self._around.routes),
        )

    def _journal(self) -> Journal | None:
        if self._config.api.resume != DURABLE:
            return None
        return Journal(make_private(self._paths.journal))

    def _token(self) -> str:
        """Of the API; empty where none is asked for."""
        api = self._config.api
        if not api.auth or api.listen.startswith(UNIX):
            return ""
        return ensure_token(self._token_file)

    @property
    def _token_file(self) -> Path:
        return _path(self._config.api.token_file) or self._paths.token

    def _status_page(self, device: Device, drafts: DraftModel | None, verifiers: Verifiers) -> StatusPage:
        about = {
            "version": self._around.version,
            "pid": os.getpid(),
            "started_at": round(time.time(), 1),
            "page": self._config.api.page and not self._config.api.listen.startswith(UNIX),
        }
        return StatusPage(
            device,
            Fallback(self._config.verifier.fallback),
            about,
            draft=lambda: _draft_status(drafts, self._around.draft_file),
            verifiers=lambda: [verifier_status(each) for each in verifiers.snapshot()],
            fleet=lambda: self._fleet.status().as_json() if self._fleet is not None else {},
            uptime=lambda: time.monotonic() - self._began_at,
        )

    def _listening(self, app: Api) -> Listening:
        """Streams of the last run are there before anybody can ask for one, and not before the address is
        ours: another daemon that has it writes their files."""
        api = self._config.api
        grace = self._config.service.stop_timeout
        return Listening(
            app.app, api.listen, grace=grace, cert=api.tls_cert, key=api.tls_key, before=app.streams.go_on
        )

    # Life -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _announced(self, address: str, token: str) -> Iterator[None]:
        """Client commands find it and the service manager knows that it serves, while the block runs."""
        record = daemon_file.this_process(
            started_at=time.time(),
            listen=address,
            version=self._around.version,
            token_file=str(self._token_file) if token else "",
            tls_cert=self._config.api.tls_cert,
            log_file=self._config.log.file,
        )
        daemon_file.write(self._paths.daemon, record)
        self._notifier.ready(f"serving at {address}")
        logger.info("serving at %s", address)
        if self._config.verifier.privacy == Privacy.OFF.title:
            logger.warning("privacy is off: sizes and times on the way to verifiers tell of the texts")
        self._around.on_ready(address, token)
        try:
            yield
        finally:
            daemon_file.remove(self._paths.daemon, record)

    @contextlib.asynccontextmanager
    async def _watched(self, drafts: DraftModel | None) -> AsyncIterator[None]:
        """The service manager's watchdog is fed meanwhile, if it has one."""
        if self._around.watchdog is None:
            yield
            return
        patience = self._around.watchdog

        async def drafter_ping() -> None:
            if drafts is not None and not await drafts.ping(patience):
                raise LocalError("the draft model's thread does not answer")

        watchdog = Watchdog(self._notifier.alive, patience, loop_ping, drafter_ping)
        task = asyncio.create_task(watchdog.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    @contextlib.asynccontextmanager
    async def _in_fleet(
        self, device: Device, app: Api, drafts: DraftModel | None, verifiers: Verifiers, page: StatusPage
    ) -> AsyncIterator[None]:
        """A member of its fleet meanwhile. What goes wrong there is told, and ends nothing here."""
        from edge_client.fleet_link import (
            FleetLink,
            fleet_settings,
            keep_telling,
        )  # who has none starts sooner

        around = self._around
        link = FleetLink(
            device=device,
            service=app.service,
            drafts=drafts,
            verifiers=verifiers,
            mode=page.mode_word,
            reconfigure=around.reconfigure,
            version=around.version,
            began_at=self._began_at,
        )
        self._fleet = link.fleet(fleet_settings(self._config.fleet, self._paths.state))
        tasks = [asyncio.create_task(each) for each in (self._fleet.run(), keep_telling(self._fleet, link))]
        for task in tasks:
            task.add_done_callback(_tell_failure)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _until_told(self, stop: asyncio.Event, listening: Listening) -> None:
        told, broken = asyncio.create_task(stop.wait()), asyncio.create_task(listening.wait())
        await asyncio.wait({told, broken}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if broken.done():
            await broken
        broken.cancel()


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("! this device is not in its fleet any more: %s", error)


def _draft_status(drafts: DraftModel | None, file: str) -> dict[str, Any]:
    if drafts is None:
        return {"state": "off", "file": file}
    return {
        "state": drafts.state.value,
        "file": file,
        "size_bytes": drafts.size_bytes,
        "seats": drafts.num_seats,
        "used": drafts.num_used,
        "unloads_in_s": None if drafts.seconds_left is None else round(drafts.seconds_left, 1),
        "error": drafts.failure,
    }


def verifier_tls(section: VerifierSection) -> TlsSettings | None:
    """None for plain text. Raises `UserError` for addresses of both kinds: one setting holds for all."""
    plain = [address for address in section.addresses if section.is_plain(address)]
    if len(plain) == len(section.addresses):
        return None
    if plain:
        raise UserError(
            f"the verifiers {', '.join(plain)} are on this machine, and others are not; give TLS settings, "
            "which then hold for all, or allow plain text to all with verifier.insecure"
        )
    ca, cert, key, token = (
        _path(name) for name in (section.tls_ca, section.tls_cert, section.tls_key, section.token_file)
    )
    return TlsSettings(ca, cert, key, section.tls_server_name, token)


def policy_of(section: DraftSection) -> str:
    """The growth policy, held to the power budget. Raises `UserError` for one that knows none."""
    steps = section.power_steps_per_second
    if not steps:
        return section.policy
    policy = f"{section.policy}{',' if ':' in section.policy else ':'}max_steps_per_second={steps:g}"
    make_policy(policy)
    return policy


def _host(listen: str) -> tuple[str, ...]:
    """By which clients know it; none of a unix socket, nor of all addresses at once."""
    host = "" if listen.startswith(UNIX) else listen.rpartition(":")[0]
    return (host.lower(),) if host not in ("", "0.0.0.0", "[::]") else ()


def _path(name: str) -> Path | None:
    return Path(name) if name else None


def is_public(listen: str) -> bool:
    """Whether other machines reach the API there."""
    return not (listen.startswith(UNIX) or is_loopback(listen))
