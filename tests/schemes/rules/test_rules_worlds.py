"""Acceptance rules with both real machines in virtual time: exact laws of whole worlds, and seeds counted."""

import dataclasses
import random

import pytest

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from common.acceptance import Acceptance, AcceptanceRule
from common.chances import Chances
from common.sampling import SamplingParams
from edge_client.core.policies import offered, policy_named
from schemes.rules import drawing
from schemes.rules.trained_judge import Judge
from tests.schemes.rules.honest import PLAIN, PROMPT, Law, Spec, Text, target_law
from tests.worlds.enumeration import distance, law_of
from tests.worlds.models import VOCAB, TinyDrafter, target_alone
from tests.worlds.seeds import DRAFTERS, POLICIES
from tests.worlds.world import EdgeSpec, World, WorldSpec

pytestmark = pytest.mark.slow


EXACT = 1e-12
TWO = dataclasses.replace(PLAIN, max_tokens=2)
REJECTION, BLOCK, SPECINFER = AcceptanceRule.REJECTION, AcceptanceRule.BLOCK, AcceptanceRule.SPECINFER
REPLACING = (AcceptanceRule.SPECTR, AcceptanceRule.SPECTR_OT)
LOSSLESS = (REJECTION, BLOCK, SPECINFER)


def edge(rule: AcceptanceRule, policy: str, sampling: SamplingParams = TWO, **fields: object) -> EdgeSpec:
    """One that draws of two tokens, which keeps the number of branches small."""
    fixed = {"acceptance": Acceptance(rule), "patience": None, "draft_top": 2}
    make = POLICIES[policy] if policy in POLICIES else policy_named(policy)
    return EdgeSpec(PROMPT, sampling, make, **{**fixed, **fields})  # type: ignore[arg-type]


def free_slots(scheduler: VerifyScheduler) -> int:
    """Those that no session has."""
    memory = scheduler.memory
    return memory.pool.num_free + memory.cache.num_slots


def text_in(world: WorldSpec, chances: Chances | None = None) -> Text:
    """What the first edge of a world writes."""
    run = World(world, chances)
    run.run()
    end = run.edges[0].end
    assert end is not None
    assert end.error is None, end.error
    assert free_slots(run.scheduler) == world.num_slots
    return run.edges[0].session.text


def law_in(world: WorldSpec) -> Law:
    return law_of(lambda branch: text_in(world, branch))


STEADY = {"delay": (0.02, 0.02), "step_time": (0.03, 0.03), "draft_time": (0.005, 0.005)}
LATE = {"delay": (0.05, 0.05), "step_time": (0.01, 0.01), "draft_time": (0.02, 0.02)}
WILD = {"delay": (0.001, 0.08), "step_time": (0.01, 0.04), "draft_time": (0.002, 0.03), "losses": 2}


