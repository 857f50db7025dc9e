"""Compute the size of a message on the wire by the rules of protobuf's encoding, without encoding it.

A simulated link needs the size of every message and nothing else. Field numbers are those of
`verifier.proto`: all below 16, so that a tag is one byte. The size equals `ByteSize` of the encoding by
`common.wire.codec`, as a property test checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.acceptance import Draft
from common.messages import ClientMessage, Commit, Propose, ServerMessage, TokenLogprobs
from common.wire.codec import MAX_US, draft_tokens, encode_request, encode_response

ONE_BYTE = 0x80
"""Numbers below this take one byte as a varint."""


def request_size(message: ClientMessage) -> int:
    """Return the bytes of an edge's message. Rare messages are encoded to be measured."""
    if isinstance(message, Propose):
        return _member(_propose(message))
    return encode_request(message).ByteSize()


def response_size(message: ServerMessage) -> int:
    """Return the bytes of a verifier's message."""
    if isinstance(message, Commit):
        return _member(_commit(message))
    return encode_response(message).ByteSize()


def _propose(message: Propose) -> int:
    size = _packed(message.tokens) + _bytes(len(message.logprobs)) + _packed(message.parent_deltas)
    if message.anchor is not None:
        size += 1 + _varint(message.anchor)
    size += _number(message.seen_advance)
    if message.wait is not None:
        size += sum(1 + _varint(each) for each in message.wait)
    return size + _drafts(message.drafts) if message.drafts else size


def _drafts(drafts: Sequence[Draft | None]) -> int:
    tokens = draft_tokens(drafts)
    sizes = [0 if draft is None else len(draft.tokens) for draft in drafts]
    return _packed(sizes) + _packed(tokens) + _bytes(len(tokens))


def _commit(message: Commit) -> int:
    size = _number(message.start) + _packed(message.tokens)
    for mask in (message.server_made, message.guessed):
        size += _bytes((mask.bit_length() + 7) // 8)
    size += _number(message.echo)
    for duration in (message.hold_us, message.queue_us, message.compute_us):
        size += _number(min(duration, MAX_US))
    if message.credit is not None:
        size += 1 + _varint(message.credit)
    size += _number(message.evaluated) + _number(message.steps if message.steps > 1 else 0)
    return size + _logprobs(message.logprobs) if message.logprobs else size


def _logprobs(told: Sequence[TokenLogprobs]) -> int:
    tops = [token for each in told for token, _ in each.top]
    return _bytes(4 * len(told)) + _packed(tops) + _bytes(4 * len(tops))


def _varint(number: int) -> int:
    """Seven bits a byte."""
    return 1 if number < ONE_BYTE else (number.bit_length() + 6) // 7


def _number(number: int) -> int:
    """Return a field that is left out at 0."""
    return 1 + _varint(number) if number else 0


def _bytes(length: int) -> int:
    """Return a field that is left out when it is empty."""
    return 1 + _varint(length) + length if length else 0


def _packed(numbers: Sequence[int]) -> int:
    if not numbers:
        return 0
    return _bytes(len(numbers) if max(numbers) < ONE_BYTE else sum(map(_varint, numbers)))


def _member(length: int) -> int:
    """Return a message as the one member of the envelope; there even if it is empty."""
    return 1 + _varint(length) + length
