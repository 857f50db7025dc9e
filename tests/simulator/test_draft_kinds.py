"""Kinds of drafts in the simulator: a small one in front, masks, early hints, and heads of the verifier."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import GuessItem, GuessPlan
from common.calibration import Confidence
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.verifier_choice import DraftSkill, token_time
from forerun.commands.simulate import print_table
from schemes.claims.runner import mean_pace
from simulator.drafts import BetaDraft
from simulator.events import Draws
from simulator.experiment import Pool, distance_to_bound, run_experiment
from simulator.figures import SessionResult, pace
from simulator.files import Experiment, experiment_from
from simulator.heads import HeadKnowledge, HeadsSpec, guess
from simulator.link_spec import LinkSpec
from simulator.schemes import (
    CLAIRVOYANT,
    COLOCATED,
    DEVICE_ONLY,
    FORERUN,
    SERVER_STREAMING,
    check_scheme,
    policy_maker,
    run_scheme,
)
from simulator.world import DeviceSpec, SmallDraft, VerifierSpec, World

SLOW_DEVICE = World(device=DeviceSpec(0.012, 0.0003), tokens=150)


def with_small(agreement: float, time: float = 0.0005) -> World:
    return replace(SLOW_DEVICE, device=replace(SLOW_DEVICE.device, small=SmallDraft(time, agreement)))


def end(world: World, scheme: str) -> float:
    return run_scheme(scheme, world)[0].arrivals[-1]


@pytest.mark.parametrize("scheme", ["sync:4", "chain", "tree", "forerun"])
def test_a_small_draft_that_agrees_saves_time(scheme: str) -> None:
    assert end(with_small(0.9), scheme) < 0.97 * end(SLOW_DEVICE, scheme)


def test_a_chain_of_a_small_draft_that_never_agrees_is_paid_for_in_vain() -> None:
    plain, helped = (run_scheme("sync:4", world)[0].stats for world in (SLOW_DEVICE, with_small(0.0)))
    each = 4 * (0.0005 + 0.0003)
    assert helped.draft_time == pytest.approx(plain.draft_time + each * plain.draft_steps)


def test_a_small_draft_that_always_agrees_pays_one_step_for_five_tokens() -> None:
    world = replace(with_small(1.0, 0.0), device=DeviceSpec(0.010, 0.0, small=SmallDraft(0.0, 1.0)))
    stats = run_scheme("sync:5", world)[0].stats
    assert stats.draft_time == pytest.approx(0.010 * stats.proposed / 5, rel=0.02)


def test_a_small_draft_is_read_from_a_world() -> None:
    found = experiment_from({"device": {"small": {"ms": 0.5, "agreement": 0.7, "tokens": 3}}})
    assert found.world.device.small == SmallDraft(0.0005, 0.7, 3)


# A draft whose step buys several levels: the same text, and depth is cheap where its masks see.


SLOW = World(LinkSpec(rtt=0.06), DeviceSpec(0.060, 0.0), draft=BetaDraft(0.9, 2.0), tokens=150)


def parallel(sight: float, levels: int = 8) -> World:
    draft = BetaDraft(0.9, 2.0, sight=sight)
    return replace(SLOW, device=replace(SLOW.device, levels=levels), draft=draft)


@pytest.mark.parametrize("scheme", ["sync:8", "chain", "forerun"])
def test_masks_save_time(scheme: str) -> None:
    assert end(parallel(0.98), scheme) < 0.85 * end(SLOW, scheme)


def test_a_plain_draft_of_this_pace_rests_where_one_with_masks_does_not() -> None:
    streaming = end(SLOW, "server_streaming")
    assert end(SLOW, "forerun") == pytest.approx(streaming, rel=0.05)
    assert end(parallel(0.95), "forerun") < streaming / 1.15


def test_masks_that_see_nothing_cost_little() -> None:
    assert end(parallel(0.0), "forerun") < 1.05 * end(SLOW, "server_streaming")


def test_masks_that_see_all_pay_one_step_for_all_levels() -> None:
    stats = run_scheme("sync:8", replace(parallel(1.0), draft=BetaDraft(1.0, 2.0, sight=1.0)))[0].stats
    assert stats.draft_time == pytest.approx(0.060 * stats.proposed / 8, rel=0.05)


def test_levels_and_sight_are_read_from_a_world() -> None:
    found = experiment_from({"device": {"levels": 8}, "draft": {"mean": 0.8, "sight": 0.9}}).world
    assert (found.device.levels, found.draft) == (8, BetaDraft(0.8, sight=0.9))


def test_wrong_levels_are_refused() -> None:
    with pytest.raises(UserError):
        DeviceSpec(levels=0)
    with pytest.raises(UserError):
        DeviceSpec(levels=2, small=SmallDraft(0.001, 0.5))
    with pytest.raises(UserError):
        BetaDraft(sight=1.5)


# Early hints save part of a step where the network is near, nothing where it is far, and change no text.


NEAR = World(link=LinkSpec(rtt=0.0), draft=BetaDraft(mean=0.7), tokens=200)


def pace_of(world: World, scheme: str, hint_at: float, skill: float) -> float:
    verifier = VerifierSpec(hint_at=hint_at, hint_skill=skill)
    worlds = [replace(world, verifier=verifier, seed=seed) for seed in (1, 2, 3)]
    return fmean(run_scheme(scheme, each)[0].arrivals[-1] / each.tokens for each in worlds)


@pytest.mark.parametrize("scheme", ["chain", "forerun"])
def test_hints_that_hold_save_time_beside_the_target(scheme: str) -> None:
    """`run_scheme` itself compares the texts."""
    assert pace_of(NEAR, scheme, 0.25, 0.95) < 0.97 * pace_of(NEAR, scheme, 0.0, 0.0)


def test_hints_save_no_more_than_the_rest_of_each_step() -> None:
    without, helped = (pace_of(NEAR, "chain", at, 1.0) for at in (0.0, 0.5))
    steps = run_scheme("chain", replace(NEAR, verifier=VerifierSpec(hint_at=0.5, hint_skill=1.0)))[0].stats
    assert without - helped <= 0.5 * 0.030 * steps.target_steps / steps.committed * 1.1


def test_hints_are_read_from_a_world() -> None:
    spec = experiment_from({"verifier": {"hint_at": 0.5, "hint_skill": 0.8}}).world.verifier
    assert (spec.hint_at, spec.hint_skill) == (0.5, 0.8)
    with pytest.raises(UserError):
        experiment_from({"verifier": {"hint_at": 1.0}})


# A drafter beside the target: what it guesses is as right as the world says, and both ends together win.


ACCURACY = (0.8, 0.7, 0.6)
TOLERATED = 1.02


def world(heads: HeadsSpec | None, rtt: float = 0.060, tokens: int = 400) -> World:
    verifier = VerifierSpec(heads=heads).with_product_limits()
    return World(LinkSpec(rtt=rtt), verifier=verifier, draft=BetaDraft(mean=0.8), tokens=tokens)


def item(position: int, depth: int) -> GuessItem:
    prefix = np.arange(position, dtype=np.int32)
    return GuessItem(1, prefix, 0, depth, 2, Confidence(), SamplingParams())


def test_each_level_is_as_often_right_as_the_world_says() -> None:
    knowledge = BetaDraft(mean=0.8).session(Draws(1, 1))
    guesses = HeadKnowledge(HeadsSpec(ACCURACY), knowledge, Draws(1, 1))
    right, asked = [0] * 3, [0] * 3
    for position in range(1, 6000):
        for said in guess({1: guesses}, GuessPlan((item(position, 3),))).guesses[0]:
            level, truth = len(said.path), knowledge.truth(position + len(said.path) + 1)
            if all(token == knowledge.truth(position + at + 1) for at, token in enumerate(said.path)):
                asked[level] += 1
                right[level] += said.tokens[0] == truth
            assert list(said.scores) == sorted(said.scores, reverse=True)
            assert len(set(said.tokens)) == len(said.tokens)
    shares = [hits / number for hits, number in zip(right, asked, strict=True)]
    assert shares == pytest.approx(ACCURACY, abs=0.02)


GOOD = HeadsSpec((0.75, 0.7, 0.68, 0.66))
POOR = HeadsSpec((0.25,) * 5, time=0.002, time_per_level=0.0005, k=8.0, likeness=0.4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "one",
    [
        world(GOOD, 0.0),
        world(GOOD, 0.060),
        replace(world(POOR, 0.0094), device=DeviceSpec(0.0037, 0.0025), draft=BetaDraft(mean=0.777)),
    ],
)
def test_both_ends_are_as_fast_as_the_better_one(one: World) -> None:
    def ms(scheme: str, spec: HeadsSpec | None) -> float:
        worlds = [replace(one, verifier=replace(one.verifier, heads=spec), seed=seed) for seed in (1, 2)]
        return fmean(
            pace([each.as_run() for each in run_scheme(scheme, each_world)]) for each_world in worlds
        )

    heads = one.verifier.heads
    alone = min(ms(SERVER_STREAMING, heads), ms(FORERUN, None))
    assert ms(FORERUN, heads) < TOLERATED * alone


@pytest.mark.slow
def test_a_device_sends_less_to_a_verifier_that_drafts_well() -> None:
    def sent(spec: HeadsSpec | None) -> float:
        return only(run_scheme(FORERUN, world(spec))).stats.proposed / 400

    assert sent(HeadsSpec((0.92,) * 8)) < 0.2 * sent(None)


@pytest.mark.parametrize(
    "heads", [3, {"accuracy": "high"}, {"accuracy": [1.5]}, {"accuracy": []}, {"k": 2.0}]
)
def test_heads_that_cannot_be_are_refused(heads: object) -> None:
    with pytest.raises(UserError):
        experiment_from({"verifier": {"heads": heads}})


def only(results: list[SessionResult]) -> SessionResult:
    (found,) = results
    return found


# The pace by which the edge ranks verifiers is the pace that the simulator finds.


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.6, 0.85])
@pytest.mark.parametrize("turn", [0.01, 0.03, 0.12])
@pytest.mark.parametrize("step", [0.005, 0.015])
def test_a_predicted_pace_is_about_the_simulated_one(mean: float, turn: float, step: float) -> None:
    """Within 30 %, less than what moves a session. The form of the prediction was chosen on such worlds;
    docs/adaptation.md has its error on others."""
    for rtt in (0.005, 0.03, 0.1, 0.3):
        world = World(
            link=LinkSpec(rtt=rtt),
            device=DeviceSpec(step),
            verifier=VerifierSpec(step_time=turn),
            draft=BetaDraft(mean=mean),
            tokens=200,
        )
        found = 1e-3 * mean_pace([run_scheme(FORERUN, replace(world, seed=seed)) for seed in (1, 2, 3)])
        assert token_time(rtt, turn, DraftSkill(mean, step)) == pytest.approx(found, rel=0.3)


# Where the draft runs (beside the target, on the device alone), replicas, and a device's power budget.


FAR = World(tokens=60, draft=BetaDraft(mean=1.0), link=LinkSpec(rtt=0.1))


def test_a_draft_beside_the_target_pays_the_link_once() -> None:
    (result,) = run_scheme("colocated:sync:5", FAR)
    gaps = [b - a for a, b in zip(result.arrivals[5::6], result.arrivals[11::6], strict=False)]
    assert gaps == pytest.approx([5 * 0.005 + 0.03 + 5 * 0.00005] * 9)  # no round trip in it
    prefill, first_block = 0.03 + 62 * 0.00005, 0.03 + 5 * 0.00005  # the block is drafted during the prefill
    assert result.arrivals[0] == pytest.approx(0.1 + prefill + first_block)
    assert result.tokens == result.truth


def test_without_a_draft_it_is_server_streaming() -> None:
    """The user's bytes and the link are the same, so nothing else may differ."""
    narrow = replace(FAR, link=LinkSpec(rtt=0.1, bandwidth_up=800.0, bandwidth_down=800.0))
    (beside,), (streamed,) = (run_scheme(scheme, narrow) for scheme in ("colocated:off", SERVER_STREAMING))
    assert beside.arrivals == pytest.approx(streamed.arrivals)
    assert (beside.bytes_up, beside.bytes_down) == (streamed.bytes_up, streamed.bytes_down)


