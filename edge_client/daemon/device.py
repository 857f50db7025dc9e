"""The device as clients share it: one draft model, some verifiers, and the texts under way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from common.errors import ForerunError, UnavailableError, UserError
from common.privacy import Privacy
from common.recall import NgramTable
from common.rpc.describe import Description
from common.vocabulary import Vocabulary
from edge_client.alone import DeviceGeneration
from edge_client.channel import Streams
from edge_client.core.config import Fallback, SessionConfig
from edge_client.core.policies import make_policy
from edge_client.core.policies.governor import Mode
from edge_client.core.priors import Beliefs, PriorTable
from edge_client.core.ranking import key_of
from edge_client.core.session import EdgeSession
from edge_client.daemon.admission import Admission, Place
from edge_client.daemon.alone_run import AloneRun
from edge_client.daemon.answer import Answer, Run
from edge_client.daemon.figures import Account, TextFigures
from edge_client.daemon.late_seat import LateSeat, Seat
from edge_client.daemon.request import TextRequest, Writer
from edge_client.daemon.totals import Totals
from edge_client.generation import Generation
from edge_client.text import Words

logger = logging.getLogger(__name__)


AT_ONCE = 0.05
"""Seconds that a text waits for its seat before it begins without: longer than a loaded model needs to give
one, and shorter than people notice."""

FIRST_BACKOFF = 0.02
"""Seconds, at least, before the first reconnect of a text: somebody reads it."""


class DraftSource(Protocol):
    """Where seats come from (`DraftModel`): loads the draft model when it is needed."""

    async def prepare(self, grammar: str) -> None:
        """Before a text under this grammar. Raises `ForerunError` if it cannot be drafted."""
        ...

    async def acquire(self, prompt: Sequence[int]) -> Seat:
        """Raises `ForerunError` if the model cannot be loaded or has no seat."""
        ...


class VerifierChoice(Protocol):
    """The verifiers there are (`Verifiers`)."""

    def route(self, key: str) -> Streams:
        """Where the streams of this session go, the first and all after it."""
        ...

    async def heard(self, patience: float) -> None:
        """Return when one has said what it serves, or nobody will soon, or after `patience` seconds."""
        ...

    def best(self) -> Description | None:
        """What the verifier says of itself that a session would go to now; None: none was reached yet."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """How texts are written where a request does not say."""

    seats: int = 8  # texts at once
    max_waiting: int = 64  # behind them, all clients together
    ngrams: int = 65536  # entries remembered of all texts; 0 = none
    patience: float = 0.8  # seconds without a verifier before a fallback begins
    privacy: Privacy = Privacy.PADDED  # of the wire to verifiers, at least
    priors: PriorTable | None = None  # how far the draft is trusted at first; None: as shipped


class Orders(Enum):
    """What the fleet's kill switch leaves of a device (docs/fleet.md)."""

    NONE = "none"  # all of it
    DRAFT_OFF = "draft_off"  # verifiers write alone
    REMOTE_OFF = "remote_off"  # no verifier is asked: the draft model writes alone
    HALT = "halt"  # no text at all

    def apply(self, request: TextRequest) -> TextRequest:
        """The request under these orders. Raises `UnavailableError` if it is to be refused."""
        match self:
            case Orders.NONE:
                return request
            case Orders.DRAFT_OFF if request.writer is not Writer.DRAFT:
                return replace(request, writer=Writer.TARGET)
            case Orders.REMOTE_OFF if request.logprobs is None:
                return replace(request, writer=Writer.DRAFT)
            case _:
                raise UnavailableError(
                    f"this device's fleet has ordered {self.value}: no such text is written"
                )


@dataclass(slots=True)
class Live:
    """A text under way, as status pages show it."""

    answer: Answer
    client: str
    notes: list[str] = field(default_factory=list)  # what its client should know, in sentences


