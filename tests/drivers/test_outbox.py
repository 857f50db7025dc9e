"""Laws of an outbox: all that is put in comes out in order, and commits that waited together come as one."""

import pytest

from cloud_verifier.core.effects import End
from cloud_verifier.server.outbox import (
    FULL,
    LEAST_TOKENS,
    LOGPROB_BYTES,
    MESSAGE_BURST,
    MESSAGE_RATE,
    TOKEN_BYTES,
    Outbox,
    Pace,
    joined,
)
from common.messages import Commit, Drain, Finish, FinishReason, Opened, TokenLogprobs
from common.wire.bounds import MAX_COMMIT_TOKENS

FIRST = Commit(5, (1, 2), 0b10, echo=3, hold_us=40, queue_us=5, compute_us=100, credit=9, evaluated=4)
SECOND = Commit(7, (3,), 0b1, queue_us=7, compute_us=200, evaluated=1)
THIRD = Commit(8, (4, 5), 0b01, echo=6, hold_us=50, queue_us=1, compute_us=300, credit=0, evaluated=3)


async def taken(outbox: Outbox) -> list[object]:
    """All that is in it; a mark put in behind tells the end."""
    mark, items = End(-1), list[object]()
    outbox.put_nowait(mark)
    while (item := await outbox.get()) is not mark:
        items.append(item)
    return items


def test_two_joined_commits_hold_the_content_of_both() -> None:
    both = joined(FIRST, SECOND)
    assert both == Commit(5, (1, 2, 3), 0b110, 3, 40, 12, 300, 9, 5, 2)
    assert joined(both, THIRD) == Commit(5, (1, 2, 3, 4, 5), 0b1110, 6, 50, 13, 600, 0, 8, 3)


async def test_only_commits_that_wait_next_to_each_other_are_joined() -> None:
    outbox = Outbox()
    for item in (Opened(4, 8), FIRST, Drain(5), SECOND, THIRD, Finish(FinishReason.STOP, 9), End(1)):
        outbox.put_nowait(item)
    together = joined(SECOND, THIRD)
    assert await taken(outbox) == [
        Opened(4, 8),
        FIRST,
        Drain(5),
        together,
        Finish(FinishReason.STOP, 9),
        End(1),
    ]


async def test_no_message_becomes_longer_than_the_wire_allows() -> None:
    outbox, most = Outbox(), MAX_COMMIT_TOKENS - 1
    for commit in (Commit(1, (7,) * most), Commit(1 + most, (8,)), Commit(2 + most, (9,))):
        outbox.put_nowait(commit)
    sizes = [len(commit.tokens) for commit in await taken(outbox) if isinstance(commit, Commit)]
    assert sizes == [MAX_COMMIT_TOKENS, 1]


async def test_the_outbox_reports_once_that_it_is_full_and_once_that_half_has_left() -> None:
    told = list[bool]()
    outbox, tokens = Outbox(told.append), (7,) * (FULL // TOKEN_BYTES)
    logprobs = tuple(TokenLogprobs(-1.0, ((7, -1.0),)) for _ in range(20))
    outbox.put_nowait(Commit(1, tokens))
    assert told == []
    outbox.put_nowait(Drain(5))  # so that the next commit stands alone
    outbox.put_nowait(Commit(len(tokens) + 1, (8,) * 20, logprobs=logprobs))
    outbox.put_nowait(Commit(len(tokens) + 21, (9,)))
    assert told == [True]
    await outbox.get()
    assert told == [True, False]
    assert [type(item) for item in await taken(outbox)] == [Drain, Commit]
    assert told == [True, False]


async def test_tokens_of_one_step_never_fill_the_outbox() -> None:
    told = list[bool]()
    outbox = Outbox(told.append)
    logprobs = TokenLogprobs(-1.0, tuple((token, -1.0) for token in range(20)))
    outbox.put_nowait(Commit(1, (7,) * LEAST_TOKENS, logprobs=(logprobs,) * LEAST_TOKENS))
    assert LEAST_TOKENS * 20 * LOGPROB_BYTES > 2 * FULL
    assert told == []
    outbox.put_nowait(Commit(1 + LEAST_TOKENS, (7,), logprobs=(logprobs,)))
    assert told == [True]
    await outbox.get()
    assert told == [True, False]


# A flood of messages waits; an edge does not.


def test_messages_of_a_flood_wait_and_those_of_an_edge_do_not() -> None:
    pace = Pace(0.0)
    assert [pace.take(number * 0.01) for number in range(5000)] == [0.0] * 5000, "a hundred a second"
    waits = [pace.take(50.0) for _ in range(MESSAGE_BURST + 1000)]
    assert waits[: MESSAGE_BURST - 1] == [0.0] * (MESSAGE_BURST - 1)
    assert waits[-1] == pytest.approx(1000 / MESSAGE_RATE)
    assert pace.take(100.0) == 0.0, "after a pause"
