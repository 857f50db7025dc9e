"""One generation in production: pumps inputs into an `EdgeSession` and carries out its effects."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from common.errors import ForerunError, LocalError, UnavailableError
from common.messages import Commit, FinishReason, ServerMessage
from edge_client.channel import Stream, Streams
from edge_client.core.drafter import Expansion
from edge_client.core.effects import (
    ChangeMode,
    Connect,
    Effect,
    Emit,
    Expand,
    Finished,
    MoveTip,
    Preview,
    PreviewEnds,
    Probe,
    Send,
    StartDrafter,
    Withdraw,
)
from edge_client.core.policies import Standing
from edge_client.core.session import EdgeSession
from edge_client.core.stats import SessionStats
from edge_client.draft_worker import Drafts
from edge_client.held import Held

logger = logging.getLogger(__name__)

TURNS_TO_READERS = 2
"""Of the event loop: who iterates over a generation has the text in the next one, and in the one after it
what it has woken, a connection's writer for example."""

NUM_RTTS = 256
"""Round trips kept of a generation, for their median."""

Shown = Emit | Preview | Withdraw | PreviewEnds | ChangeMode
"""What the user learns, in order."""


@dataclass(slots=True)
class Traffic:
    """Serialised messages of all streams so far, bytes; gRPC and HTTP/2 framing excluded."""

    up: int = 0
    down: int = 0


class OnlyText:
    """The committed text among what is shown. No generator: two of them, one in the other, could not both be
    closed when a loop ends early."""

    def __init__(self, shown: AsyncIterator[Shown]) -> None:
        self._shown = shown

    def __aiter__(self) -> OnlyText:
        return self

    async def __anext__(self) -> Emit:
        while not isinstance(item := await anext(self._shown), Emit):
            pass
        return item


