"""Laws of the messages: a log-probability costs one byte and is right to a thirty-second of a nat."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import (
    LOGPROB_STEP,
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Open,
    Opened,
    Propose,
    pack_logprob,
    unpack_logprob,
)
from common.sampling import SamplingParams


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


@given(st.floats(-15.9375, 0.0))
def test_packing_is_off_by_half_a_step_at_most(logprob: float) -> None:
    assert abs(unpack_logprob(pack_logprob(logprob)) - logprob) <= LOGPROB_STEP / 2


@given(st.floats(-1e6, 0.0), st.floats(-1e6, 0.0))
def test_packing_keeps_the_order(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert pack_logprob(low) >= pack_logprob(high)


@given(st.floats(-1e6, 1e6))
def test_whatever_is_packed_fits_a_byte(logprob: float) -> None:
    assert 0 <= pack_logprob(logprob) <= 255


def test_messages_never_change() -> None:
    messages = (
        Open((1,), SamplingParams(), b""),
        Propose(),
        Close(),
        Opened(0, 1),
        Commit(1, (2,)),
        Drain(),
        Finish(FinishReason.STOP, 1),
    )
    for message in messages:
        for field in dataclasses.fields(message):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(message, field.name, None)


def test_an_open_asks_for_fill_and_any_model_unless_it_says_otherwise() -> None:
    request = Open((1,), SamplingParams(), b"")
    assert request.fill
    assert request.model == ""
    assert request.committed == ()
