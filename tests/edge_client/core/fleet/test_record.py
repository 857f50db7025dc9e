"""Records are strict both ways, and their complaints never quote what they complain about."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.core.fleet.payloads import (
    ConfigFault,
    Event,
    EventKind,
    Fault,
    HostTelemetry,
    Kill,
    LinkTelemetry,
    Presence,
    Reported,
    SpecTelemetry,
    State,
)
from edge_client.core.fleet.record import MAX_PAYLOAD, SchemaError, decode, encode, parse

SECRET = "Dear diary, my key is sk-54321"

EXAMPLES = (
    Presence(state=State.ONLINE, epoch=3, at=1.5, draft="demo"),
    Event(kind=EventKind.ORDER_APPLIED, at=1.8e9, epoch=1, number=1_795_355_498_062.0),
    SpecTelemetry(generations=2, acceptance=0.5),
    Reported(
        rev=1,
        fleet_rev=0,
        kill_rev=2,
        kill=Kill.HALT,
        hash="0" * 16,
        ok=False,
        errors=(ConfigFault(fault=Fault.BAD_VALUE, key="draft.depth"),),
    ),
)


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Any) -> None:
    assert decode(type(record), encode(record)) == record


def test_keys_that_nobody_knows_are_refused_and_missing_ones_named() -> None:
    with pytest.raises(SchemaError, match="has no key prompt"):
        decode(Presence, b'{"state":"online","epoch":1,"at":0,"prompt":1}')
    with pytest.raises(SchemaError, match="lacks the key epoch"):
        decode(Presence, b'{"state":"online","at":0}')


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"[]", b"null", b"{", b'"x"', b"\xff\xfe", b"[" * 8000, b'{"a":' * 1500,
        b'{"state":"online","state":"x"}',
        b'{"state":"up","epoch":1,"at":0}', b'{"state":["online"],"epoch":1,"at":0}',
        b'{"state":"online","epoch":-1,"at":0}', b'{"state":"online","epoch":1.0,"at":0}',
        b'{"state":"online","epoch":true,"at":0}', b'{"state":"online","epoch":9007199254740992,"at":0}',
        b'{"state":"online","epoch":1,"at":NaN}', b'{"state":"online","epoch":1,"at":1e999}',
        b'{"state":"online","epoch":1,"at":0,"draft":"two words"}', b" " * (MAX_PAYLOAD + 1),
    ],
)  # fmt: skip
def test_whatever_the_bytes_are_a_schema_error_says_so(payload: bytes) -> None:
    with pytest.raises(SchemaError):
        decode(Presence, payload)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    try:
        parse(payload)
    except SchemaError:
        pass


@given(
    kind=st.sampled_from([SpecTelemetry, LinkTelemetry, HostTelemetry, Presence, Event]),
    value=st.sampled_from([SECRET, SECRET.encode(), [SECRET], {SECRET: SECRET}, float("nan"), object()]),
    data=st.data(),
)
def test_what_is_no_number_or_word_of_the_schema_does_not_leave(kind: Any, value: Any, data: Any) -> None:
    has_defaults = kind in (SpecTelemetry, LinkTelemetry, HostTelemetry)
    record = kind() if has_defaults else next(one for one in EXAMPLES if type(one) is kind)
    fields = list(record.__dataclass_fields__)
    spoilt = replace(record, **{data.draw(st.sampled_from(fields)): value})
    with pytest.raises(SchemaError) as found:
        encode(spoilt)
    assert "diary" not in str(found.value)


def test_a_complaint_does_not_quote_a_stranger() -> None:
    with pytest.raises(SchemaError) as found:
        decode(Presence, json.dumps({SECRET: 1}).encode())
    assert "diary" not in str(found.value)