def test_a_scheme_that_is_none_is_refused() -> None:
    for name in ("colocated:sideways", "sideways"):
        with pytest.raises(UserError, match="unknown"):
            check_scheme(name)
    check_scheme(DEVICE_ONLY)
    with pytest.raises(UserError, match="no growth policy"):
        policy_maker(DEVICE_ONLY)


def test_the_device_alone_writes_its_own_text_at_its_own_pace() -> None:
    world = replace(FAR, draft=BetaDraft(mean=0.6))
    (outcome,) = run_experiment(Experiment(world, 1, (DEVICE_ONLY,)), workers=1)
    assert not outcome.figures.identical
    assert outcome.figures.ms_per_token == pytest.approx(5.0)
    assert outcome.figures.ttft_ms == pytest.approx(5.0)
    assert outcome.figures.target_steps_per_token == 0.0
    assert outcome.figures.acceptance_length == 0.0
    assert outcome.figures.bytes_up_per_token == 0.0
    (right,) = run_experiment(Experiment(FAR, 1, (DEVICE_ONLY,)), workers=1)
    assert right.figures.identical


def test_the_bound_is_none_for_drafts_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    world = replace(FAR, draft=BetaDraft(mean=0.6))
    schemes = (CLAIRVOYANT, "colocated:sync:4", DEVICE_ONLY, "chain")
    experiment = Experiment(world, 1, schemes)
    outcomes = run_experiment(experiment, workers=1)
    distances = [distance_to_bound(outcomes, scheme) for scheme in schemes]
    assert distances[:3] == [1.0, None, None]
    assert distances[3] is not None
    assert distances[3] > 1.0
    print_table(experiment, outcomes)
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[1] == "*" for line in table[2:6]] == [False, False, True, False]
    assert table[-1] == "* writes another text than the target"


