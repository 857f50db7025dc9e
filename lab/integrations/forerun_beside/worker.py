"""Join the scheduler of requests with an engine: one request a session, and its drafts into the mailbox."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.core.verify_session import VerifySession
from cloud_verifier.server.worker import Worker
from common.acceptance import AcceptanceRule
from common.errors import ForerunError, LocalError, UnavailableError
from common.messages import Close, Open, Propose
from common.sampling import SamplingParams
from forerun_beside.drafts import KEY_CHARS, DraftTree, name_of
from forerun_beside.mailbox import Sender
from forerun_beside.scheduler import RequestScheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """Asks the engine for a text."""

    name: str  # the request's id
    tokens: tuple[int, ...]  # prompt, and the text so far
    prompt_length: int  # of the prompt alone
    max_tokens: int  # still to be written
    sampling: SamplingParams
    tenant: str  # the owner of cached prefixes


class EngineClient(Protocol):
    """Speaks to an engine that runs."""

    @property
    def rules(self) -> tuple[AcceptanceRule, ...]:
        """The acceptance rules that sessions may ask for."""
        ...

    def refuse(self, request: Open) -> None:
        """Raise `UserError` for a session that the engine cannot serve."""
        ...

    def texts(self, request: Request) -> AsyncGenerator[list[int], None]:
        """Yield the tokens of each step, past any end token. Closing the generator aborts the request. Raises
        `ForerunError`."""
        ...


class NoSteps(TargetEngine):
    """Stands for the engine where `Worker` wants one. Steps are never planned for it."""

    def __init__(self, info: TargetInfo) -> None:
        self.info = info

    def evaluate(self, plan: StepPlan) -> StepResult:
        raise LocalError("a step was planned for an engine that plans its own")


class RequestWorker(Worker):
    """A `Worker` whose sessions are requests of another engine. `sender` takes the drafts of edges to it."""

    scheduler: RequestScheduler

    def __init__(
        self,
        client: EngineClient,
        scheduler: RequestScheduler,
        sender: Sender,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(NoSteps(scheduler.info), scheduler, clock)
        self._client = client
        self._sender = sender
        self._requests: dict[int, tuple[str, asyncio.Task[None]]] = {}  # by stream: key of its drafts

    def receive(self, key: int, message: Open | Propose | Close) -> None:
        super().receive(key, message)
        session = self.scheduler.sessions.get(key)
        if session is None:
            return
        if isinstance(message, Open):
            name = secrets.token_hex(KEY_CHARS // 2)
            reading = asyncio.create_task(self._read(key, name, session))
            self._requests[key] = name, reading
        elif isinstance(message, Propose):
            self._sender.send(self._requests[key][0], DraftTree.of(session.tree))

    def disconnect(self, key: int) -> None:
        if key in self._requests:
            name, reading = self._requests.pop(key)
            reading.cancel()  # which aborts the request
            self._sender.send(name, DraftTree(0))
        super().disconnect(key)

    async def _read(self, key: int, name: str, session: VerifySession) -> None:
        """Commit what the engine writes until the text has ended."""
        opened, sampling = session.request, session.request.sampling
        request = Request(
            name_of(name),
            (*opened.prompt, *opened.committed),
            session.prompt_length,
            sampling.max_tokens - len(opened.committed),
            sampling,
            session.tenant,
        )
        error: ForerunError = UnavailableError("the engine ended the text before its end; reconnect")
        try:
            async with aclosing(self._client.texts(request)) as texts:
                async for tokens in texts:
                    self.scheduler.on_tokens(key, tokens, self._clock())
                    self._apply()
                    if session.ended:
                        return
        except ForerunError as caught:
            error = caught
        except Exception:  # outermost frame of this task: the edge learns of a defect, without its details
            logger.exception("! stream %d: the engine's answer could not be used", key)
            error = LocalError("the engine's answer could not be used; the verifier's log has more")
        if not session.ended:
            self.violate(key, error)
