"""Law: a message that would cost much more memory than it has bytes is refused before it is parsed."""

from __future__ import annotations

import pytest

from common.errors import PeerError
from common.messages import Open
from common.pb import verifier_pb2 as pb
from common.rpc.codec import encode_request
from common.rpc.frames import pad_open
from common.rpc.options import MAX_MESSAGE_BYTES, session_bytes
from common.rpc.wire_fields import MAX_FIELDS, check_padding, check_request
from common.sampling import MAX_GRAMMAR_BYTES, MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_TOKENS, SamplingParams

POSITIONS = 10_000_000

LAST = 2**31 - 1
"""The id whose varint is the longest that is allowed."""


@pytest.mark.parametrize("positions", [16, 512, 32_768, 131_072])
def test_the_longest_open_of_a_target_is_let_in_padded(positions: int) -> None:
    sampling = SamplingParams(
        max_tokens=positions,
        logit_bias=tuple((LAST - index, 1.5) for index in range(MAX_LOGIT_BIAS_ENTRIES)),
        stop_token_ids=tuple(LAST - index for index in range(MAX_STOP_TOKENS)),
        grammar="x" * MAX_GRAMMAR_BYTES,
    )
    request = Open((LAST,) * positions, sampling, bytes(64), "m" * 256, (LAST,) * 0, session_id="s" * 128)
    check_request(pad_open(encode_request(request)).SerializeToString(), positions)


@pytest.mark.parametrize(
    "data",
    [
        b"\x7a\x00" * 4_000_000,  # padding
        b"\x0a\x80\x92\xf4\x01" + (b"\x12\x02\x42\x00" * 1_000_000),  # sampling with empty biases
        b"\x0a\x80\x92\xf4\x01" + (b"\x08\x01" * 2_000_000),  # an unpacked prompt
        b"\x12\x80\x92\xf4\x01" + (b"\x08\x01" * 2_000_000),  # an unpacked Propose
        b"\xfa\x07\x00" * (MAX_FIELDS + 1),  # fields that nobody knows
    ],
    ids=["padding", "biases", "prompt", "propose", "unknown"],
)
def test_a_message_of_very_many_fields_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        check_request(data, POSITIONS)


@pytest.mark.parametrize(
    "data", [b"\x0b" * 5000, b"\xff" * 5000, b"\x7a\x00" + b"\x80" * 5000], ids=["group", "number", "end"]
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        check_request(data, POSITIONS)


def test_a_message_is_no_longer_than_the_target_needs() -> None:
    assert session_bytes(POSITIONS) == MAX_MESSAGE_BYTES
    with pytest.raises(PeerError):
        check_request(bytes(session_bytes(512) + 1), 512)


def test_small_messages_bring_no_more_padding_either() -> None:
    request = pb.SessionRequest(close=pb.Close(), padding=[b""] * 2)
    check_padding(request)
    request.padding.append(b"")
    with pytest.raises(PeerError):
        check_padding(request)
