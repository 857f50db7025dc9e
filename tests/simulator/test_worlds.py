"""Laws of simulated worlds: the target's text in any world, one seed one trace, nothing beats the bound."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cloud_verifier.core.engine_protocol import StepResult
from cloud_verifier.core.scheduler import VerifyScheduler
from common.errors import UserError
from forerun.cli import main
from simulator.drafts import BetaDraft
from simulator.experiment import SchemeOutcome, run_experiment
from simulator.files import DEFAULT_SCHEMES, Experiment, experiment_from, read_experiment
from simulator.link_spec import LinkSpec, Outage
from simulator.report import table_rows
from simulator.schemes import CLAIRVOYANT, FORERUN, SERVER_STREAMING, policy_maker, run_scheme
from simulator.system import simulate
from simulator.world import DeviceSpec, StepChange, VerifierSpec, World

SHORT = World(tokens=80)
WORLDS = Path(__file__).resolve().parents[2] / "simulator" / "worlds"


def paces(outcomes: list[SchemeOutcome]) -> dict[str, float]:
    return {outcome.scheme: outcome.figures.ms_per_token for outcome in outcomes}


def test_server_streaming_takes_one_step_a_token() -> None:
    (result,) = simulate(replace(SHORT, link=LinkSpec(rtt=0.2)), policy_maker(SERVER_STREAMING))
    gaps = [after - before for before, after in zip(result.arrivals, result.arrivals[1:], strict=False)]
    assert gaps == pytest.approx([0.03] * 79)
    first = 0.2 + 0.03 + 0.00005 * 63  # the prompt's last token is the first row
    assert result.arrivals[0] == pytest.approx(first)
    assert result.stats.target_steps == 80
    assert result.stats.proposed == 0


@pytest.mark.parametrize(("scheme", "least", "most"), [(SERVER_STREAMING, 70, 79), ("tree", 0, 8)])
def test_the_verifier_looks_ahead_to_steps_of_tips_and_drafts_take_such_a_plan_back(
    scheme: str, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, step_done = list[bool](), VerifyScheduler.on_step_done

    def counted(self: VerifyScheduler, result: StepResult, now: float, *, next_began: bool) -> None:
        began.append(next_began)
        step_done(self, result, now, next_began=next_began)

    monkeypatch.setattr(VerifyScheduler, "on_step_done", counted)
    simulate(replace(SHORT, link=LinkSpec(rtt=0.02)), policy_maker(scheme))
    assert least <= sum(began) <= most


def test_a_perfect_draft_under_sync_commits_a_block_and_one_a_round_trip() -> None:
    world = World(tokens=60, draft=BetaDraft(mean=1.0), link=LinkSpec(rtt=0.1))
    (result,) = simulate(world, policy_maker("sync:5"))
    assert result.stats.target_steps == 10
    round_trip = 0.1 + 5 * 0.005 + 0.03 + 5 * 0.00005
    gaps = [b - a for a, b in zip(result.arrivals[5::6], result.arrivals[11::6], strict=False)]
    assert gaps == pytest.approx([round_trip] * 9)


@pytest.mark.parametrize("policy", ["tree", "chain", "sync:4", "off", "tree:width=1,max_children=8"])
@pytest.mark.parametrize(
    "link",
    [
        LinkSpec(rtt=0.0),
        LinkSpec(rtt=0.3, jitter=0.05, jitter_memory=0.5),
        LinkSpec(rtt=0.05, loss=0.1, bandwidth_up=2000.0, bandwidth_down=4000.0),
        LinkSpec(rtt=0.06, outages=(Outage(0.3, 0.4), Outage(1.0, 0.2))),
    ],
)
def test_the_text_is_the_targets_over_any_link(policy: str, link: LinkSpec) -> None:
    """`simulate` itself compares; here it is called in many worlds."""
    world = replace(SHORT, link=link, clients=2)
    results = simulate(world, policy_maker(policy))
    assert len(results) == 2
    assert all(len(result.tokens) == 80 for result in results)


def test_the_same_seed_gives_the_same_results_and_another_does_not() -> None:
    world = replace(SHORT, link=LinkSpec(rtt=0.08, jitter=0.01, loss=0.02), clients=3)
    once, again, other = (
        simulate(each, policy_maker(FORERUN)) for each in (world, world, replace(world, seed=2))
    )
    assert once == again
    assert once != other


ROWS_DEAR = tuple((rows, 0.040 * rows) for rows in (1, 2, 4, 8))
"""A quantized model on one processor core: each row costs a step of its own."""


@pytest.mark.parametrize("policy", ["chain", "tree", "adaptive"])
@pytest.mark.parametrize("rtt", [0.0, 0.06])
def test_a_verifier_whose_rows_are_dear_streams_and_the_device_rests(policy: str, rtt: float) -> None:
    world = World(
        link=LinkSpec(rtt),
        device=DeviceSpec(0.008, 0.002),
        verifier=VerifierSpec(0.040, step_times=ROWS_DEAR),
        draft=BetaDraft(0.9),
        tokens=200,
    )
    alone, drafted = (run_scheme(name, world)[0] for name in ("off", policy))
    assert drafted.arrivals[-1] <= 1.001 * alone.arrivals[-1]
    assert drafted.stats.draft_steps < 10


@pytest.mark.parametrize("rtt", [0.01, 0.06, 0.2])
@pytest.mark.parametrize("mean", [0.7, 0.85])
@pytest.mark.slow
def test_no_scheme_beats_the_clairvoyant_and_drafting_beats_streaming(rtt: float, mean: float) -> None:
    world = World(tokens=200, link=LinkSpec(rtt=rtt), draft=BetaDraft(mean=mean))
    found = paces(
        run_experiment(Experiment(world, repeats=3, schemes=(*DEFAULT_SCHEMES, "sync:4")), workers=1)
    )
    assert min(found, key=found.__getitem__) == CLAIRVOYANT
    assert found[FORERUN] < found[SERVER_STREAMING]
    assert found[FORERUN] < found["sync_best"] <= found["sync:4"]


def test_the_number_of_workers_changes_nothing() -> None:
    experiment = Experiment(replace(SHORT, tokens=40), repeats=2, schemes=(SERVER_STREAMING, FORERUN))
    told: list[tuple[int, int]] = []
    alone = run_experiment(experiment, workers=1)
    assert run_experiment(experiment, 2, lambda done, total: told.append((done, total))) == alone
    assert told == [(n, 4) for n in range(1, 5)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_seeds_are_reported_before_the_others_are_run(workers: int) -> None:
    """As an experiment of so many seeds reports them."""
    experiment = Experiment(replace(SHORT, tokens=20), repeats=5, schemes=(SERVER_STREAMING, FORERUN))
    events: list[int | list[SchemeOutcome]] = []
    run_experiment(experiment, workers, lambda done, _: events.append(done), events.append)
    early = [each for each in events if isinstance(each, list)]
    assert early == [run_experiment(replace(experiment, repeats=count), 1) for count in (1, 2, 4)]
    assert [events[events.index(each) - 1] for each in early] == [2, 4, 8], "the runs that were done before"
    assert ["±" in table_rows(each)[0][1] for each in early] == [False, True, True], (
        "of one seed it is unknown"
    )


@pytest.mark.parametrize("scheme", ["adaptive", "tree"])
def test_a_prompt_that_takes_the_draft_long_costs_little_more_than_that_time(scheme: str) -> None:
    """It is no measure of the draft's pace: from then on the text comes as soon as without it."""
    world = World(LinkSpec(rtt=0.060), draft=BetaDraft(0.8), tokens=600)
    slow = replace(world, device=DeviceSpec(prompt_time=1.0))
    without, with_prompt = (run_scheme(scheme, each)[0].arrivals[-1] for each in (world, slow))
    assert without + 0.3 < with_prompt < without + 1.0


