"""Laws of the toxics: what they accept, what they say when they refuse, and that JSON loses nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link import (
    Bandwidth,
    Latency,
    LimitData,
    ResetPeer,
    SettingsError,
    SlowClose,
    Stream,
    Timeout,
    Toxic,
    both_ways,
    rtt,
    toxic_from_json,
    toxic_to_json,
)
from link.toxics import KINDS, MTU, change

TOXICS: list[Toxic] = [
    Latency(30, jitter=5, correlation=0.5, stream=Stream.UPSTREAM),
    Bandwidth(12.5, toxicity=0.25),
    SlowClose(10, name="goodbye"),
    Timeout(),
    ResetPeer(1500),
    LimitData(7),
]


def test_a_toxic_is_named_after_its_kind_and_direction_as_in_toxiproxy() -> None:
    assert Latency(1).name == "latency_downstream"
    assert Bandwidth(1, stream=Stream.UPSTREAM).name == "bandwidth_upstream"
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


def test_every_kind_has_an_example_here() -> None:
    assert [toxic.kind for toxic in TOXICS] == list(KINDS)


@pytest.mark.parametrize("toxic", TOXICS, ids=lambda toxic: toxic.kind)
def test_json_gives_back_the_same_toxic(toxic: Toxic) -> None:
    assert toxic_from_json(toxic_to_json(toxic)) == toxic


def test_json_is_toxiproxys_own() -> None:
    text = {"name": "slow", "type": "latency", "stream": "upstream", "toxicity": 0.5}
    toxic = toxic_from_json({**text, "attributes": {"latency": 100, "jitter": 3}})
    assert toxic == Latency(100, jitter=3, name="slow", stream=Stream.UPSTREAM, toxicity=0.5)


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


def test_a_change_keeps_the_rest_and_refuses_unknown_fields() -> None:
    assert change(Latency(30, jitter=5), latency=80) == Latency(80, jitter=5)
    with pytest.raises(SettingsError, match="rate"):
        change(Latency(30), rate=80)


def test_rtt_puts_half_on_each_direction() -> None:
    up, down = rtt(60, jitter=8)
    assert up == Latency(30, jitter=4, stream=Stream.UPSTREAM)
    assert down == Latency(30, jitter=4, stream=Stream.DOWNSTREAM)
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


def test_toxicity_is_a_share_of_connections() -> None:
    hits = sum(Timeout(toxicity=0.3).applies(7, connection) for connection in range(2000))
    assert 540 <= hits <= 660  # 600 +- 3 standard deviations; the seed is fixed
