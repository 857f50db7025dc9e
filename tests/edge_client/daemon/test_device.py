"""The device shared by its texts: what is learnt from each, and what orders and missing parts mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import create_autospec

import pytest

from common.errors import UnavailableError, UserError
from common.privacy import Privacy
from common.rpc.describe import Description
from common.sampling import SamplingParams
from edge_client.channel import OnLost, OnMessage, Stream
from edge_client.daemon.device import Device, DeviceSettings, Orders
from edge_client.daemon.request import TextRequest, Writer
from edge_client.generation import Generation
from tests.drivers.tiny import VOCABULARY
from tests.edge_client.api.world import Letters, OneVerifier

REQUEST = TextRequest((1, 2, 3), SamplingParams())


def device() -> Device:
    """Without a draft model, and with a verifier that nobody asks."""
    nobody: OneVerifier = OneVerifier(None)  # type: ignore[arg-type]  # no text gets that far
    return Device(Letters(), VOCABULARY, nobody, None, DeviceSettings())


@pytest.mark.parametrize(
    ("orders", "writer", "expected"),
    [
        (Orders.NONE, Writer.SPLIT, Writer.SPLIT),
        (Orders.NONE, Writer.DRAFT, Writer.DRAFT),
        (Orders.DRAFT_OFF, Writer.SPLIT, Writer.TARGET),
        (Orders.DRAFT_OFF, Writer.TARGET, Writer.TARGET),
        (Orders.REMOTE_OFF, Writer.SPLIT, Writer.DRAFT),
        (Orders.REMOTE_OFF, Writer.TARGET, Writer.DRAFT),
    ],
)
def test_orders_change_who_writes(orders: Orders, writer: Writer, expected: Writer) -> None:
    assert orders.apply(replace(REQUEST, writer=writer)).writer is expected


@pytest.mark.parametrize(
    ("orders", "writer", "logprobs"),
    [
        (Orders.HALT, Writer.SPLIT, None),
        (Orders.DRAFT_OFF, Writer.DRAFT, None),
        (Orders.REMOTE_OFF, Writer.SPLIT, 3),
    ],
)
def test_orders_refuse_what_nobody_is_left_to_write(
    orders: Orders, writer: Writer, logprobs: int | None
) -> None:
    with pytest.raises(UnavailableError, match=f"this device's fleet has ordered {orders.value}"):
        orders.apply(replace(REQUEST, writer=writer, logprobs=logprobs))


class Nowhere:
    """`Streams` to nobody: what is sent on them is never heard of again."""

    address = ""
    elsewhere = False

    def watch(self, on_ready: Callable[[], None] | None) -> None: ...

    def open(self, on_message: OnMessage, on_lost: OnLost) -> Stream:
        stream: Stream = create_autospec(Stream, instance=True, bytes_up=0, bytes_down=0)
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
    verifier = OneVerifier(Nowhere(), description)  # type: ignore[arg-type]  # any streams will do
    found = Device(Letters(), VOCABULARY, verifier, None, DeviceSettings())
    request = replace(REQUEST, sampling=SamplingParams(stop_token_ids=(2,), ignore_eos=ignore_eos))
    async with found.writing(request) as live:
        writing = asyncio.ensure_future(anext(live.answer.events()))
        await asyncio.sleep(0)
        run = live.answer.run
        assert isinstance(run, Generation)
        assert run.session.config.ends == live.answer.ends == ends
        writing.cancel()


@pytest.mark.parametrize("orders", [Orders.NONE, Orders.REMOTE_OFF])
async def test_a_device_without_a_draft_model_does_not_write_alone(orders: Orders) -> None:
    found = device()
    found.orders = orders
    request = replace(REQUEST, writer=Writer.DRAFT if orders is Orders.NONE else Writer.SPLIT)
    with pytest.raises(UserError, match="no draft model is configured here"):
        async with found.writing(request):
            pass
    assert found.admission.num_active == 0


@pytest.mark.parametrize("level", Privacy)
def test_every_session_asks_for_the_privacy_that_is_set(level: Privacy) -> None:
    nobody: OneVerifier = OneVerifier(None)  # type: ignore[arg-type]  # no text gets that far
    found = Device(Letters(), VOCABULARY, nobody, None, DeviceSettings(privacy=level))
    assert found._config(REQUEST, (), None).privacy is level
