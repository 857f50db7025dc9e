"""Queue the outgoing messages of a stream, and pace its incoming ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from cloud_verifier.core.effects import End
from common.messages import Commit, Hint, ServerMessage
from common.wire.bounds import MAX_COMMIT_TOKENS, MAX_CREDIT

Outgoing = ServerMessage | End
"""A message, or the end of a stream."""


FULL = 12 * 1024
"""Approximate bytes that may wait for one peer: a text of 300 tokens. For an edge that reads, nothing waits
here. With its connection and session (48 KiB) an edge that never reads costs less than 64 KiB
(docs/verifier.md)."""

LEAST_TOKENS = 16
"""Tokens that may always wait: one step may bring as many, and must not stall an edge that reads. With 20
log-probabilities each they take 40 KiB."""

MOST_HINTS = 32
"""Items that wait, from which on hints are dropped: four draft steps of eight nodes."""

TOKEN_BYTES, LOGPROB_BYTES = 40, 120
"""Python's bytes for a token in a tuple, and for a pair of a token and its log-probability."""


class Outbox:
    """Queues messages for one consumer. Waiting `Commit`s are joined, so a slow stream gets fewer and longer
    messages.

    `on_full` is called with True when too many bytes wait, and with False when they have left.
    """

    def __init__(self, on_full: Callable[[bool], None] = lambda full: None) -> None:
        self._items: deque[Outgoing] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._on_full = on_full
        self._size = 0  # bytes, about
        self._num_tokens = 0
        self._full = False

    def put_nowait(self, item: Outgoing) -> None:
        """Queue an item. A full outbox accepts it too, because a running step may still bring tokens. A peer
        that does not read gets no hints."""
        if isinstance(item, Hint) and len(self._items) >= MOST_HINTS:
            return
        self._weigh(item, 1)
        last = self._items[-1] if self._items else None
        if isinstance(item, Commit) and isinstance(last, Commit) and _fit(last, item):
            self._items[-1] = joined(last, item)
            return
        self._items.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> Outgoing:
        while not self._items:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        item = self._items.popleft()
        self._weigh(item, -1)
        return item

    def _weigh(self, item: Outgoing, sign: int) -> None:
        if not isinstance(item, Commit):
            return
        num_logprobs = sum(1 + len(each.top) for each in item.logprobs)
        self._size += sign * (TOKEN_BYTES * len(item.tokens) + LOGPROB_BYTES * num_logprobs)
        self._num_tokens += sign * len(item.tokens)
        limit = FULL // 2 if self._full else FULL
        full = self._size > limit and self._num_tokens > (LEAST_TOKENS // 2 if self._full else LEAST_TOKENS)
        if full is not self._full:
            self._full = full
            self._on_full(full)


def joined(first: Commit, second: Commit) -> Commit:
    """Join two consecutive commits."""
    return Commit(
        start=first.start,
        tokens=first.tokens + second.tokens,
        server_made=first.server_made | second.server_made << len(first.tokens),
        guessed=first.guessed | second.guessed << len(first.tokens),
        echo=second.echo or first.echo,
        hold_us=second.hold_us if second.echo else first.hold_us,
        queue_us=first.queue_us + second.queue_us,
        compute_us=first.compute_us + second.compute_us,
        credit=first.credit if second.credit is None else second.credit,
        evaluated=first.evaluated + second.evaluated,
        steps=first.steps + second.steps,
        logprobs=first.logprobs + second.logprobs,
    )


def _fit(first: Commit, second: Commit) -> bool:
    """Return whether one message may hold both."""
    num_tokens, evaluated = len(first.tokens) + len(second.tokens), first.evaluated + second.evaluated
    return num_tokens <= MAX_COMMIT_TOKENS and evaluated <= MAX_CREDIT


# The pace of incoming messages.

MESSAGE_RATE, MESSAGE_BURST = 500.0, 1500
"""Messages of one stream a second, and at once after a pause. An edge sends one message for each draft step
or commit, so a hundred a second are many."""


class Pace:
    """Limits the rate of a stream's incoming messages. A message that comes too soon waits."""

    def __init__(self, now: float) -> None:
        self._free_at = now - MESSAGE_BURST / MESSAGE_RATE  # seconds; when the next message may be taken

    def take(self, now: float) -> float:
        """Take a message and return the seconds that it must wait."""
        self._free_at = max(self._free_at, now - MESSAGE_BURST / MESSAGE_RATE) + 1.0 / MESSAGE_RATE
        return max(0.0, self._free_at - now)