class Device:
    """Writes texts.

    Args: words, the target's tokens as the draft's file has them; vocabulary, their table; verifiers; drafts,
    where the draft model's seats come from, or None to leave the verifiers alone; settings; clock, seconds,
    monotonic.
    """

    def __init__(
        self,
        words: Words,
        vocabulary: Vocabulary,
        verifiers: VerifierChoice,
        drafts: DraftSource | None,
        settings: DeviceSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.words = words
        self.vocabulary = vocabulary
        self.settings = settings
        self.admission = Admission(settings.seats, settings.max_waiting)
        self.live: dict[str, Live] = {}  # by the request's id, in the order of beginning
        self.totals = Totals()
        self.recent: deque[tuple[str, TextFigures]] = deque(maxlen=64)  # the newest texts that ended
        self.verifiers = verifiers
        self._drafts = drafts
        self._clock = clock
        self._beliefs = Beliefs(settings.priors)
        self._ngrams = NgramTable(settings.ngrams) if settings.ngrams else None
        self._numbers = itertools.count(1)
        self._name = secrets.token_hex(16)  # nobody else's
        self.orders = Orders.NONE

    @property
    def max_positions(self) -> int:
        """Longest prompt and text together that the verifier takes; 0: not known."""
        found = self.verifiers.best()
        return found.max_positions if found is not None else 0

    @property
    def can_draft(self) -> bool:
        """Whether there is a draft model."""
        return self._drafts is not None

    def _eos_ids(self, writer: Writer) -> tuple[int, ...]:
        """The end tokens of who writes: the target's own, which may be none; until a verifier has told them,
        and for the draft model alone, those of the draft's file."""
        found = self.verifiers.best() if writer is not Writer.DRAFT else None
        return self.words.eos_ids if found is None else found.eos_token_ids

    # Writing ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def writing(
        self, request: TextRequest, client: str = "", place: Place | None = None
    ) -> AsyncIterator[Live]:
        """A text that has its seat and can be iterated over. Waits for one where others write.

        `place` was taken for this text before. Raises `CapacityError` at once if there is none and the queue
        is full, `UserError` for what this device cannot do.
        """
        request = self.orders.apply(request)
        if request.writer is Writer.DRAFT and self._drafts is None:
            raise UserError("no draft model is configured here, so there is none to write alone")
        account = Account(asked_at=self._clock())
        request = request if request.id else replace(request, id=f"text-{next(self._numbers)}")
        async with place or self.admission.place(client), contextlib.AsyncExitStack() as stack:
            notes = list[str]()
            seat = await self._seat(request, account, notes)
            if seat is not None:
                stack.callback(seat.release)
            account.began_at = self._clock()
            account.mode = _first_mode(request, seat)
            ends = request.sampling.ends(self._eos_ids(request.writer))
            answer = Answer(request, self.words, ends, self._begin(request, seat), account, self._clock)
            live = Live(answer, client, notes)
            self.live[request.id] = live
            try:
                yield live
            finally:
                del self.live[request.id]
                self._end(live)

    async def _seat(self, request: TextRequest, account: Account, notes: list[str]) -> Seat | None:
        """A place at the draft model; None, with a note, if the verifier writes alone. While the model is
        being loaded a text begins without; a text by the draft alone waits for it."""
        if self._drafts is None or request.writer is Writer.TARGET or request.policy == "off":
            return None

        def refused(error: ForerunError) -> None:
            logger.warning("x %s goes on without drafts: %s", request.id, error)
            notes.append(f"nothing is drafted: {error}")
            account.mode = Mode.SERVER_ONLY.value

        coming = asyncio.create_task(self._acquire(self._drafts, request))
        try:
            await asyncio.wait({coming}, timeout=None if request.writer is Writer.DRAFT else AT_ONCE)
        except asyncio.CancelledError:
            coming.cancel()
            raise
        if not coming.done():
            return LateSeat(coming, refused)
        try:
            return coming.result()
        except ForerunError as error:
            if request.writer is Writer.DRAFT:
                raise
            refused(error)
            return None

    @staticmethod
    async def _acquire(drafts: DraftSource, request: TextRequest) -> Seat:
        if request.sampling.grammar:
            await drafts.prepare(request.sampling.grammar)
        return await drafts.acquire(request.prompt)

    def _begin(self, request: TextRequest, seat: Seat | None) -> Callable[[Sequence[int]], Run]:
        if request.writer is Writer.DRAFT:
            assert seat is not None, "asked for before"
            return lambda written: self._alone(request, seat, written)
        route = self.verifiers.route(key_of(self._name, request.prompt))

        def begin(written: Sequence[int]) -> Run:
            policy = make_policy(request.policy if seat is not None else "off")
            session = EdgeSession(self._config(request, written, seat is not None), policy, self._ngrams)
            return Generation(session, route, seat)

        return begin

    def _alone(self, request: TextRequest, seat: Seat, written: Sequence[int]) -> Run:
        eos = self._eos_ids(request.writer)
        text = DeviceGeneration(seat, request.prompt, request.sampling, eos, self._clock, written)
        return AloneRun(text, len(request.prompt) + len(written))

    def _config(self, request: TextRequest, written: Sequence[int], drafting: bool) -> SessionConfig:
        return SessionConfig(
            prompt=request.prompt,
            committed=tuple(written),
            sampling=request.sampling,
            fingerprint=self.vocabulary.fingerprint,
            session_id=request.id,
            recall=request.recall and drafting,
            eos_token_ids=self._eos_ids(request.writer),
            ends_are_told=self.verifiers.best() is not None,
            vocab_size=self.words.num_vocab,
            prior=self._beliefs.before(request.sampling),
            acceptance=request.acceptance,
            logprobs=request.logprobs,
            fallback=_session_fallback(request, drafting),
            patience=self.settings.patience,
            first_backoff=FIRST_BACKOFF,
            max_preview=None,
            privacy=self.settings.privacy,
        )

    def _end(self, live: Live) -> None:
        """Keep what a text has taught, and its figures; tell the log."""
        answer = live.answer
        if isinstance(answer.run, Generation):
            session = answer.run.session
            self._beliefs.learn(session.config.sampling, session.calibration)
        figures = answer.figures
        self.totals.add(figures, answer.finish)
        self.recent.append((answer.request.id, figures))
        logger.info("text ended", extra={"fields": told(live, figures)})


def told(live: Live, figures: TextFigures) -> dict[str, object]:
    """A text's line in the log: its figures, and no word of it."""
    answer = live.answer
    reason = answer.finish.name.lower() if answer.finish is not None else "broken off"
    return {
        "id": answer.request.id,
        "ended": reason,
        "prompt": len(answer.request.prompt),
        **figures.as_json(),
    }


def _session_fallback(request: TextRequest, drafting: bool) -> Fallback:
    """A session shows guesses where its client may see them, as such or as text, and a draft is there."""
    if request.fallback is Fallback.FAIL:
        return Fallback.FAIL
    shown = request.revises or request.fallback is Fallback.DRAFT
    return Fallback.DRAFT if shown and drafting else Fallback.WAIT


def _first_mode(request: TextRequest, seat: Seat | None) -> str:
    if request.writer is Writer.DRAFT:
        return Mode.DEVICE_ONLY.value
    mode = Mode.AHEAD if seat is not None else Mode.SERVER_ONLY
    return mode.value
