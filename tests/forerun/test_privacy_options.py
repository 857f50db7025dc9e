"""What a verifier and an edge may be told of privacy, and what they say of it."""

from __future__ import annotations

import argparse

import pytest

from common.errors import UserError
from common.privacy import Privacy
from edge_client.config import load_config
from edge_client.config.merge import Overlay
from forerun.cli import build_parser
from forerun.privacy_options import add_privacy, privacy_from, privacy_in_words

pytestmark = pytest.mark.grpc


def verifier(*words: str, step_floor: float = 0.0) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_privacy(parser)
    options = parser.parse_args(words)
    options.step_floor = step_floor
    return options


def test_frames_are_padded_unless_somebody_says_otherwise() -> None:
    assert privacy_from(verifier()).level is Privacy.PADDED
    words = ["edge", "pipe", "--verifier", "127.0.0.1:1", "--draft", "x"]
    assert build_parser("edge").parse_args(words).privacy == "padded"
    assert load_config({}, {}, []).config.verifier.privacy == "padded"


def test_a_cadence_is_given_in_milliseconds() -> None:
    settings = privacy_from(verifier("--privacy", "strict", "--cadence-ms", "20"))
    assert (settings.level, settings.interval) == (Privacy.STRICT, 0.02)
    with pytest.raises(UserError, match=r"the cadence is 0.1 ms; it must lie in \[1, 10000\]"):
        privacy_from(verifier("--cadence-ms", "0.1"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (verifier("--privacy", "off"), "Privacy off: sizes and times"),
        (verifier(), "Privacy padded: frames of 128 bytes up and 64 down"),
        (
            verifier("--privacy", "strict"),
            "sends 12.8 kB/s up and 3.2 down, whatever it says, and each message",
        ),
        (verifier("--privacy", "strict", step_floor=0.1), "waits up to 100 ms"),
    ],
)
def test_what_holds_and_what_it_costs_is_said_at_the_start(options: argparse.Namespace, words: str) -> None:
    assert words in privacy_in_words(options)


def test_a_level_that_is_none_is_refused_wherever_it_stands() -> None:
    with pytest.raises(SystemExit):
        verifier("--privacy", "tight")
    with pytest.raises(UserError, match=r"verifier.privacy .*off, padded or strict"):
        load_config({}, {"FORERUN_EDGE_VERIFIER_PRIVACY": "tight"}, [])


def test_a_fleet_cannot_lift_it() -> None:
    with pytest.raises(UserError, match=r"verifier\.privacy can be set on the device only"):
        load_config({}, {}, [], Overlay("revision 7", {"verifier": {"privacy": "off"}}))
