"""Law: what is encoded decodes to the same value, and no bytes make decoding fail but in its own ways."""

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from common.acceptance import PARAMETERS, Acceptance, AcceptanceRule
from common.errors import PeerError, UserError
from common.messages import (
    MAX_TOP_LOGPROBS,
    ClientMessage,
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Hint,
    Open,
    Opened,
    Propose,
    ServerMessage,
    TokenLogprobs,
    Wait,
    pack_logprob,
    unpack_logprob,
)
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.sampling import MAX_SEED, SamplingParams
from common.wire import bounds
from common.wire.codec import (
    MAX_US,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_sampling,
)
from schemes.rules.drafts import quantised

TOKEN = st.integers(0, bounds.MAX_TOKEN_ID)
LOGPROB = st.floats(max_value=0.0, width=32, allow_nan=False)
TOKENS = st.lists(TOKEN, max_size=20).map(tuple)
US = st.integers(0, 2**32 - 1)
COUNT = st.integers(0, 2**32 - 1)
POSITION = st.integers(0, bounds.MAX_POSITION)
CREDIT = st.integers(0, bounds.MAX_CREDIT)
PENALTY = st.floats(-100, 100)
NAME = st.text(st.just(" ") | st.characters(exclude_categories=("C", "Z")), max_size=30)  # str.isprintable

SAMPLING = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 100, exclude_min=True),
    presence_penalty=PENALTY,
    frequency_penalty=PENALTY,
    logit_bias=st.lists(st.tuples(TOKEN, st.floats(-1000, 1000)), max_size=5).map(tuple),
    stop_token_ids=TOKENS,
    ignore_eos=st.booleans(),
    max_tokens=st.integers(1, 2**31 - 1),
    seed=st.integers(0, MAX_SEED),
    grammar=st.text(max_size=20),
)

SHARE = st.floats(0.01, 1)
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "lenience": SHARE,
    "epsilon": SHARE,
    "delta": st.floats(0, 9),
    "top": st.integers(1, 2**31 - 1),
    "gap": st.floats(0, 99),
    "rollback": st.floats(0, 99),
    "alpha": SHARE,
    "beta": st.floats(0, 9),
    "fusion": SHARE,
}


@st.composite
def acceptances(draw: st.DrawFn) -> Acceptance:
    rule = draw(st.sampled_from(AcceptanceRule))
    settings: dict[str, Any] = {name: draw(SETTINGS[name]) for name in PARAMETERS.get(rule, ())}
    return Acceptance(rule, **settings)


DRAFT = st.lists(TOKEN, min_size=1, max_size=5, unique=True).map(
    lambda tokens: quantised(tokens, [-float(place) for place in range(len(tokens))])
)

PRIVACY = st.none() | st.sampled_from(Privacy)

OPEN = st.builds(
    Open,
    prompt=st.lists(TOKEN, min_size=1, max_size=20).map(tuple),
    sampling=SAMPLING,
    fingerprint=st.binary(max_size=bounds.MAX_FINGERPRINT_BYTES),
    model=NAME,
    committed=TOKENS,
    fill=st.booleans(),
    session_id=NAME,
    acceptance=acceptances(),
    logprobs=st.none() | st.integers(0, MAX_TOP_LOGPROBS),
    privacy=PRIVACY,
    hints=st.booleans(),
)


@st.composite
def proposes(draw: st.DrawFn) -> Propose:
    tokens = draw(TOKENS)
    size = len(tokens)
    anchor = draw(st.none() | POSITION)
    delta = st.integers(0 if anchor is not None else 1, bounds.MAX_PARENT_DELTA)
    deltas = draw(st.just(()) | st.lists(delta, min_size=size, max_size=size).map(tuple))
    logprobs = draw(st.binary(min_size=size, max_size=size))
    told = draw(st.just(()) | st.lists(st.none() | DRAFT, min_size=size, max_size=size).map(tuple))
    microseconds = st.integers(0, bounds.MAX_WAIT_US)
    wait = draw(st.none() | st.builds(Wait, microseconds, microseconds))
    return Propose(tokens, logprobs, deltas, anchor, draw(POSITION), told, wait)


