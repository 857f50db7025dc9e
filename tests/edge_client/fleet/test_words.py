"""A cause is found along the chain of errors, and each has a sentence."""

from __future__ import annotations

import socket
import ssl

import pytest

from edge_client.fleet.settings import BrokerSettings
from edge_client.fleet.words import REASONS, by_cause, by_reason

BROKER = BrokerSettings("broker.example", 8883)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "refused"), "nothing listens there"),
        (socket.gaierror(-2, "unknown"), "there is no host 'broker.example'"),
        (TimeoutError(), "no answer within 10 s"),
        (
            ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] certificate required"),
            "asks for a client",
        ),
        (ConnectionResetError(104, "reset"), "is a client certificate required?"),
        (OSError(113, "No route to host"), "No route to host"),
        (None, "is a client certificate required?"),
    ],
)
def test_a_cause_has_a_sentence(error: OSError | None, words: str) -> None:
    assert words in str(by_cause(BROKER, error, connecting=True))


def test_the_first_cause_that_says_something_counts() -> None:
    outer = RuntimeError("outer")
    outer.__context__ = ConnectionRefusedError(111, "refused")
    assert "nothing listens there" in str(by_cause(BROKER, outer, connecting=True))
    assert str(by_cause(BROKER, None, connecting=False)).endswith("it closed the connection")


def test_reasons_of_mqtt_have_words_and_unknown_ones_their_number() -> None:
    for reason in REASONS:
        assert "0x" not in str(by_reason(BROKER, reason))
    assert "0x9f" in str(by_reason(BROKER, 0x9F))
    assert by_reason(BROKER, 0x8E).taken_over
    assert not by_reason(BROKER, 0x87).taken_over