@pytest.mark.parametrize("times", [STEADY, LATE, WILD], ids=["steady", "late", "wild"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.title)
def test_the_law_is_the_targets_under_every_policy(
    rule: AcceptanceRule, policy: str, times: dict[str, object]
) -> None:
    world = WorldSpec((edge(rule, policy),), eos=(), seed=4, **times)  # type: ignore[arg-type]
    assert distance(law_in(world), target_law(Spec(sampling=TWO))) < EXACT


@pytest.mark.parametrize("times", [STEADY, LATE], ids=["steady", "late"])
@pytest.mark.parametrize("policy", ["tree", "adaptive"])
@pytest.mark.parametrize("rule", REPLACING, ids=lambda rule: rule.title)
def test_the_law_is_the_targets_of_drafts_drawn_with_replacement(
    rule: AcceptanceRule, policy: str, times: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of two tokens, as four make too many branches."""
    monkeypatch.setattr(drawing, "MOST_DRAWN", 2)
    world = WorldSpec((edge(rule, policy),), eos=(), seed=4, **times)  # type: ignore[arg-type]
    assert distance(law_in(world), target_law(Spec(sampling=TWO))) < EXACT


@pytest.mark.parametrize("policy", offered())
def test_the_law_is_the_targets_under_published_policies(policy: str) -> None:
    world = WorldSpec((edge(SPECINFER, policy),), eos=(), seed=4, **STEADY)  # type: ignore[arg-type]
    assert distance(law_in(world), target_law(Spec(sampling=TWO))) < EXACT


def test_the_law_is_the_targets_beside_a_verifier_that_guesses_and_through_an_outage() -> None:
    config = SchedulerConfig(prefill_chunk=5, recall=True)
    guessing = WorldSpec((edge(SPECINFER, "tree"),), eos=(), config=config)
    away = edge(BLOCK, "chain", patience=0.3)
    outage = WorldSpec((away,), eos=(), outages=((0.04, 0.8),))
    for world in (guessing, outage):
        assert distance(law_in(world), target_law(Spec(sampling=TWO))) < EXACT


def test_the_laws_but_the_first_hold_in_random_worlds_of_every_rule() -> None:
    """No session stalls, no slot leaks, what is shown stays; the same seed gives the same trace."""
    rules = tuple(AcceptanceRule)
    judge = Judge((0.0,) * 4, (1.0,) * 4, (1.0, 0.0, 0.0, 0.0), 2.0, 0.5)
    for seed in range(60):
        draw = random.Random(seed)
        world = WorldSpec(
            edges=tuple(random_edge(draw) for _ in range(draw.randint(1, 3))),
            seed=seed,
            delay=draw.choice([(0.0, 0.0), (0.005, 0.1)]),
            step_time=draw.choice([(0.01, 0.01), (0.005, 0.05)]),
            draft_time=draw.choice([(0.0005, 0.001), (0.005, 0.03)]),
            losses=draw.choice([0, 0, 2]),
            config=SchedulerConfig(prefill_chunk=5, recall=draw.random() < 0.5, rules=rules, judge=judge),
        )
        run = World(world)
        run.run()
        for each in run.edges:
            assert each.end is not None, f"world {seed} stalls"
            assert each.end.error is None, f"world {seed}: {each.end.error}"
            assert tuple(each.emitted) == each.session.text
        assert free_slots(run.scheduler) == world.num_slots
        if seed % 20 == 0:
            again = World(world)
            again.run()
            assert again.trace == run.trace


def random_edge(draw: random.Random) -> EdgeSpec:
    sampling = SamplingParams(
        temperature=draw.choice([0.0, 0.7, 1.3]),
        top_p=draw.choice([1.0, 0.8]),
        presence_penalty=draw.choice([0.0, 0.5]),
        max_tokens=draw.randint(1, 30),
        seed=draw.getrandbits(64),
        ignore_eos=draw.random() < 0.5,
    )
    return EdgeSpec(
        tuple(draw.randrange(VOCAB) for _ in range(draw.randint(1, 9))),
        sampling,
        draw.choice(list(POLICIES.values())),
        draw.choice(list(DRAFTERS.values())),
        starts_at=draw.uniform(0.0, 0.3),
        acceptance=Acceptance(draw.choice(list(AcceptanceRule))),
        recall=draw.random() < 0.5,
        patience=draw.choice([0.3, None]),
        draft_top=draw.choice([1, 3, 32]),
    )


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.title)
def test_greedy_text_is_the_targets_one_text(rule: AcceptanceRule) -> None:
    greedy = SamplingParams(max_tokens=40, ignore_eos=True)
    for policy in POLICIES:
        spec = edge(rule, policy, greedy)
        assert text_in(WorldSpec((spec,), losses=1)) == target_alone(PROMPT, greedy, ())


def test_a_draft_that_is_the_target_is_accepted_under_every_rule() -> None:
    """As the draft is cut and rounded, nearly always."""
    sampling = SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True, seed=3)
    for rule in LOSSLESS:
        spec = edge(rule, "sync", sampling, drafter=lambda: TinyDrafter(blend=0.0), draft_top=32)
        run = World(WorldSpec((spec,)))
        run.run()
        stats = run.edges[0].session.stats
        assert stats.accepted / stats.proposed > 0.9
        assert stats.committed / stats.target_steps > 3.5
