"""The five laws of docs/architecture.md over random worlds, with both real machines."""

from dataclasses import replace

import pytest

from cloud_verifier.core.limits import SchedulerConfig
from common.messages import FinishReason
from common.sampling import SamplingParams
from tests.worlds.models import VOCAB, no_repeats, target_alone
from tests.worlds.seeds import DRAFTERS, POLICIES, check_laws, check_seed, replay_command, run, spec_of
from tests.worlds.world import EdgeSpec, World, WorldSpec

QUICK_SEEDS, NUM_SEEDS, CHUNK = 100, 1000, 50


@pytest.mark.parametrize(
    "first",
    [
        *range(0, QUICK_SEEDS, CHUNK),
        *(pytest.param(first, marks=pytest.mark.slow) for first in range(QUICK_SEEDS, NUM_SEEDS, CHUNK)),
    ],
)
def test_laws_hold_on_many_seeds(first: int) -> None:
    """`make soak` runs 20,000."""
    broken = {seed: wrong for seed in range(first, first + CHUNK) if (wrong := check_seed(seed)) is not None}
    assert not broken, "\n".join(f"{wrong}; again: {replay_command(seed)}" for seed, wrong in broken.items())


def test_laws_hold_where_steps_are_padded() -> None:
    for seed in range(30):
        spec = replace(spec_of(seed), row_buckets=(4, 8, 16, 32))
        check_laws(run(spec))


@pytest.mark.parametrize("seed", [9790, 10344])
def test_another_session_runs_if_the_one_with_dear_masks_gives_its_slots_up(seed: int) -> None:
    """Else no step, no timer and no message was left."""
    assert check_seed(seed) is None


def test_a_broken_law_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker itself: an edge that shows a wrong token is caught, with its seed's command."""
    monkeypatch.setattr("tests.worlds.seeds.target_alone", lambda *_, **__: (VOCAB,))
    wrong = check_seed(1)
    assert wrong is not None
    assert "law 1" in wrong
    assert replay_command(1).endswith("--first 1 --count 1")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_text_does_not_depend_on_policy_or_draft(policy: str, drafter: str) -> None:
    sampling = SamplingParams(temperature=0.9, max_tokens=60, seed=5, ignore_eos=True)
    spec = EdgeSpec((1, 2, 3), sampling, POLICIES[policy], DRAFTERS[drafter])
    world = run(WorldSpec((spec,), seed=3, losses=2))
    assert world.edges[0].session.text == target_alone((1, 2, 3), sampling, (0,))


