"""`lab.benchmarks.crowd`: drafting never lowers the rate of a session that does not draft."""

from __future__ import annotations

import json

import pytest

from lab.benchmarks.crowd import LIAR, STREAMING, main, run
from simulator.drafts import BetaDraft
from simulator.link import LinkSpec
from simulator.world import VerifierSpec, World

ALLOWED = 0.02


@pytest.mark.parametrize("policy", ["adaptive", "chain", LIAR])
@pytest.mark.parametrize("per_row", [0.0003, 0.003])
@pytest.mark.parametrize(("clients", "every"), [(3, 2), (6, 3), (5, 1)])
def test_no_session_that_streams_is_slower_than_it_allows(
    policy: str, per_row: float, clients: int, every: int
) -> None:
    verifier = VerifierSpec(step_time_per_node=per_row, max_nodes_per_session=16, max_slowdown=ALLOWED)
    world = World(
        LinkSpec(rtt=0.03), verifier=verifier, draft=BetaDraft(mean=0.8), tokens=60, clients=clients, seed=3
    )
    alone, together = run(world, policy, 0), run(world, policy, every)
    step = verifier.time(clients, 0)
    for (_, before), (given, after) in zip(alone, together, strict=True):
        late = [b - a for a, b in zip(before.arrivals, after.arrivals, strict=True)]
        lent = 2 * step  # a token to begin with, and one that is on its way
        if given == STREAMING:
            assert max(b - a * ALLOWED for a, b in zip(before.arrivals, late, strict=True)) < lent
        elif policy != LIAR:
            assert late[-1] < 0


def test_the_report_holds_both_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["simulated", "--clients", "3", "--row", "0.3", "--tokens", "20", "--seeds", "1", "--json"]) == 0
    )
    rows = json.loads(capsys.readouterr().out)["crowds"]
    assert [(row["policy"], row["drafting"]) for row in rows] == [
        ("adaptive", 0.5),
        ("adaptive", 1.0),
        (LIAR, 0.5),
        (LIAR, 1.0),
    ]
    assert all(("slower_by" in row) == (row["drafting"] < 1) for row in rows)


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.grpc
def test_a_flooded_verifier_refuses_and_says_when_to_come_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sessions", "1", "--tokens", "8", "--alone", "1", "--step-floor", "10", "--seconds", "1"]
    assert main(["overload", *words, "--times", "8", "--json"]) == 0
    flooded = json.loads(capsys.readouterr().out)["flooded"]
    assert flooded["texts"] > 0
    assert flooded["told_when_to_come_again"] == flooded["refused"] > 0