@st.composite
def logprobs(draw: st.DrawFn, count: int) -> tuple[TokenLogprobs, ...]:
    """Of so many tokens, each with as many alternatives."""
    each = draw(st.integers(0, MAX_TOP_LOGPROBS))
    top = st.lists(st.tuples(TOKEN, LOGPROB), min_size=each, max_size=each).map(tuple)
    return tuple(draw(st.builds(TokenLogprobs, LOGPROB, top)) for _ in range(count))


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    tokens = draw(TOKENS)
    return Commit(
        start=draw(st.integers(0, bounds.MAX_POSITION - len(tokens))),
        tokens=tokens,
        server_made=draw(st.integers(0, 2 ** len(tokens) - 1)),
        echo=draw(COUNT),
        hold_us=draw(US),
        queue_us=draw(US),
        compute_us=draw(US),
        credit=draw(st.none() | CREDIT),
        evaluated=draw(CREDIT),
        steps=draw(st.integers(1, max(1, len(tokens)))),
        logprobs=draw(st.just(()) | logprobs(len(tokens))),
    )


REQUEST: st.SearchStrategy[ClientMessage] = st.one_of(OPEN, proposes(), st.just(Close()))
RESPONSE: st.SearchStrategy[ServerMessage] = st.one_of(
    st.builds(Opened, POSITION, CREDIT, US, PRIVACY, POSITION),
    commits(),
    st.builds(Hint, POSITION, POSITION, TOKENS, st.lists(TOKEN, min_size=1, max_size=8).map(tuple)),
    st.builds(Drain, US),
    st.builds(Finish, st.sampled_from(FinishReason), POSITION),
)


REFUSALS = (DecodeError, PeerError, UserError)
"""The only ways in which decoding may fail."""


def take(wire: bytes) -> None:
    """Decode bytes as both sides do."""
    with suppress(*REFUSALS):
        decode_request(pb.SessionRequest.FromString(wire))
    with suppress(*REFUSALS):
        decode_response(pb.SessionResponse.FromString(wire))


def damage(message: Message, place: int, byte: int) -> bytes:
    """The serialised message with one byte set to another value."""
    wire = bytearray(message.SerializeToString())
    if wire:
        wire[place % len(wire)] = byte
    return bytes(wire)


@given(REQUEST)
def test_requests_come_back_as_they_were(message: ClientMessage) -> None:
    wire = encode_request(message).SerializeToString()
    assert decode_request(pb.SessionRequest.FromString(wire)) == message


@given(RESPONSE)
def test_responses_come_back_as_they_were(message: ServerMessage) -> None:
    wire = encode_response(message).SerializeToString()
    assert decode_response(pb.SessionResponse.FromString(wire)) == message


def test_absent_fields_mean_the_defaults_of_the_dataclasses() -> None:
    bare = pb.SessionRequest(open=pb.Open(prompt=[7]))
    assert decode_request(bare) == Open(prompt=(7,), sampling=SamplingParams(), fingerprint=b"")
    assert decode_request(pb.SessionRequest(propose=pb.Propose())) == Propose()
    assert decode_response(pb.SessionResponse(commit=pb.Commit())) == Commit(0, ())


def test_default_sampling_costs_nothing() -> None:
    assert encode_sampling(SamplingParams()).SerializeToString() == b""


ENCODED: st.SearchStrategy[Message] = REQUEST.map(encode_request) | RESPONSE.map(encode_response)


@given(ENCODED, st.integers(0, 1000), st.integers(0, 255), st.binary(max_size=200))
def test_no_damaged_message_breaks_decoding_in_either_direction(
    message: Message, place: int, byte: int, tail: bytes
) -> None:
    take(damage(message, place, byte) + tail)


def test_times_saturate_instead_of_failing_after_71_minutes() -> None:
    hour = 3600 * 10**6
    late = Commit(5, (1,), hold_us=2 * hour, queue_us=2 * hour, compute_us=2 * hour)
    assert decode_response(encode_response(late)) == Commit(
        5, (1,), hold_us=MAX_US, queue_us=MAX_US, compute_us=MAX_US
    )
    assert decode_response(encode_response(Drain(2 * hour))) == Drain(MAX_US)
    assert decode_response(encode_response(Opened(5, 8, 2 * hour))) == Opened(5, 8, MAX_US)


def test_a_number_that_no_field_holds_is_a_defect_of_ours() -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode_request(Propose((-1,), b"\0"))


@pytest.mark.parametrize(
    ("logprob", "byte"),
    [
        (0.0, 0),
        (-0.0, 0),
        (-0.03, 0),
        (-0.04, 1),
        (-0.0625, 1),
        (-1.0, 16),
        (-15.9, 254),
        (-15.9375, 255),
        (-16.0, 255),
        (-1e9, 255),
        (0.5, 0),  # no probability is above 1
    ],
)
def test_a_log_probability_is_one_byte_of_sixteenths(logprob: float, byte: int) -> None:
    assert pack_logprob(logprob) == byte


def test_every_byte_survives_unpacking() -> None:
    for byte in range(256):
        assert unpack_logprob(byte) == -byte / 16
        assert pack_logprob(unpack_logprob(byte)) == byte
