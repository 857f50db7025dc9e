"""The text service: one draft model, some verifiers, and the texts under way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from common.calibration import Beliefs
from common.errors import ForerunError, UnavailableError, UserError
from common.privacy import Privacy
from common.prompt_lookup import SharedTexts
from common.suffix_index import SuffixIndex
from common.vocabulary import Vocabulary
from common.wire.describe import Description
from edge_client.core.draft_times import DraftTimes
from edge_client.core.effects import Fallback, Mode, SessionConfig
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.core.verifier_choice import NO_DRAFT, DraftSkill, key_of
from edge_client.draft.late_seat import DraftSeat, LateSeat
from edge_client.formats.detokenizer import Words
from edge_client.network.channel import StreamSource
from edge_client.network.generation import Generation
from edge_client.texts.alone import AloneRun
from edge_client.texts.answer import TextAnswer
from edge_client.texts.earlier import EarlierTexts
from edge_client.texts.figures import SessionRun, TextAccount, TextFigures, Totals
from edge_client.texts.queue import Admission, QueuePlace
from edge_client.texts.text_request import TextRequest, Writer

logger = logging.getLogger(__name__)

AT_ONCE = 0.05
"""Seconds that a text waits for its seat before it begins without one. A loaded model needs less, and people
do not notice the wait."""


class DraftSource(Protocol):
    """Loads the draft model when needed and provides its seats (`SharedDraftModel`)."""

    @property
    def pace(self) -> DraftTimes: ...

    async def prepare(self, grammar: str) -> None:
        """Prepare a text under this grammar. Raises `ForerunError` if it cannot be drafted."""
        ...

    async def acquire(self, prompt: Sequence[int]) -> DraftSeat:
        """Return a seat. Raises `ForerunError` if the model cannot be loaded or has none."""
        ...


class DraftChoice(Protocol):
    """Chooses the draft model of each text (`UpdatedDraft`)."""

    def choose(self, *, alone: bool) -> DraftSource:
        """Return the model of a text that begins, and which the draft model may write `alone`."""
        ...

    def judge(self, model: DraftSource, num_best: int, num_observed: int) -> None:
        """Take a text's end. `num_best` of `num_observed` choices of the target were the model's first."""
        ...


class FileTexts(Protocol):
    """Holds texts of the user's files to look up in (`schemes.drafters.file_index`)."""

    @property
    def indexes(self) -> Sequence[SuffixIndex]: ...

    async def refresh(self) -> None:
        """Read the files that have changed."""
        ...


class VerifierChoice(Protocol):
    """Chooses among the verifiers (`Verifiers`)."""

    def route(self, key: str, skill: DraftSkill, target: str) -> StreamSource:
        """Return the source of a session's streams. `skill` is that of the session's drafts. All streams go
        to verifiers of `target`; empty: of that of the first stream."""
        ...

    async def heard(self, patience: float) -> None:
        """Wait until a verifier has answered, all have failed, or `patience` seconds have passed. Ask again
        where the last answer is old."""
        ...

    def refusal(self) -> ForerunError | None:
        """Return why a text cannot begin: no verifier fits or has ever answered. None if one may."""
        ...

    def best(self) -> Description | None:
        """Return the description of a new session's verifier; None if none was reached."""
        ...


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Settings of all texts, and defaults of a request."""

    seats: int = 8  # texts at once
    max_waiting: int = 64  # behind them, all clients together
    patience: float | None = 0.8  # seconds without a verifier before a fallback begins; None: never
    first_backoff: float = 0.02  # least seconds before a text's first reconnect: short, for its reader
    max_attempts: int | None = None  # reconnects in a row without text before a text fails; None: for ever
    max_preview: int | None = None  # tokens of a preview; None: to the text's end
    privacy: Privacy = Privacy.PADDED  # least privacy of the wire to verifiers


class Orders(Enum):
    """Names the states of the fleet's kill switch (docs/fleet.md)."""

    NONE = "none"  # no restriction
    DRAFT_OFF = "draft_off"  # verifiers write alone
    REMOTE_OFF = "remote_off"  # no verifier is asked: the draft model writes alone
    HALT = "halt"  # no text at all

    def apply(self, request: TextRequest) -> TextRequest:
        """Return the request under these orders. Raises `UnavailableError` if they refuse it."""
        match self:
            case Orders.NONE:
                return request
            case Orders.DRAFT_OFF if request.writer is not Writer.DRAFT:
                return replace(request, writer=Writer.TARGET, references=())
            case Orders.REMOTE_OFF if request.logprobs is None:
                return replace(request, writer=Writer.DRAFT)
            case _:
                words = f"this device's fleet has ordered {self.value}: no such text is written"
                raise UnavailableError(words)


