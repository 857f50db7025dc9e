"""Padding brings every message of a direction to a multiple of one grain (rule 21 of docs/protocol.md)."""

from __future__ import annotations

from typing import TypeVar

from common.messages import Open
from common.pb import verifier_pb2 as pb
from common.wire.grpc_options import MAX_MESSAGE_BYTES

UP_BYTES, DOWN_BYTES = 128, 64
"""Under the adaptive policy 99 of 100 Proposes of the demo pair had at most 95 bytes, and the longest of 597
Commits 56 (docs/guarantees.md). Its ids have two bytes, those of a 128k vocabulary a third, for which this
leaves room: a tree of 16 nodes has 94 bytes, a Commit of six tokens 45."""

DRAWN_UP_BYTES = 1024
"""Grain for drafts with their distributions: eight nodes of 40 tokens each."""

TOLD_TOKENS = 6
"""Tokens of one Commit that fit the grain with log-probabilities."""

LEAST_OPEN_BYTES = 1024
"""Least size of an `Open`: a prompt of some 300 tokens. Longer prompts show as powers of two."""

M = TypeVar("M", pb.SessionRequest, pb.SessionResponse)


def up_grain(request: Open) -> int:
    """Return the grain of messages to the verifier, which the stream's `Open` decides."""
    drawn = request.acceptance.draws(request.sampling.greedy)
    return DRAWN_UP_BYTES if drawn else UP_BYTES


def down_grain(request: Open) -> int:
    """Return the grain of messages to the edge, which the stream's `Open` decides."""
    if request.logprobs is None:
        return DOWN_BYTES
    least = DOWN_BYTES + TOLD_TOKENS * (4 + 9 * request.logprobs)  # bytes of a token and its alternatives
    return 1 << (least - 1).bit_length()


def pad(message: M, grain: int) -> M:
    """Bring the message to the least multiple of `grain` that padding can reach; padding takes two bytes."""
    gap = -message.ByteSize() % grain
    if gap == 1:
        gap += grain
    if not gap:
        return message
    if (length := _entry(gap)) is None:  # one byte more would make its own length a byte longer
        message.padding.append(b"")
        length = _entry(gap - 2)
        assert length is not None, "only single gaps cannot be filled by one entry"
    message.padding.append(bytes(length))
    return message


def pad_open(message: M) -> M:
    """Bring the message to a power of two, which tells only the order of magnitude of a prompt."""
    size, num_bytes = LEAST_OPEN_BYTES, message.ByteSize()
    while size < num_bytes or size == num_bytes + 1:
        size *= 2
    return pad(message, size) if size <= MAX_MESSAGE_BYTES else message


def _entry(gap: int) -> int | None:
    """Return the length of the one entry of padding that takes `gap` bytes with its tag and length; None if
    there is no such length."""
    for length_bytes in (1, 2, 3, 4):
        length = gap - 1 - length_bytes
        if length >= 0 and max(1, (length.bit_length() + 6) // 7) == length_bytes:
            return length
    return None
