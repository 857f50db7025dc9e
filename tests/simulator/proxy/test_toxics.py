"""Laws of the toxics: what they accept, what they say when they refuse, and that JSON loses nothing."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.proxy import Bandwidth, LinkDirection, Timeout, Toxic, both_ways, rtt
from simulator.proxy.toxics import (
    KINDS,
    MTU,
    Latency,
    LimitData,
    ResetPeer,
    SettingsError,
    SlowClose,
    toxic_from_json,
)

TOXICS: list[Toxic] = [
    Latency(30, jitter=5, correlation=0.5, stream=LinkDirection.UPSTREAM),
    Bandwidth(12.5, toxicity=0.25),
    SlowClose(10, name="goodbye"),
    Timeout(),
    ResetPeer(1500),
    LimitData(7),
]


def test_a_toxic_is_named_after_its_kind_and_direction_as_in_toxiproxy() -> None:
    assert Latency(1).name == "latency_downstream"
    assert Bandwidth(1, stream=LinkDirection.UPSTREAM).name == "bandwidth_upstream"
    assert Bandwidth(1, name="thin").name == "thin"


@pytest.mark.parametrize(
    ("kind", "fields", "word"),
    [
        (Latency, {"latency": -1}, "latency"),
        (Latency, {"latency": float("nan")}, "latency"),
        (Latency, {"latency": True}, "latency"),
        (Latency, {"latency": 1, "jitter": -1}, "jitter"),
        (Latency, {"latency": 1, "correlation": 1.1}, "correlation"),
        (Bandwidth, {"rate": 0}, "rate"),
        (SlowClose, {"delay": "soon"}, "delay"),
        (Timeout, {"timeout": float("inf")}, "timeout"),
        (ResetPeer, {"timeout": -1}, "timeout"),
        (LimitData, {"bytes": -1}, "bytes"),
        (LimitData, {"bytes": 1.5}, "bytes"),
        (Timeout, {"toxicity": 2}, "toxicity"),
        (Timeout, {"stream": "sideways"}, "sideways"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    kind: type[Toxic], fields: dict[str, object], word: str
) -> None:
    with pytest.raises(SettingsError, match=word):
        kind(**fields)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("toxic", TOXICS, ids=lambda toxic: toxic.kind)
def test_json_of_every_kind_is_read(toxic: Toxic) -> None:
    assert [each.kind for each in TOXICS] == list(KINDS)
    fields = dataclasses.asdict(toxic)
    head = {field: fields.pop(field) for field in ("name", "stream", "toxicity")}
    assert toxic_from_json({"type": toxic.kind, **head, "attributes": fields}) == toxic


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ([], "JSON object"),
        ({"type": "gremlin"}, "gremlin"),
        ({"type": ["latency"]}, "latency"),
        ({"type": "latency"}, "missing"),
        ({"type": "latency", "latency": 3}, "'latency'"),
        ({"type": "latency", "attributes": {"latency": 3, "toxicity": 1}}, "'toxicity'"),
        ({"type": "latency", "attributes": 3}, "attributes"),
    ],
)
def test_json_that_is_no_toxic_is_refused_by_name(value: object, word: str) -> None:
    with pytest.raises(SettingsError, match=word):
        toxic_from_json(value)


def test_rtt_puts_half_on_each_direction() -> None:
    up, down = rtt(60, jitter=8)
    assert up == Latency(30, jitter=4, stream=LinkDirection.UPSTREAM)
    assert down == Latency(30, jitter=4, stream=LinkDirection.DOWNSTREAM)
    assert both_ways(Latency(30, jitter=4)) == (up, down)


def test_delays_and_wire_times_are_exact() -> None:
    assert Latency(30, jitter=8).delay_time(0.5) == 0.034
    assert Latency(5, jitter=8).delay_time(-1.0) == 0.0
    assert Bandwidth(100).serialise_time(1000) == 0.01
    assert Bandwidth(100).piece_size == MTU
    assert Bandwidth(100_000).piece_size == 100_000


@given(seed=st.integers(), connection=st.integers(0, 1000))
def test_toxicity_0_never_applies_1_always_and_the_draw_repeats(seed: int, connection: int) -> None:
    assert not Timeout(toxicity=0).applies(seed, connection)
    assert Timeout(toxicity=1).applies(seed, connection)
    assert Timeout(toxicity=0.5).applies(seed, connection) == Timeout(toxicity=0.5).applies(seed, connection)
