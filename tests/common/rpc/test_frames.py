"""Law: whatever was put in comes out, in frames of one size, at times that do not depend on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.acceptance import make_acceptance
from common.errors import LocalError, PeerError
from common.messages import ClientMessage, Close, Commit, Open, Propose, ServerMessage
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.rpc.codec import decode_request, decode_response, encode_request, encode_response
from common.rpc.frames import (
    DOWN_BYTES,
    DRAWN_UP_BYTES,
    LEAST_OPEN_BYTES,
    MAX_FRAME_BYTES,
    STRICT_DOWN,
    STRICT_UP,
    UP_BYTES,
    Joiner,
    Sender,
    down_size,
    fits,
    pad,
    pad_open,
    pad_up,
    up_size,
)
from common.rpc.options import MAX_MESSAGE_BYTES
from common.sampling import SamplingParams
from tests.common.rpc.test_codec import RESPONSE, commits, proposes

REQUESTS = st.lists(proposes() | st.just(Close()), max_size=8)
RESPONSES = st.lists(RESPONSE, max_size=8)
SIZES = st.integers(32, 300)
GREEDY = SamplingParams()
LIMIT = 2**17


def requests(size: int = UP_BYTES) -> Sender[pb.SessionRequest]:
    return Sender(pb.SessionRequest, size)


def responses(size: int = DOWN_BYTES) -> Sender[pb.SessionResponse]:
    return Sender(pb.SessionResponse, size)


def over_the_wire(frame: pb.SessionRequest) -> pb.SessionRequest:
    return pb.SessionRequest.FromString(frame.SerializeToString())


def chain(length: int) -> Propose:
    return Propose((128_255,) * length, bytes(length), seen_advance=3)


# padding ----------------------------------------------------------------------------------------------------


def test_every_size_is_met_to_the_byte() -> None:
    for size in (2, *range(4, 700), *range(16_380, 16_400), *range(2_097_150, 2_097_165)):
        padded = pad(encode_request(Close()), size)
        assert len(padded.SerializeToString()) == padded.ByteSize() == size
        assert decode_request(over_the_wire(padded)) == Close()


@given(proposes())
def test_padding_says_nothing(message: Propose) -> None:
    request = encode_request(message)
    assert decode_request(over_the_wire(pad(request, request.ByteSize() + 130))) == message


@pytest.mark.parametrize("size", [23, 24, 25])
def test_what_is_longer_or_one_byte_short_is_refused(size: int) -> None:
    message = encode_request(chain(4))
    assert message.ByteSize() == 24
    if size == 24:
        assert pad(message, size).ByteSize() == 24
        return
    with pytest.raises(LocalError, match="cannot be padded"):
        pad(message, size)


@given(st.integers(0, 256), SIZES)
def test_without_parts_a_message_becomes_whole_frames_of_one_size(length: int, unit: int) -> None:
    size = encode_request(chain(length)).ByteSize()
    padded = pad_up(encode_request(chain(length)), unit)
    assert padded.ByteSize() % unit == 0
    assert size <= padded.ByteSize() < size + unit + 2
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
def test_frames_down_follow_what_was_asked_to_be_told(logprobs: int | None, size: int) -> None:
    request = Open((1,), GREEDY, b"", logprobs=logprobs)
    assert down_size(request, Privacy.PADDED) == size
    assert down_size(request, Privacy.STRICT) == STRICT_DOWN * size


@pytest.mark.parametrize(
    ("rule", "temperature", "size"),
    [("coupled", 1.0, UP_BYTES), ("rejection", 0.0, UP_BYTES), ("rejection", 1.0, DRAWN_UP_BYTES)],
)
def test_frames_up_follow_whether_drafts_are_drawn(rule: str, temperature: float, size: int) -> None:
    sampling = SamplingParams(temperature=temperature)
    request = Open((1,), sampling, b"", acceptance=make_acceptance(rule))
    assert up_size(request, Privacy.PADDED) == size
    assert up_size(request, Privacy.STRICT) == STRICT_UP * size


# padded -----------------------------------------------------------------------------------------------------


@given(REQUESTS, SIZES)
def test_padded_requests_have_one_size_and_come_back(messages: list[ClientMessage], size: int) -> None:
    sender, joiner = requests(size), Joiner(pb.SessionRequest, LIMIT)
    sender.hold(Privacy.PADDED, 0.0)
    for message in messages:
        sender.put(encode_request(message))
    frames = sender.take(0.0)
    assert {len(frame.SerializeToString()) for frame in frames} <= {size}
    got = [decode_request(whole) for frame in frames for whole in joiner.take(over_the_wire(frame))]
    assert got == messages
    assert sender.is_empty


@given(RESPONSES, SIZES)
def test_padded_responses_have_one_size_and_come_back(messages: list[ServerMessage], size: int) -> None:
    sender, joiner = responses(size), Joiner(pb.SessionResponse, LIMIT)
    sender.hold(Privacy.PADDED, 0.0)
    for message in messages:
        sender.put(encode_response(message))
    frames = sender.take(0.0)
    assert {frame.ByteSize() for frame in frames} <= {size}
    assert [decode_response(whole) for frame in frames for whole in joiner.take(frame)] == messages


def test_off_leaves_messages_as_they_are() -> None:
    sender = requests()
    sender.put(encode_request(chain(200)))
    assert sender.take(0.0) == [encode_request(chain(200))]


def test_before_the_peer_has_answered_nothing_is_cut() -> None:
    sender = requests()
    sender.begin(Privacy.PADDED)
    for length in (1, 100):
        sender.put(encode_request(chain(length)))
    frames = sender.take(0.0)
    assert [frame.WhichOneof("message") for frame in frames] == ["propose", "propose"]
    assert [frame.ByteSize() for frame in frames] == [UP_BYTES, 4 * UP_BYTES]


def test_a_peer_that_does_not_know_parts_gets_none() -> None:
    sender = responses()
    sender.hold(Privacy.PADDED, 0.0, parts=False)
    sender.put(encode_response(Commit(5, (128_255,) * 30)))
    assert [(frame.WhichOneof("message"), frame.ByteSize()) for frame in sender.take(0.0)] == [
        ("commit", 2 * DOWN_BYTES)
    ]


# strict -----------------------------------------------------------------------------------------------------


def test_who_asks_for_strict_sends_nothing_before_it_knows_when() -> None:
    sender = requests()
    sender.begin(Privacy.STRICT)
    sender.put(encode_request(chain(2)))
    assert sender.take(1.0) == []
    before = sender.next_at
    sender.hold(Privacy.STRICT, 2.0, 0.25)
    assert (before, sender.next_at) == (None, 2.0)
    assert [frame.WhichOneof("message") for frame in sender.take(2.0)] == ["part"]


@given(st.lists(st.tuples(st.integers(0, 40), proposes()), max_size=10), SIZES)
def test_what_a_cadence_lets_out_depends_on_nothing_that_was_put_in(
    told: list[tuple[int, Propose]], size: int
) -> None:
    sender, joiner = requests(size), Joiner(pb.SessionRequest, LIMIT)
    joiner.takes_fillers = True
    sender.hold(Privacy.STRICT, 0.0, 0.25)
    seen, got, tick = list[tuple[float, int]](), list[ClientMessage](), 0
    while tick < 60 or not sender.is_empty:
        for at, message in told:
            if at == tick:
                sender.put(encode_request(message))
        now = tick * 0.125
        for frame in sender.take(now):
            seen.append((now, frame.ByteSize()))
            got += [decode_request(whole) for whole in joiner.take(over_the_wire(frame))]
        tick += 1
    assert seen == [(number * 0.25, size) for number in range(len(seen))]
    assert len(seen) >= 30
    assert sorted(map(repr, got)) == sorted(repr(message) for _, message in told)


@given(st.lists(commits(), min_size=2, max_size=5))
def test_messages_that_wait_for_a_slot_share_it(messages: list[Commit]) -> None:
    wires = [encode_response(message) for message in messages]
    sender, joiner = responses(4000), Joiner(pb.SessionResponse, LIMIT)
    sender.hold(Privacy.STRICT, 0.0, 0.25)
    for wire in wires:
        sender.put(wire)
    first = sender.take(0.0)
    if sender.is_empty:
        assert [decode_response(whole) for whole in joiner.take(first[0])] == messages
    assert sender.has_room is sender.is_empty


# what a stranger may send -----------------------------------------------------------------------------------


def test_a_filler_is_a_breach_where_no_cadence_was_agreed_on() -> None:
    joiner = Joiner(pb.SessionRequest, LIMIT)
    with pytest.raises(PeerError, match="not strict"):
        joiner.take(pb.SessionRequest(filler=pb.Filler()))
    joiner.takes_fillers = True
    assert joiner.take(pb.SessionRequest(filler=pb.Filler())) == []
    with pytest.raises(PeerError, match="at most 4096"):
        joiner.take(pb.SessionRequest(filler=pb.Filler(), padding=[bytes(MAX_FRAME_BYTES)]))


def part(data: bytes) -> pb.SessionRequest:
    return pb.SessionRequest(part=pb.Part(data=data))


BROKEN = {
    "too long in all": (part(b"\x81\x80\x08"), "131073 bytes; at most 131072"),
    "an endless length": (part(b"\x80" * 5), "length of more than 5 bytes"),
    "too long a part": (part(bytes(MAX_FRAME_BYTES + 1)), "a part has 4097 bytes"),
    "no message": (part(b"\x02\xff\xff"), "is no message"),
    "a part in a part": (part(b"\x02\x22\x00"), "within a part"),
    "a filler in a part": (part(b"\x02\x2a\x00"), "within a part"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_parts_that_cannot_be_are_refused(case: str) -> None:
    frame, words = BROKEN[case]
    with pytest.raises(PeerError, match=words):
        Joiner(pb.SessionRequest, LIMIT).take(frame)


def test_nothing_comes_between_the_parts_of_a_message() -> None:
    joiner = Joiner(pb.SessionRequest, LIMIT)
    assert joiner.take(part(b"\x20\x12")) == []
    with pytest.raises(PeerError, match="between the parts"):
        joiner.take(encode_request(Close()))


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_no_bytes_in_parts_break_a_joiner(pieces: list[bytes]) -> None:
    joiner = Joiner(pb.SessionRequest, 1000)
    try:
        for piece in pieces:
            for whole in joiner.take(part(piece)):
                assert whole.WhichOneof("message") not in ("part", "filler")
    except PeerError:
        pass


@given(st.integers(0, 600), st.integers(2, 600))
def test_a_message_fits_if_it_can_be_padded(num_bytes: int, size: int) -> None:
    assert fits(num_bytes, size) is (num_bytes in range(size - 1) or num_bytes == size)
