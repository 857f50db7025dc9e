"""The load on a daemon: what each client gets, and what the figures say of known times."""

from __future__ import annotations

import asyncio

import pytest

from edge_client.process.client import LocalClient
from lab.bench.daemon import (
    DRAFTED,
    PLAIN,
    DaemonPlan,
    Sample,
    fairness,
    kind_figures,
    measure,
    one_text,
    report,
)


def sample(client: int, kind: str = DRAFTED, took: float = 0.5, text: str = "t", number: int = 0) -> Sample:
    """Five tokens, the first after 100 ms, then one every 10 ms."""
    told = {"elapsed_ms": 300.0, "waited_ms": 100.0, "accepted": 3, "proposed": 6, "target_steps": 2}
    return Sample(client, number, kind, took, [0.10, 0.11, 0.12, 0.13, 0.14], text, told)


def test_figures_of_known_times() -> None:
    found = kind_figures([sample(0), sample(1), Sample(2, 0, DRAFTED, error="no room")], 2.0)
    assert found["ms_per_token"] == found["ms_per_token_p50"] == 10.0
    assert found["ttft_ms_p50"] == 100.0
    assert found["tokens_per_second"] == 5.0
    assert (found["acceptance"], found["drafted_share"], found["acceptance_length"]) == (0.5, 0.6, 2.5)
    assert found["api_overhead_us_per_token"] == 20_000.0
    assert (found["texts"], found["failed"], found["errors"]) == (2, 1, ["no room"])
    assert kind_figures([], 0.0)["ms_per_token"] is None


def test_fairness_is_one_where_all_get_the_same() -> None:
    assert fairness([sample(0), sample(1)]) == 1.0
    assert fairness([sample(0, took=0.1), sample(1, took=1e6)]) == 0.5
    assert fairness([]) is None


def test_both_kinds_are_compared() -> None:
    samples = [sample(0), sample(0, PLAIN), sample(1), sample(1, PLAIN, text="other")]
    found = report(samples, {DRAFTED: 1.0, PLAIN: 1.0})
    assert (found["texts_compared"], found["texts_different"], found["speedup"]) == (2, 1, 1.0)


@pytest.mark.api
@pytest.mark.grpc
async def test_a_real_daemon_gives_the_same_texts_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.edge_client.api.served import TOKEN, served

    # The draft begins at once, as beside a verifier elsewhere: texts are short.
    monkeypatch.setattr("edge_client.network.channel.shares_machine", lambda address, rtt: False)
    rounds = list[str]()
    plan = DaemonPlan(clients=3, texts=2, tokens=12)
    async with served() as served_daemon:
        client = LocalClient(served_daemon.address, TOKEN)
        samples, seconds = await asyncio.to_thread(
            measure, client, plan, lambda done, total, text: rounds.append(f"{done}/{total} {text}")
        )
        refused = await asyncio.to_thread(
            one_text, LocalClient(served_daemon.address, "another-token-here"), plan, Sample(0, 0, PLAIN)
        )
    found = report(samples, seconds)
    assert rounds == [
        "0/4 text 1, speculation",
        "1/4 text 1, streaming",
        "2/4 text 2, streaming",
        "3/4 text 2, speculation",
    ]
    assert (found["texts_compared"], found["texts_different"]) == (6, 0)
    drafted, plain = found["kinds"][DRAFTED], found["kinds"][PLAIN]
    assert drafted["tokens"] == plain["tokens"] == 72
    assert drafted["acceptance"] > 0
    assert plain["acceptance"] is None
    assert drafted["api_overhead_us_per_token"] > 0
    assert "does not let this command in" in refused.error
