"""Drives one generation: pumps inputs into an `EdgeSession` and carries out its effects."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import assert_never

from common.errors import ForerunError, LocalError, UnavailableError
from common.messages import Commit, FinishReason, ServerMessage
from edge_client.core.effects import (
    NOTHING_READ,
    ChangeMode,
    Connect,
    Effect,
    Emit,
    Expand,
    Finished,
    MoveTip,
    Outcome,
    Preview,
    PreviewEnds,
    Probe,
    ReadingTime,
    Send,
    SessionStats,
    Shown,
    StartDrafter,
    Traffic,
    Withdraw,
)
from edge_client.core.session import EdgeSession
from edge_client.draft.late_seat import Drafts
from edge_client.network.channel import Held, StreamSource, VerifierStream

logger = logging.getLogger(__name__)

TURNS_TO_READERS = 2
"""Turns of the event loop. The generation's reader gets the text in the first, and a task that the reader
wakes, such as a connection's writer, runs in the second."""

NUM_RTTS = 256
"""Round trips that a generation keeps for their median."""


class OnlyText:
    """Iterates over the committed text of `shown()`. It is no generator, because two nested generators could
    not both be closed when a loop ends early."""

    def __init__(self, shown: AsyncIterator[Shown]) -> None:
        self._shown = shown

    def __aiter__(self) -> OnlyText:
        return self

    async def __anext__(self) -> Emit:
        while not isinstance(item := await anext(self._shown), Emit):
            pass
        return item