@pytest.mark.parametrize("scheme", [FORERUN, "colocated:chain", DEVICE_ONLY])
def test_replicas_side_by_side_come_to_what_one_process_does(scheme: str) -> None:
    """Five sessions on three verifiers, and on more verifiers than there are sessions."""
    dealt = [
        World(tokens=12, clients=5, verifier=VerifierSpec(replicas=count), link=LinkSpec(0.03, jitter=0.01))
        for count in (3, 7)
    ]
    with Pool(2) as pool:
        found = list(pool.map((scheme, world) for world in dealt))
    assert found == [run_scheme(scheme, world) for world in dealt]
    truths = [World().draft.session(Draws(1, key)).truth(64) for key in range(5)]
    assert [result.truth[0] for result in found[0]] == truths  # each where its session stands


def test_a_power_budget_caps_draft_steps() -> None:
    frugal = replace(FAR, device=DeviceSpec(max_draft_steps_per_second=20.0))
    (ours,), (free,) = (run_scheme("chain", world) for world in (frugal, FAR))
    assert ours.stats.draft_steps <= 20.0 * ours.arrivals[-1] + 1
    assert free.stats.draft_steps / free.arrivals[-1] > 100.0
    assert ours.tokens == ours.truth


@pytest.mark.parametrize("mean", [1.0, 0.7])
@pytest.mark.parametrize("nodes", [2, 5])
def test_a_block_saves_the_hops_of_all_its_tokens_but_one(mean: float, nodes: int) -> None:
    """(N-1) t1 (k-1)/k a token, k tokens a round: DSD, arXiv 2511.11733."""
    hop = 0.07
    whole = replace(FAR, tokens=120, draft=BetaDraft(mean=mean), link=LinkSpec(rtt=0.0))
    parts = replace(whole, verifier=VerifierSpec(nodes=nodes, hop_time=hop))
    (streamed, streamed_whole), (drafted, drafted_whole) = (
        [run_scheme(scheme, world)[0].arrivals for world in (parts, whole)]
        for scheme in (SERVER_STREAMING, "sync:5")
    )
    rounds = len(set(drafted)) - 1
    saved = (streamed[-1] - streamed[0]) - (streamed_whole[-1] - streamed_whole[0])
    saved -= (drafted[-1] - drafted[0]) - (drafted_whole[-1] - drafted_whole[0])
    k = 119 / rounds
    assert saved / 119 == pytest.approx((nodes - 1) * hop * (k - 1) / k)


def test_documents_say_all_of_it() -> None:
    document = {
        "verifier": {"draft_ms": 2.0, "draft_ms_per_node": 0.1, "replicas": 3, "nodes": 4, "hop_ms": 20},
        "device": {"max_draft_steps_per_s": 50},
        "schemes": [COLOCATED, "colocated:tree", DEVICE_ONLY],
    }
    world = experiment_from(document).world
    assert world.verifier.draft == DeviceSpec(0.002, 0.0001)
    known = {"verifier": {"draft_ms": 2.0}, "device": {"draft_ms_per_node": 2.0, "max_draft_steps_per_s": 5}}
    assert experiment_from(known).world.verifier.draft == DeviceSpec(0.002, 0.002)  # but for its power
    assert world.verifier.replicas == 3
    assert world.verifier.time(1, 0) == pytest.approx(0.030 + 3 * 0.020)
    assert world.device.max_draft_steps_per_second == 50.0