@pytest.mark.parametrize("policy", ["tree", "adaptive"])
@pytest.mark.parametrize("drafter", ["twin", "unruly", "liar"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_text_under_a_grammar_fits_it_whatever_is_drafted(
    policy: str, drafter: str, temperature: float
) -> None:
    sampling = SamplingParams(temperature, max_tokens=60, seed=5, grammar="2", frequency_penalty=0.1)
    plain = replace(sampling, grammar="")
    spec = EdgeSpec((1, 2, 3), sampling, POLICIES[policy], DRAFTERS[drafter])
    world = run(WorldSpec((spec,), seed=3, losses=2, looks_ahead=0.5, eos=()))
    text = world.edges[0].session.text
    assert text == target_alone((1, 2, 3), sampling, ())
    assert no_repeats("2", text) is not None
    assert no_repeats("2", target_alone((1, 2, 3), plain, ())) is None, "the grammar changed nothing"


def test_a_good_draft_costs_fewer_target_steps_than_tokens() -> None:
    sampling = SamplingParams(max_tokens=100, ignore_eos=True)
    spec = EdgeSpec((1, 2), sampling, POLICIES["chain"], DRAFTERS["twin"])
    stats = run(WorldSpec((spec,), delay=(0.01, 0.01), draft_time=(0.001, 0.001))).edges[0].session.stats
    assert stats.committed == 100
    assert stats.target_steps < 50
    assert stats.accepted > 60


@pytest.mark.parametrize("seed", range(60))
def test_a_session_without_fill_resumes_after_any_loss(seed: int) -> None:
    sampling = SamplingParams(max_tokens=12, ignore_eos=True)
    spec = EdgeSpec((0,), sampling, POLICIES["sync"], DRAFTERS["mute"])
    edge = run(WorldSpec((spec,), seed=seed, delay=(0.005, 0.15), losses=1)).edges[0]
    assert edge.session.text == target_alone((0,), sampling, (0,))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kept", [0, 7])
def test_a_draft_that_waits_for_text_takes_part_in_the_rest(policy: str, kept: int) -> None:
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    spec = EdgeSpec(
        (1, 2, 3), sampling, POLICIES[policy], DRAFTERS["twin"], draft_waits=True,
        committed=target_alone((1, 2, 3), sampling, (0,))[:kept],
    )  # fmt: skip
    for seed in range(4):
        world = run(WorldSpec((spec,), seed=seed, losses=seed, draft_time=(0.001, 0.001)))
        check_laws(world)
        assert (world.edges[0].session.stats.accepted > 0) is (policy != "off")


@pytest.mark.parametrize("policy", ["adaptive", "tree", "chain", "sync"])
@pytest.mark.parametrize("drafter", ["twin", "fair", "liar"])
def test_an_outage_is_written_through_and_changes_no_text(policy: str, drafter: str) -> None:
    sampling = SamplingParams(temperature=0.7, max_tokens=150, seed=3, ignore_eos=True)
    spec = EdgeSpec((1, 2), sampling, POLICIES[policy], DRAFTERS[drafter])
    world = run(WorldSpec((spec,), seed=1, draft_time=(0.05, 0.05), outages=((0.3, 5.0),)))
    check_laws(world)
    assert world.edges[0].num_previewed > 40


def test_time_without_a_server_is_not_lost() -> None:
    """A good draft goes on writing; the target then confirms in a few steps what it finds there."""
    sampling = SamplingParams(max_tokens=120, ignore_eos=True)
    steps = []
    for patience in (None, 1.0):
        spec = EdgeSpec((1, 2), sampling, POLICIES["chain"], DRAFTERS["twin"], patience=patience)
        world = run(WorldSpec((spec,), draft_time=(0.05, 0.05), outages=((0.1, 6.0),)))
        check_laws(world)
        steps.append(world.edges[0].session.stats.target_steps)
    waiting, writing = steps
    assert writing < 0.5 * waiting


def test_a_drained_verifiers_sessions_move_to_another_at_once() -> None:
    sampling = SamplingParams(temperature=0.7, max_tokens=100, seed=3, ignore_eos=True)
    edges = tuple(EdgeSpec((1, 2, key), sampling, POLICIES["tree"]) for key in range(5))
    world = run(WorldSpec(edges, verifiers=2, drains=(0.5,), grace=1.0, config=SchedulerConfig()))
    check_laws(world)
    assert {edge.hosts[0] for edge in world.edges} == {0, 1}, "they are spread"
    for edge in world.edges:
        assert edge.hosts in ([1], [0, 1]), "who was there moves once, who was not stays"


def test_a_stream_that_fell_silent_is_found_and_the_text_goes_on() -> None:
    sampling = SamplingParams(max_tokens=120, ignore_eos=True)
    for policy in POLICIES:
        spec = EdgeSpec((1, 2), sampling, POLICIES[policy])
        world = run(WorldSpec((spec,), freezes=2, seed=4))
        check_laws(world)
        assert world.edges[0].session.stats.resumes >= 1
        assert world.edges[0].num_probes >= 1


@pytest.mark.parametrize("kept", [1, 7, 40])
def test_a_text_is_resumed_in_the_middle_as_if_it_had_never_stopped(kept: int) -> None:
    """The penalties tell generated text from the prompt, on both sides."""
    sampling = SamplingParams(
        temperature=0.9, max_tokens=40, seed=5, ignore_eos=True, presence_penalty=0.7, repetition_penalty=1.3
    )
    text = target_alone((1, 2, 3), sampling, (0,))
    spec = EdgeSpec((1, 2, 3), sampling, POLICIES["chain"], DRAFTERS["twin"], committed=text[:kept])
    world = run(WorldSpec((spec,), draft_time=(0.001, 0.001)))
    check_laws(world)
    assert tuple(world.edges[0].emitted) == text[kept:]
    stats = world.edges[0].session.stats
    assert stats.committed == 40 - kept
    assert stats.target_steps <= 0.6 * stats.committed, "the drafts are the target's own, penalties and all"


def test_sessions_that_gave_way_write_the_same_text_later() -> None:
    """Four texts of 100 tokens in slots for one and a half: the youngest are dropped and come again."""
    sampling = SamplingParams(temperature=0.8, max_tokens=100, seed=9, ignore_eos=True)
    edges = tuple(EdgeSpec((1, 2, 3, key), sampling, POLICIES["tree"]) for key in range(4))
    world = run(WorldSpec(edges, num_slots=180, config=SchedulerConfig(promised_text=8)))
    check_laws(world)
    assert world.scheduler.preemption.num_preempted >= 4
    assert world.scheduler.memory.cache.num_evicted > 100


def test_a_text_that_is_resumed_is_not_read_again() -> None:
    sampling = SamplingParams(max_tokens=200, ignore_eos=True)
    spec = EdgeSpec((1, 2), sampling, POLICIES["tree"])
    outages = ((0.5, 1.5), (3.0, 4.0))  # long enough for the verifier to know that the edge is gone
    counters = run(WorldSpec((spec,), outages=outages, seed=2)).scheduler.counters
    assert counters.num_opened > 1
    assert counters.num_prefilled <= counters.num_opened, "at most a prompt of two tokens, once each"


def test_a_failed_step_ends_only_the_sessions_in_it() -> None:
    sampling = SamplingParams(max_tokens=30, ignore_eos=True)
    early = EdgeSpec((1, 2), sampling, POLICIES["tree"])
    late = EdgeSpec((3, 4), sampling, POLICIES["tree"], starts_at=2.0)
    world = run(WorldSpec((early, late), steps_failing=(3,)))
    first, second = world.edges
    assert first.end is not None
    assert first.end.error is not None
    assert second.end is not None
    assert second.end.reason is FinishReason.LENGTH
    memory = world.scheduler.memory
    assert memory.pool.num_free + memory.cache.num_slots == world.spec.num_slots


def circling(policy: str, recall: bool = False, **world: object) -> World:
    """One edge, 150 tokens of a text that goes in circles."""
    sampling = SamplingParams(max_tokens=150, ignore_eos=True)
    spec = EdgeSpec((1, 2), sampling, POLICIES[policy], fails_after=1, recall=recall)
    fixed = {"delay": (0.03, 0.03), "step_time": (0.03, 0.03), "memory": 1}
    played = run(WorldSpec((spec,), **{**fixed, **world}))  # type: ignore[arg-type]  # as the fields are
    check_laws(played)
    return played


def test_a_verifier_alone_writes_faster_where_the_text_repeats_itself() -> None:
    plain = circling("off").edges[0].session.stats
    helped = circling("off", config=SchedulerConfig(recall=True)).edges[0].session.stats
    assert plain.target_steps == 150
    assert helped.target_steps < 40
    assert helped.accepted == 0, "the edge proposed nothing"


@pytest.mark.parametrize("policy", ["tree", "chain", "adaptive"])
def test_a_device_without_a_draft_helps_where_the_text_repeats_itself(policy: str) -> None:
    plain = circling(policy).edges[0].session.stats
    helped = circling(policy, recall=True).edges[0].session.stats
    assert plain.target_steps > 140
    assert helped.target_steps < 75
    assert helped.accepted > 75


def test_both_sides_guess_the_same_nodes() -> None:
    """What the device sends the verifier has already: nothing is evaluated twice, nothing leaks."""
    stats = circling("tree", recall=True, config=SchedulerConfig(recall=True)).edges[0].session.stats
    assert stats.target_steps < 40
    assert stats.evaluated < 2 * 150
