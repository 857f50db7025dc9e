"""Law: each bound of rule 15 takes its limit and refuses one more, in a sentence that names the field."""

from collections.abc import Sequence
from typing import Any

import pytest

from common.acceptance import COUPLED, Acceptance, AcceptanceRule, Draft
from common.errors import Code, PeerError, UserError
from common.messages import Finish, FinishReason, Open
from common.pb import verifier_pb2 as pb
from common.sampling import MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_TOKENS, SamplingParams
from common.wire import bounds
from common.wire.codec import decode_request, decode_response, encode_request
from common.wire.grpc_options import MAX_MESSAGE_BYTES
from tests import wording

BIG = 2**32 - 1


def names(cases: Sequence[tuple[str, *tuple[object, ...]]]) -> list[str]:
    """A test id for each case: its field and number."""
    return [f"{case[0]}-{number}" for number, case in enumerate(cases)]


def take_open(**fields: Any) -> Any:
    return decode_request(pb.SessionRequest(open=pb.Open(**{"prompt": [1], **fields})))


def take_propose(**fields: Any) -> Any:
    return decode_request(pb.SessionRequest(propose=pb.Propose(**fields)))


def take_opened(**fields: Any) -> Any:
    return decode_response(pb.SessionResponse(opened=pb.Opened(**fields)))


def take_commit(**fields: Any) -> Any:
    return decode_response(pb.SessionResponse(commit=pb.Commit(**fields)))


def take_finish(reason: int, position: int) -> Any:
    wire = pb.Finish(position=position).SerializeToString() + b"\x08" + bytes([reason])
    return decode_response(pb.SessionResponse(finish=pb.Finish.FromString(wire)))


OPEN_CASES = [
    ("open.prompt", [5], []),
    ("open.prompt", [bounds.MAX_TOKEN_ID], [bounds.MAX_TOKEN_ID + 1]),
    ("open.committed", [0, bounds.MAX_TOKEN_ID], [0, BIG]),
    ("open.fingerprint", b"x" * bounds.MAX_FINGERPRINT_BYTES, b"x" * (bounds.MAX_FINGERPRINT_BYTES + 1)),
    ("open.model", "m" * bounds.MAX_MODEL_CHARS, "m" * (bounds.MAX_MODEL_CHARS + 1)),
    ("open.model", "org/model ä", "model\nlevel=error"),
    ("open.session_id", "s" * bounds.MAX_SESSION_ID_CHARS, "s" * (bounds.MAX_SESSION_ID_CHARS + 1)),
    ("open.session_id", "a b", "a\x1b[2Jb"),
]


@pytest.mark.parametrize(("field", "allowed", "refused"), OPEN_CASES, ids=names(OPEN_CASES))
def test_open_is_bounded(field: str, allowed: object, refused: object) -> None:
    name = field.partition(".")[2]
    take_open(**{name: allowed})
    with pytest.raises(PeerError, match=f"^{field} ") as caught:
        take_open(**{name: refused})
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("field", "limit"), [("prompt", bounds.MAX_PROMPT_TOKENS), ("committed", bounds.MAX_COMMITTED_TOKENS)]
)
def test_a_million_tokens_are_taken_and_one_more_is_not(field: str, limit: int) -> None:
    assert len(getattr(take_open(**{field: [5] * limit}), field)) == limit
    with wording.raises(PeerError):
        take_open(**{field: [5] * (limit + 1)})


def nodes(number: int) -> dict[str, object]:
    return {"tokens": [9] * number, "logprobs": bytes(number)}


def deltas(*values: int, anchor: int | None = 0) -> dict[str, object]:
    return {**nodes(2), "parent_deltas": values, "anchor": anchor}


def drafts(tokens: list[int], counts: bytes, sizes: tuple[int, ...] = (2, 0)) -> dict[str, object]:
    """Two nodes, the first of which brings a distribution."""
    return {**nodes(2), "draft_sizes": sizes, "draft_tokens": tokens, "draft_counts": counts}


