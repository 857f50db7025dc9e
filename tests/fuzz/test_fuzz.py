"""Whatever a client sends, the verifier lives, says so in a sentence, and nobody else notices.

A small part of what `python -m tests.fuzz.soak` plays, with fixed seeds; and that the fuzz can fail.
"""

from __future__ import annotations

from typing import Any

import grpc
import jwt
import pytest

from cloud_verifier.identity.identity import Identity, IncomingCall, Who
from common.errors import LocalError, UserError
from common.messages import Finish, FinishReason, Opened
from common.privacy import Privacy
from common.wire.codec import encode_response
from common.wire.padding import pad
from common.wire.status import Status, to_status
from tests.fuzz import wire
from tests.fuzz.cases import Case, Credential, Send
from tests.fuzz.laws import NEIGHBOUR, Broken, Ear, check_sentence, check_status
from tests.fuzz.machine import HONEST, play
from tests.fuzz.mutated import recorded
from tests.fuzz.soak import LEGS, run
from tests.support.town import Town

FEW = {"machine": 40, "wire": 25}


@pytest.mark.parametrize("leg", [leg for leg in LEGS if leg.endswith("machine")])
def test_no_client_harms_the_machine_or_its_neighbour(leg: str) -> None:
    tally = run(leg, 1, FEW["machine"])
    assert tally.failure is None, tally.failure
    assert tally.cases >= FEW["machine"]


@pytest.mark.grpc
@pytest.mark.parametrize("leg", [leg for leg in LEGS if leg.endswith("wire")])
def test_no_client_harms_the_server_or_its_neighbour(leg: str) -> None:
    tally = run(leg, 1, FEW["wire"])
    assert tally.failure is None, tally.failure
    assert tally.cases >= FEW["wire"]


class _Credulous:
    """Believes what a token says without a look at who signed it."""

    def who(self, context: IncomingCall) -> Who:
        entries = context.invocation_metadata() or ()
        (shown,) = (str(value) for key, value in entries if key == "authorization")
        claims: dict[str, Any] = jwt.decode(shown.split()[1], options={"verify_signature": False})
        return Who(str(claims["tenant"]))


class _CredulousSite(wire.GuardedSite):
    def _identity(self, town: Town) -> Identity:
        return _Credulous()


@pytest.mark.grpc
def test_a_verifier_that_believes_a_token_without_a_signature_breaks_a_law() -> None:
    case = Case(((Send(b""),),), credential=Credential("unsigned"))
    with wire.GuardedSite() as site:
        assert [end.code for end in site.play(case)] == [grpc.StatusCode.UNAUTHENTICATED]
    with _CredulousSite() as site, pytest.raises(Broken, match="whose token was unsigned was taken for"):
        site.play(case)


def test_a_message_of_another_size_breaks_a_law() -> None:
    ear, finish = Ear(), Finish(FinishReason.LENGTH, 9)
    ear.hear(pad(encode_response(Opened(2, 8, 0, privacy=Privacy.PADDED)), 64).SerializeToString())
    assert ear.hear(pad(encode_response(finish), 64).SerializeToString()) == finish
    with pytest.raises(Broken, match="72 bytes, which is no multiple of 64"):
        ear.hear(pad(encode_response(finish), 72).SerializeToString())


@pytest.mark.parametrize("name", ["tree", "sync"])
def test_a_recorded_conversation_ends_well_if_nothing_is_done_to_it(name: str) -> None:
    (stream,) = recorded(name)
    assert play(Case((stream,))).finished[HONEST + 1] is FinishReason.LENGTH


def test_most_cases_get_beyond_the_door() -> None:
    tally = run("mutated-machine", 2, 60)
    assert tally.answers["LENGTH"] + tally.answers["(left)"] > 10, tally.answers


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "Unexpected <class 'google.protobuf.message.DecodeError'>",
        "DecodeError: truncated",
        "Traceback (most recent call last)",
        "see cloud_verifier for more",
        "in session.py line 3",
        "<VerifySession object at 0x7f>",
        f"unlike {NEIGHBOUR} you may not",
        "x" * 1025,
    ],
)
def test_a_sentence_that_is_empty_or_shows_the_code_breaks_a_law(sentence: str) -> None:
    with pytest.raises(Broken):
        check_sentence(sentence)


def test_a_defect_is_no_answer_to_a_client() -> None:
    check_status(to_status(UserError("the prompt is empty; at least one token is needed")))
    with pytest.raises(Broken, match="INTERNAL"):
        check_status(to_status(LocalError("a defect of the verifier; its log has more")))
    with pytest.raises(Broken, match="fault"):
        check_status(to_status(LocalError("a defect"))._replace(code=grpc.StatusCode.INVALID_ARGUMENT))
    with pytest.raises(Broken, match="UNKNOWN"):
        check_status(Status(grpc.StatusCode.UNKNOWN, "something", ()))
