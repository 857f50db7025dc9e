"""Where the draft runs (beside the target, on the device alone), replicas, and a device's power budget."""

from dataclasses import replace

import pytest

from common.errors import UserError
from forerun.commands.simulate import print_table
from simulator.drafts import BetaDraft
from simulator.events import Draws
from simulator.experiment import Pool, distance_to_bound, run_experiment
from simulator.files import Experiment, experiment_from
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
from simulator.world import DeviceSpec, VerifierSpec, World

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
