"""Telemetry is small and has no texts; names that are none are told as hashes."""

from __future__ import annotations

from typing import Any

import pytest

from edge_client.core.fleet.payloads import (
    FAR,
    MAX_TELEMETRY,
    HostTelemetry,
    LinkTelemetry,
    SpecTelemetry,
    label,
    stamp,
)
from edge_client.core.fleet.record import LARGEST, encode


@pytest.mark.parametrize("kind", [SpecTelemetry, LinkTelemetry, HostTelemetry])
def test_telemetry_at_its_fullest_is_under_one_kibibyte(kind: Any) -> None:
    fields = {
        name: LARGEST if one.type == "int" else 0.123456789 if "float" in one.type else True
        for name, one in kind.__dataclass_fields__.items()
        if one.type.removesuffix(" | None") in ("int", "float", "bool")
    }
    assert len(encode(kind(**fields), MAX_TELEMETRY)) <= MAX_TELEMETRY


@pytest.mark.parametrize("kind", [SpecTelemetry, LinkTelemetry, HostTelemetry])
def test_no_field_of_telemetry_is_a_text(kind: Any) -> None:
    assert all("str" not in one.type for one in kind.__dataclass_fields__.values())


def test_a_name_is_told_and_a_sentence_is_hashed() -> None:
    assert label("llama-3.2:1b") == "llama-3.2:1b"
    assert label("") == ""
    assert label("/home/ann/my model.gguf") == label("/home/ann/my model.gguf") != label("/home/bob/x y")
    assert label("/home/ann/my model.gguf").startswith("#")
    assert label("\ud800 half") != label("")


def test_a_clock_that_is_wrong_makes_no_message_impossible() -> None:
    assert (stamp(-5.0), stamp(1e18), stamp(12.0)) == (0.0, FAR, 12.0)
