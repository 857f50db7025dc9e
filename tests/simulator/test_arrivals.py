"""Laws of arrivals: sessions begin when they should, as long as they should, and each has its own clock."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies import GrowthPolicy, GrowthView, TokenCandidate, make_policy
from schemes.policies.tree import TreePolicy
from simulator.arrivals import MAX_SESSIONS, Arrivals, Poisson, Window, read_arrivals
from simulator.drafts import BetaDraft
from simulator.figures import SessionResult
from simulator.files import experiment_from
from simulator.knowledge import Knowledge
from simulator.link_spec import LinkSpec
from simulator.schemes import FORERUN, SERVER_STREAMING, policy_maker
from simulator.system import simulate
from simulator.world import VerifierSpec, World

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "data" / "arrivals"
"""Recordings beside the repository, where somebody has put them; they are not part of it."""

FOUR = "time_s,model,context_tokens,generated_tokens\n1,a,100,20\n2,a,50,30\n2,b,70,10\n60,b,5,40\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "a.csv"
    path.write_text(text, encoding="utf-8")
    return path


def world(arrivals: Arrivals) -> World:
    return World(tokens=25, prompt_tokens=16, arrivals=arrivals)


def test_gaps_are_exponential_with_their_mean_and_without_memory() -> None:
    starts = [each.start for each in Poisson(4.0, 5000).plan(1, 1, 1)]
    gaps = [after - before for before, after in itertools.pairwise([0.0, *starts])]
    mean = sum(gaps) / len(gaps)
    assert min(gaps) > 0
    assert mean == pytest.approx(0.25, rel=0.05)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(0.25, rel=0.06)
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-2), abs=0.015)
    together = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(gaps)) / len(gaps)
    assert together / 0.25**2 == pytest.approx(0.0, abs=0.04)


def test_a_seed_has_its_arrivals_and_a_rate_only_stretches_them() -> None:
    one, again, other = (Poisson(2.0, 50).plan(seed, 8, 9) for seed in (1, 1, 2))
    assert one == again != other
    assert {(each.prompt_tokens, each.tokens) for each in one} == {(8, 9)}
    slow = [each.start for each in Poisson(0.5, 50).plan(1, 8, 9)]
    assert slow == pytest.approx([4 * each.start for each in one])


def test_sessions_that_never_meet_are_each_like_one_alone() -> None:
    """Times count from a session's own beginning, whenever that is."""
    alone = simulate(World(tokens=25, prompt_tokens=16), policy_maker(SERVER_STREAMING))[0]
    found = simulate(world(Poisson(0.001, 4)), policy_maker(SERVER_STREAMING))
    assert len(found) == 4
    for result in found:
        assert result.arrivals == pytest.approx(alone.arrivals)


def test_sessions_begin_and_last_as_recorded(tmp_path: Path) -> None:
    recorded = read_arrivals(write(tmp_path, FOUR), Window())
    plan = world(recorded).sessions()
    assert [(each.start, each.prompt_tokens, each.tokens) for each in plan] == [
        (1.0, 100, 20), (2.0, 50, 30), (2.0, 70, 10), (60.0, 5, 40),
    ]  # fmt: skip
    results = simulate(world(recorded), policy_maker(FORERUN))
    assert [len(result.tokens) for result in results] == [20, 30, 10, 40]


def test_a_session_meets_the_world_as_it_is_when_it_begins(tmp_path: Path) -> None:
    """The link's outages are in the world's time, the results in the session's."""
    document = {
        "link": {"outages": [{"start_ms": 59_000, "duration_ms": 5_000}]},
        "arrivals": {"trace": write(tmp_path, FOUR).name},
    }
    first, _, _, last = simulate(experiment_from(document, tmp_path).world, policy_maker(FORERUN))
    assert first.arrivals[0] < 1.0
    assert last.arrivals[0] > 4.0


def test_a_window_is_cut_scaled_and_capped(tmp_path: Path) -> None:
    path = write(tmp_path, FOUR)
    table = {"trace": path.name, "start_s": 2, "duration_s": 58.5, "time_scale": 0.5, "max_prompt_tokens": 60}
    plan = experiment_from({"arrivals": table}, tmp_path).world.sessions()
    assert [(each.start, each.prompt_tokens, each.tokens) for each in plan] == [
        (0.0, 50, 30), (0.0, 60, 10), (29.0, 5, 40),
    ]  # fmt: skip
    assert len(read_arrivals(path, Window(max_sessions=2)).requests) == 2
    assert len(read_arrivals(path, Window(start=2.0, duration=58.0)).requests) == 2  # the end is not in it
    capped = world(read_arrivals(path, Window(max_tokens=15))).sessions()
    assert [each.tokens for each in capped] == [15, 15, 10, 15]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,context_tokens\n0,1\n", "line 1: no column 'time_s' among time, context_tokens"),
        ("time_s\n", "have no request"),
        ("time_s\nsoon\n", "line 2: time_s is 'soon'; a number of 0 or more"),
        ("time_s\n0\n-1\n", "line 3: time_s is '-1'; a number of 0 or more"),
        ("time_s\n0\n5\n4\n", "line 4: time_s falls from 5 to 4"),
        ("time_s,context_tokens\n0,0\n", "line 2: context_tokens is '0'; a whole number of 1 or more"),
        ("time_s,generated_tokens\n0,3\n1,2.5\n", "line 3: generated_tokens is '2.5'; a whole number"),
        ("time_s\n" + "0\n" * (MAX_SESSIONS + 1), f"{MAX_SESSIONS + 1} requests where {MAX_SESSIONS} is"),
    ],
)
def test_a_recording_that_is_none_is_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"a\.csv.*{message}"):
        read_arrivals(write(tmp_path, text), Window())


def test_clients_and_arrivals_exclude_each_other() -> None:
    with pytest.raises(UserError, match="world clients is 3 and its arrivals"):
        replace(world(Poisson(1.0, 1)), clients=3)


STREAMING, LIAR = "off", "liar"
ALLOWED = 0.02


class LiarPolicy(TreePolicy):
    """Sends the worst candidates of each place, and calls all of them certain."""

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        return [TokenCandidate(candidate.token, 0.0) for candidate in candidates[-4:]]


def run(world: World, policy: str, every: int) -> tuple[list[str], list[SessionResult]]:
    """Return the policies and the results of a crowd in which every `every`-th device drafts."""
    given = list[str]()

    def make(_: Knowledge) -> GrowthPolicy:
        given.append(policy if every and len(given) % every == 0 else STREAMING)
        return LiarPolicy() if given[-1] == LIAR else make_policy(given[-1])

    return given, simulate(world, make)


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
    (_, alone), (given, together) = run(world, policy, 0), run(world, policy, every)
    lent = 2 * verifier.time(clients, 0)  # a token to begin with, and one that is on its way
    for own, before, after in zip(given, alone, together, strict=True):
        late = [b - a for a, b in zip(before.arrivals, after.arrivals, strict=True)]
        if own == STREAMING:
            assert max(b - a * ALLOWED for a, b in zip(before.arrivals, late, strict=True)) < lent
        elif own != LIAR:
            assert late[-1] < 0