@pytest.mark.parametrize("path", sorted(WORLDS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_worlds_that_come_along_can_be_read(path: Path) -> None:
    assert read_experiment(path).repeats > 1


def test_a_document_is_read_in_its_own_units() -> None:
    found = experiment_from(
        {
            "seed": 4,
            "repeats": 2,
            "clients": 3,
            "schemes": ["chain"],
            "link": {"rtt_ms": 80, "up_kbps": 8, "outages": [{"start_ms": 500, "duration_ms": 250}]},
            "device": {"draft_ms": 4, "draft_ms_per_node": 0.5},
            "verifier": {"step_ms": 25.5, "max_rows": 100},
            "draft": {"mean": 0.9},
        }
    )
    world = found.world
    assert world.link == LinkSpec(rtt=0.08, bandwidth_up=1000.0, outages=(Outage(0.5, 0.25),))
    assert world.device == DeviceSpec(0.004, 0.0005)
    assert world.verifier == VerifierSpec(step_time=0.0255, max_rows=100)
    assert (world.seed, world.clients, world.draft.mean, found.repeats) == (4, 3, 0.9, 2)
    assert found.schemes == ("chain",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.toml", b"seed = = 1", "is not TOML: .*line 1"),
        ("w.json", b'{"seed": 1,}', "is not JSON: .*line 1"),
        ("w.toml", b"\xff\xfe", "is not UTF-8"),
        ("w.json", b'{"tokens": 0}', "w.json: world tokens is 0"),
    ],
)
def test_a_file_that_makes_no_world_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_experiment(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_experiment(tmp_path / "missing.toml")


def test_the_command_prints_a_table_and_the_demos_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.toml"
    path.write_text('tokens = 40\nrepeats = 2\nschemes = ["server_streaming", "forerun", "clairvoyant"]\n')
    assert main(["simulate", "run", str(path), "--workers", "1", "--rtt", "20"]) == 0
    table = capsys.readouterr().out
    assert "RTT 20 ms" in table
    assert "server_streaming" in table
    assert main(["simulate", "run", str(path), "--workers", "1", "--json", "--scheme", "forerun"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["settings"]["rtt_ms"] == 60
    assert set(report["schemes"]["forerun"]["latencies_ms"]) == {"gap", "window"}
    keys = set(report["schemes"]["forerun"])
    assert keys >= {
        "ms_per_token_p50", "ms_per_token_p95", "ttft_ms", "target_steps_per_token", "identical",
        "evaluated_nodes_per_token", "draft_tokens_per_token", "bytes_up_per_token", "bytes_down_per_token",
    }  # fmt: skip
    assert main(["simulate", "run", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_verifier_that_changes_its_pace(tmp_path: Path) -> None:
    document = {
        "tokens": 40,
        "link": {"rtt_ms": 0},
        "verifier": {"step_changes": [{"at_s": 0.3, "step_ms": 60}, {"at_s": 0.9, "step_ms": 10}]},
    }
    world = experiment_from(document, tmp_path).world
    assert world.verifier.step_changes == (StepChange(0.3, 0.06), StepChange(0.9, 0.01))
    (result,) = simulate(world, policy_maker(SERVER_STREAMING))
    gaps = {round(1e3 * (b - a)) for a, b in itertools.pairwise(result.arrivals)}
    assert gaps == {30, 60, 10}
    assert [round(1e3 * (b - a)) for a, b in itertools.pairwise(result.arrivals)][-1] == 10
