"""Laws of the toxics: what they accept, and their exact times."""

import pytest

from simulator.proxy import Bandwidth, LinkDirection, Toxic, both_ways, rtt
from simulator.proxy.toxics import MTU, Latency, SettingsError


@pytest.mark.parametrize(
    ("kind", "fields", "word"),
    [
        (Latency, {"latency": -1}, "latency"),
        (Latency, {"latency": float("nan")}, "latency"),
        (Latency, {"latency": 1, "jitter": -1}, "jitter"),
        (Bandwidth, {"rate": 0}, "rate"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    kind: type[Toxic], fields: dict[str, object], word: str
) -> None:
    with pytest.raises(SettingsError, match=word):
        kind(**fields)  # type: ignore[arg-type]  # wrong on purpose


def test_rtt_puts_half_on_each_direction() -> None:
    up, down = rtt(60, jitter=8)
    assert up == Latency(30, jitter=4, stream=LinkDirection.UPSTREAM, name="latency_upstream")
    assert down == Latency(30, jitter=4, stream=LinkDirection.DOWNSTREAM)
    assert both_ways(Latency(30, jitter=4)) == (up, down)


def test_delays_and_wire_times_are_exact() -> None:
    assert Latency(30, jitter=8).delay_time(0.5) == 0.034
    assert Latency(5, jitter=8).delay_time(-1.0) == 0.0
    assert Bandwidth(100).serialise_time(1000) == 0.01
    assert Bandwidth(100).piece_size == MTU
    assert Bandwidth(100_000).piece_size == 100_000