HALVES = bytes([127, 127])
MANY = bounds.MAX_DRAFT_TOKENS
EVEN = bytes([256 // MANY - 1] * MANY)

PROPOSE_CASES = [
    ("tokens", nodes(bounds.MAX_NODES), nodes(bounds.MAX_NODES + 1)),
    ("tokens", nodes(1), {"tokens": [bounds.MAX_TOKEN_ID + 1], "logprobs": b"\0"}),
    ("logprobs", nodes(2), {**nodes(2), "logprobs": b"\0"}),
    ("logprobs", nodes(0), {**nodes(0), "logprobs": b"\0"}),
    ("parent_deltas", {**nodes(2), "parent_deltas": []}, deltas(1)),
    ("parent_deltas", deltas(0, 1), deltas(0, 1, 1)),
    ("parent_deltas", deltas(0, bounds.MAX_PARENT_DELTA), deltas(0, bounds.MAX_PARENT_DELTA + 1)),
    ("parent_deltas", deltas(1, 1, anchor=None), deltas(0, 1, anchor=None)),
    ("anchor", {"anchor": bounds.MAX_POSITION}, {"anchor": bounds.MAX_POSITION + 1}),
    ("seen_advance", {"seen_advance": bounds.MAX_POSITION}, {"seen_advance": bounds.MAX_POSITION + 1}),
    ("draft_sizes", drafts([9, 1], HALVES), drafts([9, 1], HALVES, (2,))),
    (
        "draft_sizes",
        drafts([1] * MANY, EVEN, (MANY, 0)),
        drafts([1] * (MANY + 1), EVEN + b"\0", (MANY + 1, 0)),
    ),
    ("draft_sizes", drafts([], b"", (0, 0)), drafts([9], b"\xff", ())),
    ("draft_tokens", drafts([9, 1], HALVES), drafts([9, 1, 1], HALVES)),
    ("draft_counts", drafts([9, 1], HALVES), drafts([9, 1], HALVES + b"\0")),
    ("draft_tokens token id", drafts([2**31 - 2, 1], HALVES), drafts([2**31 - 1, 1], HALVES)),
]


@pytest.mark.parametrize(
    "refused", [drafts([9, 0], HALVES), drafts([9, 1], bytes([127, 126])), drafts([9, 1], bytes([255, 0]))]
)
def test_a_distribution_is_one(refused: dict[str, object]) -> None:
    with wording.raises(PeerError):
        take_propose(**refused)


def test_tokens_of_a_distribution_travel_as_differences() -> None:
    taken = take_propose(**drafts([9, 1], HALVES)).drafts
    assert taken == (Draft((9, 10), (128, 128)), None)
    assert take_propose(**drafts([0], b"\xff", (0, 1))).drafts == (None, Draft((0,), (256,)))


@pytest.mark.parametrize(("field", "allowed", "refused"), PROPOSE_CASES, ids=names(PROPOSE_CASES))
def test_propose_is_bounded(field: str, allowed: dict[str, object], refused: dict[str, object]) -> None:
    take_propose(**allowed)
    with pytest.raises(PeerError, match=rf"^propose\.{field} "):
        take_propose(**refused)


@pytest.mark.parametrize(
    ("field", "limit"), [("position", bounds.MAX_POSITION), ("credit", bounds.MAX_CREDIT)]
)
def test_opened_is_bounded(field: str, limit: int) -> None:
    take_opened(**{field: limit})
    with wording.raises(PeerError):
        take_opened(**{field: limit + 1})


def tops(num_tokens: int, top_tokens: list[int], top_logprobs: list[float]) -> dict[str, object]:
    shape = {"tokens": [1] * num_tokens, "logprobs": [-0.5] * num_tokens}
    return {**shape, "top_tokens": top_tokens, "top_logprobs": top_logprobs}


COMMIT_CASES = [
    ("tokens", {"tokens": [1] * bounds.MAX_COMMIT_TOKENS}, {"tokens": [1] * (bounds.MAX_COMMIT_TOKENS + 1)}),
    ("tokens", {"tokens": [bounds.MAX_TOKEN_ID]}, {"tokens": [BIG]}),
    ("start", {"start": bounds.MAX_POSITION}, {"start": bounds.MAX_POSITION + 1}),
    ("start", {"start": bounds.MAX_POSITION - 2, "tokens": [1] * 2}, {"start": BIG, "tokens": [1] * 2}),
    (
        "start",
        {"start": bounds.MAX_POSITION - 2, "tokens": [1] * 2},
        {"start": bounds.MAX_POSITION - 1, "tokens": [1] * 2},
    ),
    (
        "server_made",
        {"tokens": [1] * 9, "server_made": b"\xff\x01"},
        {"tokens": [1] * 9, "server_made": b"\0\2"},
    ),
    ("server_made", {"server_made": bytes(512)}, {"server_made": bytes(513)}),
    ("credit", {"credit": bounds.MAX_CREDIT}, {"credit": bounds.MAX_CREDIT + 1}),
    ("evaluated", {"evaluated": bounds.MAX_CREDIT + 1}, {"evaluated": bounds.MAX_CREDIT + 2}),
    ("logprobs", {"tokens": [1, 2], "logprobs": [-1.0, 0.0]}, {"tokens": [1, 2], "logprobs": [-1.0]}),
    ("logprobs", {"tokens": [1], "logprobs": [float("-inf")]}, {"tokens": [1], "logprobs": [float("nan")]}),
    ("logprobs", {"tokens": [1], "logprobs": [-0.5]}, {"tokens": [1], "logprobs": [0.5]}),
    ("logprobs", {"tokens": []}, {"tokens": [], "logprobs": [-1.0]}),
    ("top_logprobs", tops(1, [3], [-1.0]), tops(1, [3], [])),
    ("top_tokens", tops(2, [3, 4], [-1.0] * 2), tops(2, [3, 4, 5], [-1.0] * 3)),
    ("top_tokens", tops(1, [3] * 20, [-1.0] * 20), tops(1, [3] * 21, [-1.0] * 21)),
    ("top_tokens", {}, tops(0, [3], [-1.0])),
    ("top_tokens", tops(1, [bounds.MAX_TOKEN_ID], [-1.0]), tops(1, [BIG], [-1.0])),
]


@pytest.mark.parametrize(("field", "allowed", "refused"), COMMIT_CASES, ids=names(COMMIT_CASES))
def test_commit_is_bounded(field: str, allowed: dict[str, object], refused: dict[str, object]) -> None:
    take_commit(**allowed)
    with pytest.raises(PeerError, match=rf"^commit\.{field} "):
        take_commit(**refused)


def test_logprobs_are_asked_for_up_to_their_limit() -> None:
    assert take_open(prompt=[1]).logprobs is None
    assert take_open(prompt=[1], logprobs=0).logprobs == 0
    assert take_open(prompt=[1], logprobs=20).logprobs == 20
    with wording.raises(UserError):
        take_open(prompt=[1], logprobs=21)


def test_finish_is_bounded() -> None:
    assert take_finish(3, bounds.MAX_POSITION) == Finish(FinishReason.CANCELLED, bounds.MAX_POSITION)
    with wording.raises(PeerError):
        take_finish(1, bounds.MAX_POSITION + 1)


@pytest.mark.parametrize("reason", [0, 4, 100])
def test_an_unknown_finish_reason_is_refused(reason: int) -> None:
    with wording.raises(PeerError):
        take_finish(reason, 0)


def test_an_empty_or_unknown_member_is_refused() -> None:
    unknown = b"\x7a\x00"  # field 15, length 0: a message kind of some later version
    with wording.raises(PeerError):
        decode_request(pb.SessionRequest.FromString(unknown))
    with wording.raises(PeerError):
        decode_response(pb.SessionResponse.FromString(unknown))


SAMPLING_CASES = [
    ("temperature", pb.Sampling(temperature=-0.1)),
    ("logit_bias", pb.Sampling(logit_bias=[pb.LogitBias(token=1)] * (MAX_LOGIT_BIAS_ENTRIES + 1))),
    ("stop_token_ids", pb.Sampling(stop_token_ids=[1] * (MAX_STOP_TOKENS + 1))),
]


@pytest.mark.parametrize(("field", "sampling"), SAMPLING_CASES, ids=names(SAMPLING_CASES))
def test_bad_sampling_is_the_users_error(field: str, sampling: pb.Sampling) -> None:
    with pytest.raises(UserError, match=f"^{field} ") as caught:
        take_open(sampling=sampling)
    assert caught.value.code is Code.INVALID_ARGUMENT


ACCEPTANCE_CASES = [
    ("acceptance.rule", pb.Acceptance()),
    ("acceptance.rule", pb.Acceptance.FromString(b"\x08\x63")),  # of a later version
    ("lenience", pb.Acceptance(rule="ACCEPTANCE_RULE_LOSSY_LENIENCE", lenience=0.0)),
]


@pytest.mark.parametrize(("field", "acceptance"), ACCEPTANCE_CASES, ids=names(ACCEPTANCE_CASES))
def test_a_bad_acceptance_rule_is_the_users_error(field: str, acceptance: pb.Acceptance) -> None:
    with pytest.raises(UserError, match=f"^{field} is"):
        take_open(acceptance=acceptance)


def test_settings_of_other_rules_count_for_nothing() -> None:
    message = pb.Acceptance(rule="ACCEPTANCE_RULE_REJECTION", lenience=0.3)
    assert take_open(acceptance=message).acceptance == Acceptance(AcceptanceRule.REJECTION)
    assert take_open().acceptance == COUPLED


def test_sampling_lists_are_taken_up_to_their_limit() -> None:
    biased = [pb.LogitBias(token=1)] * MAX_LOGIT_BIAS_ENTRIES
    opened = take_open(sampling=pb.Sampling(logit_bias=biased, stop_token_ids=[1] * MAX_STOP_TOKENS))
    assert len(opened.sampling.logit_bias) == MAX_LOGIT_BIAS_ENTRIES
    assert len(opened.sampling.stop_token_ids) == MAX_STOP_TOKENS


def test_the_longest_open_fits_a_message() -> None:
    token = 2**28 - 1  # four bytes as a varint
    longest = Open(
        prompt=(token,) * bounds.MAX_PROMPT_TOKENS,
        sampling=SamplingParams(),
        fingerprint=bytes(bounds.MAX_FINGERPRINT_BYTES),
        committed=(token,) * bounds.MAX_COMMITTED_TOKENS,
    )
    assert encode_request(longest).ByteSize() <= MAX_MESSAGE_BYTES