class Generation:
    """Runs one new session over `streams`, with draft steps from `drafts` unless that is None.

    Iterate over it for committed text, or over `shown()` for previews and modes, too. Afterwards `reason`
    says why it ended. The iteration raises the `ForerunError` that ended the session.
    """

    def __init__(
        self,
        session: EdgeSession,
        streams: StreamSource,
        drafts: Drafts | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.traffic = Traffic()
        self.reason: FinishReason | None = None
        self.rtts: deque[float] = deque(maxlen=NUM_RTTS)  # as measured, the newest last; seconds
        self._streams = streams
        self._drafts = drafts
        self._clock = clock
        self._stream: VerifierStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # on the session's clock
        self._question: asyncio.Task[None] | None = None
        self._shown: asyncio.Queue[Shown | Finished] = asyncio.Queue()

    def __aiter__(self) -> AsyncIterator[Emit]:
        return OnlyText(self.shown())

    @property
    def stats(self) -> SessionStats:
        return self.session.stats

    @property
    def verifier(self) -> str:
        """Return the HOST:PORT of the newest stream's verifier; empty before the first."""
        return self._streams.address

    @property
    def held(self) -> Held | None:
        """Return the privacy of the open stream; None without one."""
        return None if self._stream is None else self._stream.held

    @property
    def streaming_time(self) -> float:
        """Return the seconds per token without drafts, by a one-row step; 0 if not measured."""
        view = self.session.view
        return view.step_time.predict(1.0) if view.turn.num_samples else 0.0

    async def shown(self) -> AsyncGenerator[Shown]:
        """Run the session. Yield its text, its previews without a server, and every change of mode."""
        self._streams.watch(self._on_ready)
        self._input(self.session.start)
        item: Shown | Finished | None = None
        try:
            while not isinstance(item := await self._shown.get(), Finished):
                yield item
        finally:
            self._streams.watch(None)
            failed = item.error if isinstance(item, Finished) else None
            await self._close(nobody_listens=isinstance(failed, UnavailableError))
        self.reason = item.reason
        if item.error is not None:
            raise item.error

    def _input(self, call: Callable[[float], None]) -> None:
        """Give the session one input at the present time and carry out its effects in order."""
        rtt = self.session.view.rtt
        before = rtt.num_samples
        try:
            call(self._clock())
            self._carry_out(self.session.effects())
        except ForerunError as error:
            self._fail(error)
        except Exception as error:  # outermost frame of every callback: the user must learn of a defect
            logger.exception("! an input failed")
            self._fail(LocalError(f"a defect of the edge: {error}"))
        if rtt.num_samples > before:
            self.rtts.append(rtt.latest_rtt)
        self._set_timer()

    def _on_message(self, stream: VerifierStream, message: ServerMessage) -> None:
        if stream is self._stream:
            self._input(lambda now: self.session.on_message(message, now, plan=False))
            if isinstance(message, Commit):
                self._plan_after(TURNS_TO_READERS)

    def _plan_after(self, turns: int) -> None:
        """Plan after the reader has had its text. Planning takes a millisecond."""
        if turns:
            asyncio.get_running_loop().call_soon(self._plan_after, turns - 1)
        else:
            self._input(self.session.plan)

    def _on_lost(self, stream: VerifierStream | None, error: ForerunError | None) -> None:
        if stream is self._stream:
            lost = error or UnavailableError("the verifier ended the stream without a Finish")
            elsewhere = self._streams.elsewhere
            self._input(lambda now: self.session.on_stream_lost(lost, now, elsewhere))

    def _on_ready(self) -> None:
        self._input(self.session.on_ready)

    def _on_drafted(self, outcome: Outcome, reading: ReadingTime) -> None:
        if isinstance(outcome, ForerunError):
            self._input(lambda now: self.session.on_drafter_failed(outcome, now))
        else:
            self._input(lambda now: self.session.on_drafted(outcome, now, reading))

    def _on_timer(self) -> None:
        self._timer = None
        self._input(self.session.on_timer)

    def _fail(self, error: ForerunError) -> None:
        self.session.fail(error, self._clock())
        self._carry_out(self.session.effects())

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartDrafter() | MoveTip() | Expand():
                    if self._drafts is not None:
                        self._drafts.submit(effect, self._on_drafted)
                    elif isinstance(effect, Expand):
                        missing = LocalError("there is no drafter")
                        asyncio.get_running_loop().call_soon(self._on_drafted, missing, NOTHING_READ)
                case Connect():
                    self._connect()
                case Send():
                    if self._stream is not None:
                        self._stream.send(effect.message)
                case Probe():
                    self._ask(effect.patience)
                case ChangeMode():
                    logger.info("%s: %s", effect.standing.mode.value, effect.standing.why)
                    self._shown.put_nowait(effect)
                case Emit() | Preview() | Withdraw() | PreviewEnds() | Finished():
                    self._shown.put_nowait(effect)
                case _:
                    assert_never(effect)

    def _connect(self) -> None:
        self._drop_stream()
        try:
            stream = self._streams.open(
                lambda message: self._on_message(stream, message), lambda error: self._on_lost(stream, error)
            )
        except UnavailableError as error:  # no verifier may get the prompt: the same as no answer
            asyncio.get_running_loop().call_soon(self._on_lost, None, error)
            return
        self._stream = stream

    def _ask(self, patience: float) -> None:
        stream = self._stream
        if stream is None:
            return

        async def ask() -> None:
            alive = await stream.answers(patience)
            if stream is self._stream:
                elsewhere = self._streams.elsewhere
                self._input(lambda now: self.session.on_probed(alive, now, elsewhere))

        self._question = asyncio.create_task(ask())

    def _set_timer(self) -> None:
        """Set the timer. A timer that fires too early stays and sets the next; most inputs delay it."""
        at = self.session.next_timer_at
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            delay = max(0.0, at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.abandon()
            self._count(self._stream)
            self._stream = None

    def _count(self, stream: VerifierStream) -> None:
        self.traffic.up += stream.bytes_up
        self.traffic.down += stream.bytes_down

    async def _close(self, nobody_listens: bool) -> None:
        """End the session. Send `Close` if a verifier is listening."""
        self._input(self.session.close)
        if self._question is not None:
            self._question.cancel()
        if nobody_listens:
            self._drop_stream()
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.finish()
            self._count(stream)