class Generation:
    """Runs one session. Iterate over it for committed text, over `shown()` for previews and modes, too; after
    the loop `reason` says why it ended.

    Args: session, new; channel, where its verifier is; drafts, who runs its draft steps, or None to leave the
    verifier alone. Raises, from the iteration, the `ForerunError` that ended the session.
    """

    def __init__(
        self,
        session: EdgeSession,
        streams: Streams,
        drafts: Drafts | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.traffic = Traffic()
        self.reason: FinishReason | None = None
        self.modes: list[Standing] = []  # every change, in order
        self.rtts: deque[float] = deque(maxlen=NUM_RTTS)  # as measured, the newest last; seconds
        self._streams = streams
        self._drafts = drafts
        self._clock = clock
        self._stream: Stream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # on the session's clock
        self._question: asyncio.Task[None] | None = None
        self._shown: asyncio.Queue[Shown | Finished] = asyncio.Queue()

    def __aiter__(self) -> AsyncIterator[Emit]:
        return OnlyText(self.shown())

    @property
    def stats(self) -> SessionStats:
        """The session's counts so far."""
        return self.session.stats

    @property
    def verifier(self) -> str:
        """The newest stream's, HOST:PORT; empty before the first."""
        return self._streams.address

    @property
    def held(self) -> Held | None:
        """The privacy of the stream that is open; None where none is."""
        return None if self._stream is None else self._stream.holding.held

    @property
    def streaming_time(self) -> float:
        """What a token would take if the server wrote alone: a step of one row, seconds; 0: not measured."""
        view = self.session.view
        return view.step_time.predict(1.0) if view.turn.num_samples else 0.0

    async def shown(self) -> AsyncGenerator[Shown]:
        """Run the session: its text, its guesses while there is no server, and every change of mode."""
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

    # Inputs -----------------------------------------------------------------------------------------------

    def _input(self, call: Callable[[float], None]) -> None:
        """Give the session one input at the present time, then carry out its effects in order."""
        rtt = self.session.view.rtt
        before = rtt.num_samples
        try:
            call(self._clock())
            self._carry_out_all()
        except ForerunError as error:
            self._fail(error)
        except Exception as error:  # outermost frame of every callback: the user must learn of a defect
            logger.exception("! an input failed")
            self._fail(LocalError(f"a defect of the edge: {error}"))
        if rtt.num_samples > before:
            self.rtts.append(rtt.latest_rtt)
        self._set_timer()

    def _on_message(self, stream: Stream, message: ServerMessage) -> None:
        if stream is self._stream:
            self._input(lambda now: self.session.on_message(message, now, plan=False))
            if isinstance(message, Commit):
                self._plan_after(TURNS_TO_READERS)

    def _plan_after(self, turns: int) -> None:
        """Let text get to its reader first: the rest takes a millisecond, which somebody would wait for."""
        if turns:
            asyncio.get_running_loop().call_soon(self._plan_after, turns - 1)
        else:
            self._input(self.session.plan)

    def _on_lost(self, stream: Stream | None, error: ForerunError | None) -> None:
        if stream is self._stream:
            lost = error or UnavailableError("the verifier ended the stream without a Finish")
            elsewhere = self._streams.elsewhere
            self._input(lambda now: self.session.on_stream_lost(lost, now, elsewhere))

    def _on_probed(self, stream: Stream, alive: bool) -> None:
        if stream is self._stream:
            elsewhere = self._streams.elsewhere
            self._input(lambda now: self.session.on_probed(alive, now, elsewhere))

    def _on_ready(self) -> None:
        self._input(self.session.on_ready)

    def _on_drafted(self, outcome: Sequence[Expansion] | ForerunError) -> None:
        if isinstance(outcome, ForerunError):
            self._input(lambda now: self.session.on_drafter_failed(outcome, now))
        else:
            self._input(lambda now: self.session.on_drafted(outcome, now))

    def _on_timer(self) -> None:
        self._timer = None
        self._input(self.session.on_timer)

    def _fail(self, error: ForerunError) -> None:
        self.session.fail(error, self._clock())
        self._carry_out_all()

    # Effects ----------------------------------------------------------------------------------------------

    def _carry_out_all(self) -> None:
        for effect in self.session.effects():
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case StartDrafter() | MoveTip():
                if self._drafts is not None:
                    self._drafts.submit(effect)
            case Expand():
                self._expand(effect)
            case Connect():
                self._connect()
            case Send():
                if self._stream is not None:
                    self._stream.send(effect.message)
            case Probe():
                self._ask(effect.patience)
            case ChangeMode():
                logger.info("%s: %s", effect.standing.mode.value, effect.standing.why)
                self.modes.append(effect.standing)
                self._shown.put_nowait(effect)
            case Emit() | Preview() | Withdraw() | PreviewEnds() | Finished():
                self._shown.put_nowait(effect)
            case _:
                assert_never(effect)

    def _expand(self, effect: Expand) -> None:
        if self._drafts is None:
            asyncio.get_running_loop().call_soon(self._on_drafted, LocalError("there is no drafter"))
        else:
            self._drafts.expand(effect, self._on_drafted)

    def _connect(self) -> None:
        self._drop_stream()
        try:
            stream = self._streams.open(
                lambda message: self._on_message(stream, message), lambda error: self._on_lost(stream, error)
            )
        except UnavailableError as error:  # no verifier that may get the prompt: as if none had answered
            asyncio.get_running_loop().call_soon(self._on_lost, None, error)
            return
        self._stream = stream

    def _ask(self, patience: float) -> None:
        stream = self._stream
        if stream is None:
            return

        async def ask() -> None:
            self._on_probed(stream, await stream.answers(patience))

        self._question = asyncio.create_task(ask())

    def _set_timer(self) -> None:
        """One that would come too early stays: it does nothing and sets the next. Most inputs put it off."""
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

    def _count(self, stream: Stream) -> None:
        self.traffic.up += stream.bytes_up
        self.traffic.down += stream.bytes_down

    async def _close(self, nobody_listens: bool) -> None:
        """The user stopped early, or the session ended: say goodbye if somebody listens."""
        self._input(self.session.close)
        if self._question is not None:
            self._question.cancel()
        if nobody_listens:
            self._drop_stream()
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.finish()
            self._count(stream)