@dataclass(slots=True)
class Live:
    """Describes a text under way for status pages."""

    answer: TextAnswer
    client: str
    drafts: DraftSource | None
    before: list[str] = field(default_factory=list)  # notes from before it began

    @property
    def notes(self) -> list[str]:
        """Return the present notes for the client, in sentences."""
        account = self.answer.account
        silent = account.mode == Mode.SERVER_ONLY.value and account.why and not self.before
        return [*self.before, f"nothing is drafted: {account.why}"] if silent else self.before


class TextService:
    """Writes texts.

    Args: words, the target's tokens as the draft's file has them; vocabulary, their table; drafts, where the
    draft model's seats come from, or None to leave the verifiers alone; admission, the queue if other text
    services of the daemon share it; file_texts and earlier, texts to look up in.
    """

    def __init__(
        self,
        words: Words,
        vocabulary: Vocabulary,
        verifiers: VerifierChoice,
        drafts: DraftChoice | None,
        settings: TextSettings,
        clock: Callable[[], float] = time.monotonic,
        admission: Admission | None = None,
        file_texts: FileTexts | None = None,
        earlier: EarlierTexts | None = None,
    ) -> None:
        self.words = words
        self.vocabulary = vocabulary
        self.settings = settings
        self.admission = admission or Admission(settings.seats, settings.max_waiting)
        self.live: dict[str, Live] = {}  # by the request's id, in the order of beginning
        self.totals = Totals()
        self.recent: deque[tuple[str, TextFigures]] = deque(maxlen=64)  # the newest texts that ended
        self.ended_at = -math.inf  # of the newest of them, by `clock`
        self.verifiers = verifiers
        self._drafts = drafts
        self.clock = clock
        self._beliefs = Beliefs()
        self._acceptance = DraftSkill().acceptance  # of the newest text with drafts
        self._earlier = earlier
        self._file_texts = file_texts
        self._numbers = itertools.count(1)
        self._name = secrets.token_hex(16)  # unique
        self.orders = Orders.NONE

    @property
    def max_positions(self) -> int:
        """Return the verifier's limit on prompt and text together; 0: unknown."""
        described = self.verifiers.best()
        if described is None:
            return 0
        return min(described.max_positions, described.max_session_positions or described.max_positions)

    @property
    def can_draft(self) -> bool:
        """Tell whether there is a draft model."""
        return self._drafts is not None

    def _eos_ids(self, writer: Writer) -> tuple[int, ...]:
        """Return the target's end tokens; the draft's until they are known, or if it writes alone."""
        described = self.verifiers.best() if writer is not Writer.DRAFT else None
        return self.words.eos_ids if described is None else described.eos_token_ids

    @contextlib.asynccontextmanager
    async def writing(
        self,
        request: TextRequest,
        client: str = "",
        place: QueuePlace | None = None,
        asked_at: float | None = None,
    ) -> AsyncIterator[Live]:
        """Wait for a seat and begin a text. `place` was taken for this text before. Its client's request
        arrived at `asked_at` by `clock`; None: now.

        Raises `CapacityError` at once if the queue is full, `UserError` for what this device cannot do.
        """
        request = self.orders.apply(request)
        if request.writer is Writer.DRAFT and self._drafts is None:
            raise UserError("no draft model is configured here, so it cannot write alone")
        if self._drafts is None:
            request = replace(request, drafting=False)
        account = TextAccount(asked_at=self.clock() if asked_at is None else asked_at)
        request = request if request.id else replace(request, id=f"text-{next(self._numbers)}")
        async with place or self.admission.place(client, had_one=True), contextlib.AsyncExitStack() as stack:
            notes = list[str]()
            alone = request.writer is Writer.DRAFT
            drafts = None if self._drafts is None else self._drafts.choose(alone=alone)
            seat = await self._seat(request, drafts, account, notes)
            if seat is not None:
                stack.callback(seat.release)
            if self._file_texts is not None:
                await self._file_texts.refresh()
            account.began_at = self.clock()
            if request.writer is Writer.DRAFT:
                account.mode = Mode.DEVICE_ONLY.value
            else:
                is_off = _policy_of(request, has_seat=seat is not None) == "off"
                account.mode = (Mode.SERVER_ONLY if is_off else Mode.AHEAD).value
            ends = request.sampling.ends(self._eos_ids(request.writer))
            begin = self._begin(request, drafts, seat)
            answer = TextAnswer(request, self.words, ends, begin, account, self.clock)
            live = Live(answer, client, drafts, notes)
            self.live[request.id] = live
            try:
                yield live
            finally:
                del self.live[request.id]
                self._end(live)

    async def _seat(
        self, request: TextRequest, drafts: DraftSource | None, account: TextAccount, notes: list[str]
    ) -> DraftSeat | None:
        """Return a seat at the draft model; None, with a note, if the verifier writes alone. Only a text by
        the draft alone waits for the model to load."""
        if drafts is None or not request.drafts:
            return None

        def refused(error: ForerunError) -> None:
            logger.warning("x %s goes on without drafts: %s", request.id, error)
            notes.append(f"nothing is drafted: {error}")
            account.mode = Mode.SERVER_ONLY.value

        coming = asyncio.create_task(self._acquire(drafts, request))
        try:
            await asyncio.wait({coming}, timeout=None if request.writer is Writer.DRAFT else AT_ONCE)
        except asyncio.CancelledError:
            coming.cancel()
            coming.add_done_callback(_give_back)
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
    async def _acquire(drafts: DraftSource, request: TextRequest) -> DraftSeat:
        if request.sampling.grammar:
            await drafts.prepare(request.sampling.grammar)
        return await drafts.acquire(request.prompt)

    def _begin(
        self, request: TextRequest, drafts: DraftSource | None, seat: DraftSeat | None
    ) -> Callable[[Sequence[int]], SessionRun]:
        if request.writer is Writer.DRAFT:
            assert seat is not None, "asked for before"
            eos = self._eos_ids(request.writer)
            return lambda written: AloneRun(seat, request.prompt, request.sampling, eos, self.clock, written)
        key, skill = key_of(self._name, request.prompt), self._skill(request, drafts, seat)
        route = self.verifiers.route(key, skill, request.target)

        def begin(written: Sequence[int]) -> SessionRun:
            policy = make_policy(_policy_of(request, has_seat=seat is not None))
            earlier = None if self._earlier is None else self._earlier.index
            files = () if self._file_texts is None else self._file_texts.indexes
            shared = SharedTexts(earlier, files)
            pace = drafts.pace if drafts is not None else None
            session = EdgeSession(self._config(request, written, seat, route), policy, shared, pace=pace)
            return Generation(session, route, seat)

        return begin

    def _skill(self, request: TextRequest, drafts: DraftSource | None, seat: DraftSeat | None) -> DraftSkill:
        if drafts is None or seat is None or request.policy == "off":
            return NO_DRAFT
        return DraftSkill(self._acceptance, drafts.pace.rows.predict(1))

    def _config(
        self, request: TextRequest, written: Sequence[int], seat: DraftSeat | None, streams: StreamSource
    ) -> SessionConfig:
        drafting, committed = seat is not None, tuple(written)
        fallback = request.fallback
        if fallback is not Fallback.FAIL:  # show guesses if the client accepts them and there is a draft
            shown = request.revises or fallback is Fallback.DRAFT
            fallback = Fallback.DRAFT if shown and drafting else Fallback.WAIT
        return SessionConfig(
            prompt=request.prompt,
            committed=committed,
            num_read=0 if seat is None else seat.num_kept(request.prompt + committed),
            sampling=request.sampling,
            fingerprint=self.vocabulary.fingerprint,
            session_id=request.id,
            has_drafter=drafting,
            draft_waits=streams.shares_machine,
            recall=request.recall and (drafting or request.repeats),
            references=request.references,
            eos_token_ids=self._eos_ids(request.writer),
            ends_are_told=self.verifiers.best() is not None,
            vocab_size=self.words.num_vocab,
            prior=self._beliefs.before(request.sampling),
            acceptance=request.acceptance,
            logprobs=request.logprobs,
            fallback=fallback,
            patience=self.settings.patience,
            first_backoff=self.settings.first_backoff,
            max_attempts=self.settings.max_attempts,
            max_preview=self.settings.max_preview,
            privacy=self.settings.privacy,
        )

    def _end(self, live: Live) -> None:
        """Keep a text's measurements and figures, and log its end."""
        answer = live.answer
        if isinstance(answer.run, Generation):
            session = answer.run.session
            self._beliefs.learn(session.config.sampling, session.calibration)
            if session.stats.drafted:
                self._acceptance = session.view.acceptance.ratio
            if self._drafts is not None and live.drafts is not None:
                told = session.calibration
                self._drafts.judge(live.drafts, told.num_best, told.num_observed)
            if self._earlier is not None:
                self._earlier.text_ended()
        figures, request = answer.figures, answer.request
        reason = answer.finish.name.lower() if answer.finish is not None else "broken off"
        self.totals.add(figures, reason)
        self.recent.append((request.id, figures))
        self.ended_at = self.clock()
        fields = {"id": request.id, "ended": reason, "prompt": len(request.prompt), **figures.as_json()}
        logger.info("text ended", extra={"fields": fields})


def _policy_of(request: TextRequest, *, has_seat: bool) -> str:
    """Return the growth policy. If the draft model was wanted and has no seat, only given texts are drafted
    from, which needs no other policy than the usual one."""
    if has_seat or request.repeats or request.policy == "off":
        return request.policy
    return "adaptive" if request.references else "off"


def _give_back(coming: asyncio.Task[DraftSeat]) -> None:
    if not coming.cancelled() and coming.exception() is None:
        coming.result().release()
