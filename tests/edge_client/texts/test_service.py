"""The device shared by its texts: what is learnt from each, and what orders and missing parts mean."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import create_autospec

import pytest

from common.calibration import SHIPPED
from common.errors import UnavailableError, UserError
from common.sampling import SamplingParams
from common.wire.describe import Description
from edge_client.core.session import EdgeSession
from edge_client.core.verifier_choice import NO_DRAFT, DraftSkill
from edge_client.network.channel import OnLost, OnMessage, StreamSource, VerifierStream
from edge_client.network.generation import Generation
from edge_client.texts.text_request import TextRequest, Writer
from edge_client.texts.text_service import Orders, TextService, TextSettings
from tests import wording
from tests.edge_client.api.world import Letters, OneVerifier, Seats
from tests.support.tiny import VOCABULARY

REQUEST = TextRequest((1, 2, 3), SamplingParams())


def texts(verifier: OneVerifier | None = None, **settings: Any) -> TextService:
    """Without a draft model, and with a verifier that nobody asks."""
    nobody = verifier or OneVerifier(Nowhere())  # type: ignore[arg-type]  # any streams will do
    return TextService(Letters(), VOCABULARY, nobody, None, TextSettings(**settings))


@pytest.mark.parametrize(
    ("orders", "writer", "expected"),
    [
        (Orders.NONE, Writer.SPLIT, Writer.SPLIT),
        (Orders.NONE, Writer.DRAFT, Writer.DRAFT),
        (Orders.DRAFT_OFF, Writer.SPLIT, Writer.TARGET),
        (Orders.DRAFT_OFF, Writer.TARGET, Writer.TARGET),
        (Orders.REMOTE_OFF, Writer.SPLIT, Writer.DRAFT),
        (Orders.REMOTE_OFF, Writer.TARGET, Writer.DRAFT),
        (Orders.HALT, Writer.SPLIT, None),
        (Orders.DRAFT_OFF, Writer.DRAFT, None),
    ],
)
def test_orders_change_who_writes(orders: Orders, writer: Writer, expected: Writer | None) -> None:
    request = replace(REQUEST, writer=writer)
    if expected is None:
        with wording.raises(UnavailableError):
            orders.apply(request)
    else:
        assert orders.apply(request).writer is expected


def test_the_draft_has_no_log_probabilities_of_the_target() -> None:
    with wording.raises(UnavailableError):
        Orders.REMOTE_OFF.apply(replace(REQUEST, logprobs=3))


class Nowhere:
    """`Streams` to nobody: what is sent on them is never heard of again."""

    address = ""
    elsewhere = False
    shares_machine = False

    def watch(self, on_ready: Callable[[], None] | None) -> None: ...

    def open(self, on_message: OnMessage, on_lost: OnLost) -> VerifierStream:
        stream: VerifierStream = create_autospec(VerifierStream, instance=True, bytes_up=0, bytes_down=0)
        return stream


@pytest.mark.parametrize(
    ("told", "ignore_eos", "ends"),
    [
        ((5, 6), False, {2, 5, 6}),
        ((), False, {2}),  # a target that ends by nothing but stop tokens
        (None, False, {2, *Letters.eos_ids}),  # no verifier has been heard of
        ((5, 6), True, {2}),
    ],
)
async def test_a_text_and_its_session_end_by_the_same_tokens(
    told: tuple[int, ...] | None, ignore_eos: bool, ends: set[int]
) -> None:
    description = None if told is None else Description("tiny", 7, 100, b"", told, ())
    found = texts(OneVerifier(Nowhere(), description))  # type: ignore[arg-type]  # any streams will do
    request = replace(REQUEST, sampling=SamplingParams(stop_token_ids=(2,), ignore_eos=ignore_eos))
    async with found.writing(request) as live:
        assert live.answer.ends == ends
    config = (await session_of(found, request)).config
    assert (config.ends, config.ends_are_told) == (frozenset(ends), told is not None)
    assert config.vocab_size == Letters.num_vocab, "ids beyond it are the verifier's fault"


async def session_of(
    service: TextService, request: TextRequest, act: Callable[[EdgeSession], None] = lambda session: None
) -> EdgeSession:
    """The session of a text that nobody answers. `act` is done to it while the text is under way."""
    async with service.writing(request) as live:
        writing = asyncio.ensure_future(anext(live.answer.events()))
        await asyncio.sleep(0)
        run = live.answer.run
        assert isinstance(run, Generation)
        act(run.session)
        writing.cancel()
    return run.session


@pytest.mark.parametrize("shares_machine", [False, True])
async def test_the_draft_waits_where_the_verifier_shares_the_machine(shares_machine: bool) -> None:
    streams = Nowhere()
    streams.shares_machine = shares_machine
    service = texts(OneVerifier(streams))  # type: ignore[arg-type]  # any streams will do
    assert (await session_of(service, REQUEST)).config.draft_waits is shares_machine


async def test_a_text_begins_with_what_the_one_before_it_taught() -> None:
    found = texts()
    request = replace(REQUEST, sampling=SamplingParams(temperature=0.8))

    def observe(session: EdgeSession) -> None:
        for _ in range(50):
            session.calibration.observe((4.0, 3.9, 2.0, 1.0, 0.0), 3)

    first = await session_of(found, request, observe)
    assert first.config.prior == SHIPPED.at(0.8)
    second = await session_of(found, request)
    assert second.config.prior == first.calibration.as_prior()
    third = await session_of(found, request)
    assert third.config.prior == second.config.prior, "nothing was observed meanwhile"


async def test_a_texts_acceptance_ranks_the_verifiers_for_the_next() -> None:
    class Asked(OneVerifier):
        def route(self, key: str, skill: DraftSkill, target: str) -> StreamSource:
            skills.append(skill)
            return super().route(key, skill, target)

    def accept(session: EdgeSession) -> None:
        session.stats.drafted = 60
        session.view.acceptance.add(50.0, 60.0)

    skills, seats = list[DraftSkill](), Seats()
    found = TextService(Letters(), VOCABULARY, Asked(Nowhere()), seats, TextSettings())  # type: ignore[arg-type]
    step = seats.pace.rows.predict(1)
    first = await session_of(found, REQUEST, accept)
    await session_of(found, REQUEST)
    await session_of(found, replace(REQUEST, writer=Writer.TARGET))
    learnt = first.view.acceptance.ratio
    assert learnt > 0.8
    assert skills == [DraftSkill(0.7, step), DraftSkill(learnt, step), NO_DRAFT]


@pytest.mark.parametrize(
    ("request_", "policy", "recall"),
    [
        (replace(REQUEST, policy="tree", drafting=False), "tree", True),
        (replace(REQUEST, policy="tree", writer=Writer.TARGET), "off", False),
        (replace(REQUEST, policy="sync:4", writer=Writer.TARGET, references=((5,),)), "adaptive", False),
        (replace(REQUEST, policy="tree", writer=Writer.TARGET, drafting=False), "off", False),
        (replace(REQUEST, policy="tree", recall=False, drafting=False), "off", False),
        (replace(REQUEST, policy="off", references=((5,),), drafting=False), "off", True),
    ],
)
async def test_what_proposes_where_the_draft_model_takes_no_part(
    request_: TextRequest, policy: str, recall: bool
) -> None:
    seats = Seats()
    found = TextService(Letters(), VOCABULARY, OneVerifier(Nowhere()), seats, TextSettings())  # type: ignore[arg-type]
    session = await session_of(found, request_)
    assert (session.policy.name, session.config.recall) == (policy, recall)
    assert seats.num_taken == 0


@pytest.mark.parametrize("orders", [Orders.NONE, Orders.REMOTE_OFF])
async def test_a_device_without_a_draft_model_does_not_write_alone(orders: Orders) -> None:
    found = texts()
    found.orders = orders
    request = replace(REQUEST, writer=Writer.DRAFT if orders is Orders.NONE else Writer.SPLIT)
    with wording.raises(UserError):
        async with found.writing(request):
            pass
    assert found.admission.num_active == 0
