"""Laws of replay: what was recorded is what the simulated draft says, and right where it was right."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import LocalError, UserError
from simulator.drafts import ReplayedDraft, ReplayedTexts, recorded_draft
from simulator.events import Draws
from simulator.figures import SessionResult
from simulator.files import Experiment, experiment_from, read_experiment
from simulator.knowledge import BEST, OUTSIDE
from simulator.recordings import RecordedText, Recording, RecordingHeader, read_recording, write_recording
from simulator.schemes import policy_maker
from simulator.sweep import MANIFEST, Sweep, run_sweep
from simulator.system import simulate
from simulator.world import VerifierSpec, World

HEADER = RecordingHeader("target", "draft.gguf", 0.8, 7, {1: 1.5, 4: 2.25}, {1: 30.0})
SCORES = (5.5, 3.25, 0.0)


def text_of(ranks: list[int | None]) -> RecordedText:
    """Candidates 10, 11 and 12 everywhere, so rank r is token 9 + r; 99 is none of them."""
    tokens = tuple(99 if rank is None else 9 + rank for rank in ranks)
    return RecordedText(40, tokens, ((10, 11, 12),) * len(ranks), (SCORES,) * len(ranks), tuple(ranks))


def recording_of(*texts: list[int | None]) -> Recording:
    return Recording(HEADER, tuple(text_of(ranks) for ranks in texts))


SHORT = recording_of([1, 1, 2, 1, None, 1], [3, 1, 1])


def ranks_of(tokens: Sequence[int]) -> list[int | None]:
    """As recordings count them: 1 is the draft's best, None none of its candidates."""
    return [None if token == OUTSIDE else token - BEST + 1 for token in tokens]


def truths(draft: ReplayedDraft, place: int, count: int, first: int = 64) -> list[int | None]:
    knowledge = draft.session(Draws(1), place, first)
    return ranks_of([knowledge.truth(first + number) for number in range(count)])


def sync_run(draft: ReplayedDraft, tokens: int, block: int, seed: int = 1) -> SessionResult:
    (result,) = simulate(World(tokens=tokens, draft=draft, seed=seed), policy_maker(f"sync:{block}"))
    return result


def blocks_of(hits: list[bool], block: int) -> list[int]:
    """Committed tokens of each step, when every block of best tokens is held against `hits`."""
    found, done = list[int](), 0
    while done < len(hits):
        ahead = hits[done : done + block]
        right = ahead.index(False) if False in ahead else len(ahead)
        found.append(min(right + 1, len(hits) - done))
        done += found[-1]
    return found


def test_a_recording_read_back_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    mute = RecordedText(1, (4, 5), ((), (5,)), ((), (-1.5,)), (None, 1))
    recording = Recording(HEADER, (*SHORT.texts, mute))
    write_recording(path, recording)
    assert read_recording(path) == recording
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.jsonl"]
    assert recording.hit_rate == 7 / 11
    with pytest.raises(LocalError, match="cannot be written: No such file"):
        write_recording(tmp_path / "none" / "a.jsonl", SHORT)


