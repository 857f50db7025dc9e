"""Law: sizes on the wire (rule 16), and that our own odd values leave in a form that the peer takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.wire_size import measure
from common.draft import Draft
from common.messages import Commit, Drain, Opened, Propose
from common.pb import verifier_pb2 as pb
from common.rpc.codec import decode_response, encode_request, encode_response
from common.rpc.encode import MAX_US

VOCAB_SIZE = 2**17  # "128k"
ONE_BYTE_TAGS = 15
"""The largest field number with a tag of one byte."""


@st.composite
def steady_chains(draw: st.DrawFn) -> Propose:
    """A chain below the node before it, sent after some Commits were seen."""
    size = draw(st.integers(1, 256))
    tokens = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=size, max_size=size))
    logprobs = draw(st.binary(min_size=size, max_size=size))
    return Propose(tuple(tokens), logprobs, seen_advance=draw(st.integers(1, 127)))


@given(steady_chains())
def test_a_drafted_token_costs_at_most_8_bytes_in_company_and_12_alone(message: Propose) -> None:
    size = encode_request(message).ByteSize()
    per_token = size / len(message.tokens)
    assert per_token <= (8 if len(message.tokens) >= 4 else 12)


@st.composite
def drawn_chains(draw: st.DrawFn) -> tuple[Propose, int]:
    """A steady chain of four or more whose nodes each bring a distribution, and the tokens of all these."""
    message = draw(steady_chains().filter(lambda message: len(message.tokens) >= 4))
    count = draw(st.integers(1, 64))
    step = draw(st.integers(1, VOCAB_SIZE // count))
    told = Draft(tuple(range(0, step * count, step)), (256 - count + 1, *(1,) * (count - 1)))
    return replace(message, drafts=(told,) * len(message.tokens)), count * len(message.tokens)


@given(drawn_chains())
def test_a_distribution_costs_at_most_4_bytes_a_token_and_2_beside(case: tuple[Propose, int]) -> None:
    message, num_tokens = case
    plain = encode_request(replace(message, drafts=())).ByteSize()
    assert encode_request(message).ByteSize() - plain <= 4 * num_tokens + 2 * len(message.tokens) + 12


def test_the_benchmark_keeps_the_law_and_counts_the_framing() -> None:
    rows = {row.message: row for row in measure()}
    for length, limit in ((1, 12), (4, 8), (8, 8), (16, 8)):
        row = rows[f"Propose, chain of {length}"]
        assert row.tokens == length
        assert row.bytes / length <= limit
        assert row.framed == row.bytes + 14


@pytest.mark.parametrize(
    "message", [pb.SessionRequest, pb.Propose, pb.SessionResponse, pb.Commit, pb.Opened, pb.Drain, pb.Finish]
)
def test_every_field_of_a_frequent_message_has_a_tag_of_one_byte(message: type[pb.Propose]) -> None:
    assert all(field.number <= ONE_BYTE_TAGS for field in message.DESCRIPTOR.fields)


def test_times_saturate_instead_of_failing_after_71_minutes() -> None:
    hour = 3600 * 10**6
    late = Commit(5, (1,), hold_us=2 * hour, queue_us=2 * hour, compute_us=2 * hour)
    assert decode_response(encode_response(late)) == Commit(
        5, (1,), hold_us=MAX_US, queue_us=MAX_US, compute_us=MAX_US
    )
    assert decode_response(encode_response(Drain(2 * hour))) == Drain(MAX_US)
    assert decode_response(encode_response(Opened(5, 8, 2 * hour))) == Opened(5, 8, MAX_US)


def test_the_mask_is_little_endian_without_trailing_zeros() -> None:
    commit = encode_response(Commit(0, (1,) * 12, server_made=1 << 8 | 1)).commit
    assert commit.server_made == b"\x01\x01"
    assert encode_response(Commit(0, (1,) * 12)).commit.server_made == b""


def test_a_number_that_no_field_holds_is_a_defect_of_ours() -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode_request(Propose((-1,), b"\0"))
