"""What waits to be sent on one stream, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from cloud_verifier.core.effects import End
from common.messages import Commit, ServerMessage
from common.rpc.bounds import MAX_COMMIT_TOKENS, MAX_CREDIT

Outgoing = ServerMessage | End
"""A message, or the last thing of a stream."""


FULL = 12 * 1024
"""Bytes that may wait for one peer, about: a text of 300 tokens. An edge that reads leaves nothing here: what
is on its way to it is gRPC's. With its connection and its session, 48 KiB, an edge that never reads costs
less than 64 KiB (`benchmarks.deaf_peers`)."""

LEAST_TOKENS = 16
"""That may wait however much is told of each: a step may bring as many, and an edge that reads must not be
held back for that. With 20 log-probabilities each they are 40 KiB."""

TOKEN_BYTES, LOGPROB_BYTES = 40, 120
"""What Python needs for a token in a tuple, and for a pair of a token and its log-probability."""


class Outbox:
    """One consumer, who may be slow: `Commit`s that wait there together leave as one. Where messages take
    longer than steps, streams get fewer and longer ones and nothing piles up.

    `on_full` is called with True when more waits than should, and with False when it has left.
    """

    def __init__(self, on_full: Callable[[bool], None] = lambda full: None) -> None:
        self._items: deque[Outgoing] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._on_full = on_full
        self._size = 0  # bytes, about
        self._num_tokens = 0
        self._full = False

    def put_nowait(self, item: Outgoing) -> None:
        """Never refuses: who is told that it is full has what is under way to bring to its end."""
        self._weigh(item, 1)
        last = self._items[-1] if self._items else None
        if isinstance(item, Commit) and isinstance(last, Commit) and _fit(last, item):
            self._items[-1] = joined(last, item)
            return
        self._items.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> Outgoing:
        """The next one, when there is one."""
        while (item := self.get_nowait()) is None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return item

    def get_nowait(self) -> Outgoing | None:
        """The next one, if there is one."""
        if not self._items:
            return None
        item = self._items.popleft()
        self._weigh(item, -1)
        return item

    def _weigh(self, item: Outgoing, sign: int) -> None:
        """It came, or has left."""
        if not isinstance(item, Commit):
            return
        told = sum(1 + len(each.top) for each in item.logprobs)
        self._size += sign * (TOKEN_BYTES * len(item.tokens) + LOGPROB_BYTES * told)
        self._num_tokens += sign * len(item.tokens)
        limit = FULL // 2 if self._full else FULL
        full = self._size > limit and self._num_tokens > (LEAST_TOKENS // 2 if self._full else LEAST_TOKENS)
        if full is not self._full:
            self._full = full
            self._on_full(full)


def joined(first: Commit, second: Commit) -> Commit:
    """Two that follow each other as one."""
    return Commit(
        start=first.start,
        tokens=first.tokens + second.tokens,
        server_made=first.server_made | second.server_made << len(first.tokens),
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
    """Whether one message may hold both."""
    num_tokens, evaluated = len(first.tokens) + len(second.tokens), first.evaluated + second.evaluated
    return num_tokens <= MAX_COMMIT_TOKENS and evaluated <= MAX_CREDIT
