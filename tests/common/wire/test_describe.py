"""Law: a verifier's description comes back as it was, padding told from empty tokens, and is bounded."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from common.acceptance import AcceptanceRule
from common.errors import PeerError
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingDefaults
from common.wire import bounds
from common.wire.describe import (
    PROTOCOL_VERSION,
    Description,
    VerifierLoad,
    decode_description,
    encode_description,
)

PIECE = st.none() | st.binary(max_size=8)


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    table = draw(st.lists(PIECE, min_size=1, max_size=30).map(tuple))
    return Description(
        model=draw(st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)),
        vocab_size=len(table),
        max_positions=draw(st.integers(1, bounds.MAX_POSITION)),
        fingerprint=draw(st.binary(max_size=bounds.MAX_FINGERPRINT_BYTES)),
        eos_token_ids=tuple(draw(st.lists(st.integers(0, bounds.MAX_TOKEN_ID), max_size=4))),
        vocabulary=draw(st.sampled_from([table, None])),
        acceptance_rules=tuple(draw(st.lists(st.sampled_from(AcceptanceRule), min_size=1, max_size=8))),
        version=draw(st.sampled_from(["", "0.1.0"])),
        chat_template=draw(st.text(max_size=20)),
        bos_token=draw(st.sampled_from(["", "<s>"])),
        eos_token=draw(st.sampled_from(["", "</s>\n"])),
        grammars=draw(st.booleans()),
        max_session_positions=draw(st.none() | st.integers(1, bounds.MAX_POSITION)),
        sampling_defaults=draw(
            st.builds(
                SamplingDefaults,
                temperature=st.none() | st.floats(0, 100),
                top_k=st.none() | st.integers(0, 2**31 - 1),
                top_p=st.none() | st.floats(0.01, 1),
                min_p=st.none() | st.floats(0, 1),
                repetition_penalty=st.none() | st.floats(0.01, 100),
            )
        ),
        repeats=draw(st.none() | st.booleans()),
        step_times=tuple(
            sorted(draw(st.dictionaries(st.integers(1, 99), st.integers(1, 2**32 - 1), max_size=9)).items())
        ),
        max_text_tokens=draw(st.none() | st.integers(1, bounds.MAX_POSITION)),
        load=draw(
            st.none()
            | st.builds(
                VerifierLoad,
                st.integers(0, 2**32 - 1),
                st.integers(0, 9),
                st.booleans(),
                st.integers(0, 2**32 - 1),
            )
        ),
    )


def answer(**fields: object) -> pb.DescribeResponse:
    """A valid answer but for `fields`."""
    whole = {"protocol_version": PROTOCOL_VERSION, "vocab_size": 2, "max_positions": 9, **fields}
    return pb.DescribeResponse(**whole)  # type: ignore[arg-type]  # fields vary by case


def table(pieces: list[bytes], absent: list[int]) -> dict[str, pb.Vocabulary]:
    return {"vocabulary": pb.Vocabulary(pieces=pieces, absent=absent)}


@given(descriptions())
def test_descriptions_come_back_as_they_were(description: Description) -> None:
    wire = encode_description(description).SerializeToString()
    assert decode_description(pb.DescribeResponse.FromString(wire)) == description


def test_padding_differs_from_a_token_that_is_the_empty_string() -> None:
    decoded = decode_description(answer(**table([b"", b""], [1])))
    assert decoded.vocabulary == (b"", None)


def test_a_verifier_that_names_no_rule_has_the_coupled_one_and_unknown_ones_are_left_out() -> None:
    assert decode_description(answer()).acceptance_rules == (AcceptanceRule.COUPLED,)
    later = answer(acceptance_rules=[2]).SerializeToString() + b"\x40\x63"  # rule 99
    description = decode_description(pb.DescribeResponse.FromString(later))
    assert description.acceptance_rules == (AcceptanceRule.REJECTION,)


def advice(**values: float) -> dict[str, object]:
    return {"sampling_defaults": pb.SamplingDefaults(**values)}  # type: ignore[arg-type]


def steps(*rows: int) -> dict[str, object]:
    return {"step_times": [pb.StepTime(rows=each, time_us=9) for each in rows]}


LONG = bytes(bounds.MAX_PIECE_BYTES)
CASES: list[tuple[str, dict[str, object], dict[str, object]]] = [
    ("protocol_version", {}, {"protocol_version": PROTOCOL_VERSION + 1}),
    ("vocab_size", {"vocab_size": bounds.MAX_VOCAB_SIZE}, {"vocab_size": bounds.MAX_VOCAB_SIZE + 1}),
    ("vocab_size", {"vocab_size": 1}, {"vocab_size": 0}),
    ("max_positions", {"max_positions": bounds.MAX_POSITION}, {"max_positions": bounds.MAX_POSITION + 1}),
    ("max_positions", {"max_positions": 1}, {"max_positions": 0}),
    ("max_session_positions", {"max_session_positions": 1}, {"max_session_positions": 0}),
    ("max_text_tokens", {"max_text_tokens": 1}, {"max_text_tokens": 2**31}),
    ("sampling_defaults", advice(temperature=100.0), advice(temperature=100.5)),
    ("sampling_defaults", advice(top_p=1.0), advice(top_p=0.0)),
    ("model", {"model": "m" * bounds.MAX_MODEL_CHARS}, {"model": "m" * (bounds.MAX_MODEL_CHARS + 1)}),
    (
        "version",
        {"version": "v" * bounds.MAX_VERSION_CHARS},
        {"version": "v" * (bounds.MAX_VERSION_CHARS + 1)},
    ),
    ("chat_template", {"chat_template": "é" * 2**17}, {"chat_template": "é" * 2**17 + "x"}),
    ("step_times", steps(*range(1, 257)), steps(*range(1, 258))),
    ("step_times", steps(1, 2), steps(1, 1)),
    ("step_times", steps(1), steps(0)),
    ("step_times", steps(1), {"step_times": [pb.StepTime(rows=1)]}),
    ("bos_token", {"bos_token": "x" * 4096}, {"bos_token": "x" * 4097}),
    ("eos_token", {"eos_token": "x" * 4096}, {"eos_token": "x" * 4097}),
    ("fingerprint", {"fingerprint": bytes(64)}, {"fingerprint": bytes(65)}),
    ("eos_token_ids", {"eos_token_ids": [1] * 128}, {"eos_token_ids": [1] * 129}),
    ("acceptance_rules", {"acceptance_rules": [1] * 64}, {"acceptance_rules": [1] * 65}),
    ("vocabulary.pieces", {**table([b"a", b"b"], [])}, {**table([b"a"], [])}),
    ("vocabulary.pieces' longest", {**table([LONG, b""], [])}, {**table([LONG + b"x", b""], [])}),
    ("vocabulary.absent", {**table([b"", b""], [0, 1])}, {**table([b"", b""], [0, 1, 1])}),
    ("vocabulary.absent", {**table([b"a", b""], [1])}, {**table([b"a", b""], [2])}),
    ("vocabulary.absent", {**table([b"a", b""], [1])}, {**table([b"a", b""], [0])}),
]


@pytest.mark.parametrize(
    ("field", "allowed", "refused"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)]
)
def test_a_description_is_bounded(field: str, allowed: dict[str, object], refused: dict[str, object]) -> None:
    decode_description(answer(**allowed))
    with pytest.raises(PeerError, match=rf"^describe\.{field}:? "):
        decode_description(answer(**refused))


@given(st.binary(max_size=100))
def test_no_bytes_break_decoding(wire: bytes) -> None:
    try:
        decode_description(pb.DescribeResponse.FromString(wire))
    except (DecodeError, PeerError):
        pass