GOOD_HEADER = {
    "format": "forerun recording", "version": 1, "target": "t", "draft": "d", "temperature": 0, "seed": 1,
}  # fmt: skip
GOOD_TEXT = {
    "prompt_tokens": 3, "tokens": [5, 6], "candidates": [[5, 7], [8, 9]], "scores": [[2, 1], [1, 1]],
    "ranks": [1, None],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "line 1, is no header; its format should be 'forerun recording'"),
        ({"version": 2}, "line 1, has version 2; this program reads version 1"),
        ({"temperature": "hot"}, 'line 1, has temperature "hot"; a number'),
        ({"seed": -1}, "line 1, has seed -1; a whole number"),
        ({"draft_step_ms": {"one": 1}}, "line 1, has draft_step_ms"),
        ({"target_step_ms": {"1": -1}}, "line 1, has target_step_ms"),
    ],
)
def test_a_header_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    lines = (GOOD_HEADER | changes, GOOD_TEXT)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.jsonl, " + message):
        read_recording(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": []}, r"has tokens \[\]; a list with at least one entry"),
        ({"tokens": [5]}, "has 1 tokens and 2 candidates; as many"),
        ({"tokens": [5, -6]}, "at token 1 .* has the token -6; an id"),
        ({"tokens": [5, True]}, "at token 1 .* has the token true; an id"),
        ({"candidates": [[5, 5], [8, 9]]}, "at token 0 .* a list of different ids"),
        ({"scores": [[2, 1], [1]]}, "at token 1 .* 2 finite numbers"),
        ({"scores": [[2, 10**400], [1, 1]]}, "at token 0 .* 2 finite numbers"),
        ({"scores": [[1, 2], [1, 1]]}, "at token 0 .* that rise"),
        ({"ranks": [2, None]}, "at token 0 .* has rank 2; by its token and candidates it is 1"),
        ({"ranks": [1, 1]}, "at token 1 .* has rank 1; by its token and candidates it is null"),
        ({"prompt_tokens": 1.5}, "has prompt_tokens 1.5; a whole number"),
    ],
)
def test_a_text_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    lines = (GOOD_HEADER, GOOD_TEXT, GOOD_TEXT | changes)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.jsonl, line 3, " + message):
        read_recording(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.jsonl is empty; a JSON object a line was expected"),
        (b"{", "line 1, is not JSON"),
        (b"[1]", r"line 1, holds \[1\]; an object was expected"),
        (b"\xff", "is not UTF-8"),
        (json.dumps(GOOD_HEADER).encode(), "has a header and no text"),
        (json.dumps({"format": "forerun recording"}).encode(), "line 1, has no 'version'"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_recording(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_recording(tmp_path / "none.jsonl")


def test_a_session_takes_its_text_and_then_the_next_one() -> None:
    draft = recorded_draft("short", SHORT)
    texts = [1, 1, 2, 1, None, 1], [3, 1, 1]
    assert truths(draft, 0, 9) == [*texts[0], *texts[1]]
    assert truths(draft, 1, 9) == [*texts[1], *texts[0]]
    assert truths(draft, 2, 12) == [*texts[0], *texts[1], *texts[0][:3]]
    assert truths(draft, 2, 6, first=1) == texts[0]


def test_candidates_are_the_recorded_ones_on_the_path_and_drawn_by_name_off_it() -> None:
    texts = [[((5.0 + place, 1.0), 1) for place in range(50)]]
    draft = ReplayedDraft(ReplayedTexts("fifty", texts, ([], [])))
    knowledge = draft.session(Draws(3), 0, 64)
    assert knowledge.candidates(64 + 7) == ((BEST, BEST + 1), (12.0, 1.0))
    drawn = [knowledge.candidates_off_path(node, 70) for node in range(30)]
    assert drawn == [draft.session(Draws(3), 0, 64).candidates_off_path(node, 90) for node in range(30)]
    assert len(set(drawn)) > 10
    assert set(drawn) <= {((BEST, BEST + 1), scores) for scores, _ in texts[0]}


@given(st.lists(st.sampled_from([1, 1, 1, 2, None]), min_size=1, max_size=60), st.integers(1, 8))
def test_a_sync_run_accepts_exactly_what_the_recording_says(ranks: list[int | None], block: int) -> None:
    result = sync_run(recorded_draft("r", recording_of(ranks)), len(ranks), block)
    steps = blocks_of([rank == 1 for rank in ranks], block)
    assert result.stats.target_steps == len(steps)
    arrivals = [result.arrivals.count(when) for when in dict.fromkeys(result.arrivals)]
    assert arrivals == steps


def world_of(tmp_path: Path, header: RecordingHeader, **tables: Any) -> World:
    write_recording(tmp_path / "a.jsonl", Recording(header, SHORT.texts))
    return experiment_from({"draft": {"recording": "a.jsonl"}, **tables}, tmp_path).world


def test_a_world_takes_the_step_times_of_its_recording(tmp_path: Path) -> None:
    header = replace(HEADER, draft_step_ms={1: 2.0, 4: 3.5}, target_step_ms={1: 20.0})
    world = world_of(tmp_path, header)
    assert (world.device.draft_time, world.device.draft_time_per_node) == pytest.approx((0.002, 0.0005))
    assert world.verifier.step_time == pytest.approx(0.020)
    assert world.verifier.step_time_per_node == VerifierSpec().step_time_per_node  # one width tells nothing


def test_where_the_draft_could_not_say_the_server_goes_on_alone() -> None:
    mute = RecordedText(1, (4,) * 12, ((),) * 12, ((),) * 12, (None,) * 12)
    for policy in ("tree", "sync:4"):
        draft = recorded_draft("mute", Recording(HEADER, (mute,)))
        (result,) = simulate(World(tokens=12, draft=draft), policy_maker(policy))
        assert result.tokens == (OUTSIDE,) * 12
        assert result.stats.proposed == 0


def test_a_sweep_knows_its_recording_by_name_and_contents(tmp_path: Path) -> None:
    world = World(tokens=9, draft=recorded_draft("short", SHORT))
    experiment = Experiment(world, repeats=2, schemes=("off", "tree"))
    run_sweep(Sweep(experiment, {"rtt_ms": (1.0,)}), tmp_path, workers=1)
    assert "Replay('short', digest " in (tmp_path / MANIFEST).read_text(encoding="utf-8")
    other = replace(world, draft=recorded_draft("short", recording_of([1, 1])))
    digests = {
        Sweep(replace(experiment, world=each), {"rtt_ms": (1.0,)}).digest for each in (world, world, other)
    }
    assert len(digests) == 2
    with pytest.raises(UserError, match=r"draft mean is 0.5; in short it is 0.6667"):
        Sweep(experiment, {"mean": (0.5,)})


def test_a_world_names_its_recording_beside_it(tmp_path: Path) -> None:
    write_recording(tmp_path / "a.jsonl", SHORT)
    world = tmp_path / "w.toml"
    world.write_text('[draft]\nrecording = "a.jsonl"\n', encoding="utf-8")
    draft = read_experiment(world).world.draft
    assert isinstance(draft, ReplayedDraft)
    assert truths(draft, 1, 3) == [3, 1, 1]
