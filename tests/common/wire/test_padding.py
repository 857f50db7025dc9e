"""Law: padding brings a message to its size and changes nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.acceptance import make_acceptance
from common.errors import PeerError
from common.messages import Close, Open, Propose
from common.pb import verifier_pb2 as pb
from common.sampling import MAX_GRAMMAR_BYTES, MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_TOKENS, SamplingParams
from common.wire.codec import decode_request, encode_request
from common.wire.grpc_options import MAX_MESSAGE_BYTES, session_bytes
from common.wire.padding import (
    DRAWN_UP_BYTES,
    LEAST_OPEN_BYTES,
    UP_BYTES,
    down_grain,
    pad,
    pad_open,
    up_grain,
)
from common.wire.wire_fields import MAX_FIELDS, check_request

SIZES = st.integers(32, 300)
GREEDY = SamplingParams()


def over_the_wire(request: pb.SessionRequest) -> pb.SessionRequest:
    return pb.SessionRequest.FromString(request.SerializeToString())


def chain(length: int) -> Propose:
    return Propose((128_255,) * length, bytes(length), seen_advance=3)


def test_every_size_is_met_to_the_byte() -> None:
    for size in (2, *range(4, 700), *range(16_380, 16_400), *range(2_097_150, 2_097_165)):
        padded = pad(encode_request(Close()), size)
        assert len(padded.SerializeToString()) == padded.ByteSize() == size
        assert decode_request(over_the_wire(padded)) == Close()


@pytest.mark.parametrize(("grain", "size"), [(23, 46), (24, 24), (25, 50), (26, 26)])
def test_a_message_one_byte_too_long_or_short_takes_another_grain(grain: int, size: int) -> None:
    message = encode_request(chain(4))
    assert message.ByteSize() == 24
    assert pad(message, grain).ByteSize() == size


@given(st.integers(0, 256), SIZES)
def test_a_long_message_takes_the_least_multiple(length: int, grain: int) -> None:
    size = encode_request(chain(length)).ByteSize()
    padded = pad(encode_request(chain(length)), grain)
    assert padded.ByteSize() % grain == 0
    assert size <= padded.ByteSize() < size + grain + 2
    assert decode_request(over_the_wire(padded)) == chain(length)


@pytest.mark.parametrize(
    ("num_tokens", "size"),
    [(1, 1024), (300, 1024), (400, 2048), (660, 2048), (20_000, 2**16), (40_000, 2**17)],
)
def test_of_a_prompt_only_the_order_of_magnitude_shows(num_tokens: int, size: int) -> None:
    request = encode_request(Open((128_255,) * num_tokens, GREEDY, bytes(32)))
    assert pad_open(request).ByteSize() == size
    assert len(decode_request(over_the_wire(request)).prompt) == num_tokens  # type: ignore[union-attr]


def test_an_open_as_long_as_a_message_may_be_is_sent_as_it_is() -> None:
    request = pb.SessionRequest(open=pb.Open(fingerprint=bytes(MAX_MESSAGE_BYTES - 11)))
    assert request.ByteSize() == MAX_MESSAGE_BYTES - 1 > LEAST_OPEN_BYTES
    assert pad_open(request).ByteSize() == MAX_MESSAGE_BYTES - 1


@pytest.mark.parametrize(("logprobs", "size"), [(None, 64), (0, 128), (1, 256), (5, 512), (20, 2048)])
def test_sizes_of_responses_follow_the_requested_log_probabilities(logprobs: int | None, size: int) -> None:
    assert down_grain(Open((1,), GREEDY, b"", logprobs=logprobs)) == size


@pytest.mark.parametrize(
    ("rule", "temperature", "size"),
    [("coupled", 1.0, UP_BYTES), ("rejection", 0.0, UP_BYTES), ("rejection", 1.0, DRAWN_UP_BYTES)],
)
def test_sizes_of_requests_follow_whether_drafts_are_drawn(rule: str, temperature: float, size: int) -> None:
    sampling = SamplingParams(temperature=temperature)
    assert up_grain(Open((1,), sampling, b"", acceptance=make_acceptance(rule))) == size


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
    decode_request(request)
    request.padding.append(b"")
    with pytest.raises(PeerError):
        decode_request(request)
