"""A report holds labels and figures alone; a signed document is read as it was written, or not at all."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.fleet.document import (
    MAX_PAYLOAD,
    Document,
    Kill,
    PayloadError,
    read_report,
    report,
    seal,
    unseal,
)
from tests.edge_client.fleet.signed import DAY, NOW, document, sign, verify


def trusting(message: bytes, signature: bytes) -> bool:
    return True


def test_a_report_is_read_as_it_was_written() -> None:
    payload = report({"draft": "llama-3.2:1b", "mode": ""}, {"tokens": 7, "rtt_ms": 0.5, "ttft_ms": None})
    assert read_report(payload) == ({"draft": "llama-3.2:1b"}, {"tokens": 7, "rtt_ms": 0.5})


@pytest.mark.parametrize("text", ["/home/ann/my model.gguf", "\ud800 half", "\x1b[2J", "x" * 65])
def test_a_text_that_is_no_label_leaves_as_a_hash(text: str) -> None:
    hashes = [read_report(report({"draft": each}, {}))[0]["draft"] for each in (text, text, f"{text}.")]
    assert hashes[0] == hashes[1] != hashes[2]
    assert text not in hashes[0]
    assert hashes[0].startswith("#")


@pytest.mark.parametrize("value", ["sk-54321", b"sk", ["sk"], {"sk": 1}, True, float("nan"), float("inf")])
def test_a_figure_that_is_no_number_does_not_leave(value: Any) -> None:
    assert report({}, {"tokens": value}) == b"{}"


def test_what_strangers_put_into_a_report_is_left_out() -> None:
    told = {"draft": "\x1b[2J", "mode": ["a"], "kill": None, "at": 1e300, "applied": True, "rtt_ms": 2}
    assert read_report(json.dumps(told).encode()) == ({}, {"rtt_ms": 2})
    assert read_report(b'{"at": NaN, "tokens": -Infinity}') == ({}, {})


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"[]", b"null", b"{", b'"x"', b"\xff\xfe", b"[" * 8000, b'{"a":' * 1500, b'{"at":0,"at":1}'),
        b" " * (MAX_PAYLOAD + 1),
    ],
)
def test_whatever_the_bytes_are_a_payload_error_is_raised(payload: bytes) -> None:
    for read in (read_report, lambda each: unseal(each, trusting)):
        with pytest.raises(PayloadError):
            read(payload)


def test_what_was_signed_is_what_is_read() -> None:
    settings = {"a.b": True, "c": 0.5, "d": "x y", "e": -1}
    found = unseal(document(7, kill=Kill.HALT, settings=settings), verify())
    assert found == Document(
        tenant="acme", version=7, expires_at=NOW + DAY, kill=Kill.HALT, settings=settings
    )


@pytest.mark.parametrize(
    "changes",
    [
        *({"tenant": 1}, {"version": -1}, {"version": 1.0}, {"version": True}, {"version": 2**53}),
        *({"expires_at": "never"}, {"expires_at": float("inf")}, {"kill": "all"}, {"kill": ["halt"]}),
        *({"settings": [1]}, {"settings": {"a": [1]}}, {"settings": {"a": None}}, {"settings": {"a": 1e300}}),
        *({"more": 1}, {"tenant": ...}),
    ],
)
def test_a_signed_document_of_another_schema_is_refused(changes: dict[str, Any]) -> None:
    """`...` takes a key away."""
    found = {"tenant": "acme", "version": 1, "expires_at": NOW, "kill": "none", "settings": {}} | changes
    text = json.dumps({key: value for key, value in found.items() if value is not ...})
    with pytest.raises(PayloadError):
        unseal(json.dumps({"document": text, "signature": ""}).encode(), trusting)


@given(st.data())
def test_a_changed_document_is_not_believed(data: st.DataObject) -> None:
    payload = bytearray(document(1))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 4))
    with pytest.raises(PayloadError):
        unseal(bytes(payload), verify())


@pytest.mark.parametrize(
    "payload",
    [
        *(b"{}", b'{"document":"{}","signature":"zz"}', b'{"document":1,"signature":""}'),
        *(b'{"document":"\\ud800","signature":"00"}', document(1)[:-1] + b',"more":1}'),
    ],
)
def test_what_is_no_signed_document_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError):
        unseal(payload, trusting)


def test_an_oversized_document_is_not_signed() -> None:
    large = Document(tenant="acme", version=1, expires_at=NOW, settings={"a": "x" * MAX_PAYLOAD})
    with pytest.raises(PayloadError):
        seal(large, sign())
