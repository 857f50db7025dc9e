"""Law: what is encoded decodes to the same value, and no bytes make decoding fail but in its own ways."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from common.acceptance import LOSSLESS, Acceptance, AcceptanceRule
from common.draft import quantised
from common.errors import PeerError, UserError
from common.messages import (
    MAX_TOP_LOGPROBS,
    ClientMessage,
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Open,
    Opened,
    Propose,
    ServerMessage,
    TokenLogprobs,
)
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.rpc import bounds
from common.rpc.codec import (
    decode_request,
    decode_response,
    decode_sampling,
    encode_request,
    encode_response,
    encode_sampling,
)
from common.sampling import MAX_SEED, SamplingParams

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

ACCEPTANCE = st.one_of(
    st.builds(Acceptance, st.sampled_from(LOSSLESS)),
    st.floats(0, 1, exclude_min=True).map(lambda x: Acceptance(AcceptanceRule.LENIENCE, lenience=x)),
    st.builds(
        lambda epsilon, delta: Acceptance(AcceptanceRule.TYPICAL, epsilon=epsilon, delta=delta),
        st.floats(0, 1, exclude_min=True),
        st.floats(0, 9),
    ),
    st.builds(
        lambda top, gap: Acceptance(AcceptanceRule.TOPK_GAP, top=top, gap=gap),
        st.integers(1, 2**31 - 1),
        st.floats(0, 99),
    ),
    st.floats(0, 99).map(lambda x: Acceptance(AcceptanceRule.BILD, rollback=x)),
)
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
    acceptance=ACCEPTANCE,
    logprobs=st.none() | st.integers(0, MAX_TOP_LOGPROBS),
    privacy=PRIVACY,
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
    return Propose(tokens, logprobs, deltas, anchor, draw(POSITION), told)


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
    st.builds(Opened, POSITION, CREDIT, US, PRIVACY, st.integers(*bounds.INTERVALS_US)),
    commits(),
    st.builds(Drain, US),
    st.builds(Finish, st.sampled_from(FinishReason), POSITION),
)


def take_request(wire: bytes) -> None:
    """What a verifier does with bytes; the three refusals are the only ways to fail."""
    try:
        decode_request(pb.SessionRequest.FromString(wire))
    except (DecodeError, PeerError, UserError):
        pass


def take_response(wire: bytes) -> None:
    """What an edge does with bytes; the two refusals are the only ways to fail."""
    try:
        decode_response(pb.SessionResponse.FromString(wire))
    except (DecodeError, PeerError):
        pass


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


@given(SAMPLING)
def test_sampling_parameters_come_back_bit_for_bit(sampling: SamplingParams) -> None:
    wire = encode_sampling(sampling).SerializeToString()
    assert decode_sampling(pb.Sampling.FromString(wire)) == sampling


def test_absent_fields_mean_the_defaults_of_the_dataclasses() -> None:
    bare = pb.SessionRequest(open=pb.Open(prompt=[7]))
    assert decode_request(bare) == Open(prompt=(7,), sampling=SamplingParams(), fingerprint=b"")
    assert decode_request(pb.SessionRequest(propose=pb.Propose())) == Propose()
    assert decode_response(pb.SessionResponse(commit=pb.Commit())) == Commit(0, ())


def test_default_sampling_costs_nothing() -> None:
    assert encode_sampling(SamplingParams()).SerializeToString() == b""


@given(st.binary(max_size=200))
def test_no_bytes_break_decoding(wire: bytes) -> None:
    take_request(wire)
    take_response(wire)


@given(REQUEST, st.integers(0, 1000), st.integers(0, 255))
def test_no_damaged_request_breaks_decoding(message: ClientMessage, place: int, byte: int) -> None:
    take_request(damage(encode_request(message), place, byte))


@given(RESPONSE, st.integers(0, 1000), st.integers(0, 255))
def test_no_damaged_response_breaks_decoding(message: ServerMessage, place: int, byte: int) -> None:
    take_response(damage(encode_response(message), place, byte))


@given(REQUEST, st.binary(max_size=40))
def test_a_message_of_the_wrong_direction_is_taken_or_refused(message: ClientMessage, tail: bytes) -> None:
    take_response(encode_request(message).SerializeToString() + tail)


@pytest.mark.parametrize("reason", FinishReason)
def test_finish_reasons_have_the_numbers_of_the_wire(reason: FinishReason) -> None:
    assert pb.FinishReason.Value(f"FINISH_REASON_{reason.name}") == reason.value
