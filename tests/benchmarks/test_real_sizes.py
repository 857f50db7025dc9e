"""The oracle writes its texts whatever is proposed, in its own time; and one tiny run of everything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.real_sizes.end_to_end import ratio
from benchmarks.real_sizes.oracle import OracleEngine
from benchmarks.real_sizes.pair import Text
from cloud_verifier.core.target import StepItem, StepPlan, TargetInfo

SIZE, END = 50, 49
INFO = TargetInfo("oracle", SIZE, 100, 64, (END,), b"")


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-5)


def oracle(*texts: Text, step: float = 0.06, prompt_row: float = 0.0) -> tuple[OracleEngine, Clock]:
    clock = Clock()
    return OracleEngine(INFO, texts, step, prompt_row, clock=clock, sleep=clock.sleep), clock


def item(
    text: Text, prefix: list[int], tokens: list[int], parents: list[int], outputs: list[int]
) -> StepItem:
    """Rows that follow `prefix`, in the slots after its."""
    size, depths = len(prefix), list[int]()
    for parent in parents:
        depths.append(size if parent < 0 else depths[parent] + 1)
    return StepItem(
        session=1,
        prefix_slots=np.arange(size, dtype=np.int32),
        tokens=np.array(tokens, np.int32),
        positions=np.array(depths, np.int32),
        parents=np.array(parents, np.int32),
        slots=np.arange(size, size + len(tokens), dtype=np.int32),
        outputs=np.array(outputs, np.int32),
        sampling=text.sampling,
    )


TOKENS = st.integers(0, SIZE - 1)
TEXTS = st.builds(
    lambda prompt, tokens: Text(tuple(prompt), 0.8, 7, tuple(tokens)),
    st.lists(TOKENS, min_size=1, max_size=10),
    st.lists(TOKENS, min_size=2, max_size=10),
)


@given(TEXTS, st.data())
def test_the_text_is_the_one_it_knows_whatever_is_proposed(text: Text, data: st.DataObject) -> None:
    engine, _ = oracle(text)
    committed = list(text.prompt)
    rows, start = list(text.prompt), 0
    while len(committed) < len(text.prompt) + len(text.tokens):
        guesses = data.draw(st.lists(TOKENS, max_size=4))
        tip = len(rows) - 1
        parents = [*range(-1, tip), *(data.draw(st.integers(tip, tip + i)) for i in range(len(guesses)))]
        outputs = list(range(tip, tip + 1 + len(guesses)))
        plan = StepPlan((item(text, committed[:start], [*rows, *guesses], parents, outputs),))
        (choices,) = engine.evaluate(plan).choices
        committed.append(int(choices[0]))
        start = len(committed) - 1
        rows = committed[start:]
        assert engine.evaluate(plan).choices[0].tolist() == choices.tolist()
    assert tuple(committed) == text.prompt + text.tokens


def test_what_is_off_the_text_depends_on_every_token_and_never_ends_it() -> None:
    text = Text((1, 2, 3), 0.0, 0, (4, 5, 6))
    engine, _ = oracle(text)
    chosen = []
    for first in range(SIZE):
        plan = StepPlan((item(text, [], [first, 2, 3], [-1, 0, 1], [2]),))
        chosen.append(int(engine.evaluate(plan).choices[0][0]))
    assert chosen[1] == 4
    assert END not in chosen
    assert len(set(chosen)) > SIZE // 4


def test_a_step_takes_its_time_and_that_of_its_prompt_rows_whatever_else_is_in_it() -> None:
    text = Text((1, 2, 3), 0.0, 0, (4, 5, 6))
    engine, clock = oracle(text, prompt_row=0.001)
    for outputs, took in (([2], 0.062), ([0, 1, 2], 0.06)):
        began = clock.now
        engine.evaluate(StepPlan((item(text, [], [1, 2, 3], [-1, 0, 1], outputs),)))
        assert clock.now - began == pytest.approx(took, abs=1e-4)


def test_the_share_that_repeats_counts_runs_that_stood_before() -> None:
    assert Text((1, 2, 3, 4), 0.0, 0, (1, 2, 3, 4, 9)).repeated == pytest.approx(1 / 5)
    assert Text((1,), 0.0, 0, (2, 3, 4, 5)).repeated == 0.0


def test_adaptive_is_held_against_the_best_of_the_others() -> None:
    paces = {"off": 60.0, "chain": 40.0, "adaptive": 50.0}
    row = {"policies": {name: {"ms_per_token": pace} for name, pace in paces.items()}}
    assert ratio(row) == 1.25


@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.grpc
def test_a_tiny_pair_is_made_and_every_policy_writes_its_texts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.real_sizes.__main__ import POLICIES, main

    out = tmp_path / "report.json"
    words = ["end-to-end", "--shape", "tiny", "--folder", str(tmp_path / "pair"), "--out", str(out)]
    words += ["--target-steps", "5", "--temperatures", "0.8", "--drafts", "q8_0", "--rtt", "4"]
    words += ["--texts", "2", "--tokens", "12"]
    assert main(words) == 0
    first = out.read_bytes()
    (row,) = json.loads(first)["results"]
    assert tuple(row["policies"]) == POLICIES
    for policy, found in row["policies"].items():
        assert found["identical"], policy
        assert found["first_text"]["ms_per_token"] > 0
        assert found["later_texts"]["ms_per_token"] > 0
    assert row["policies"]["off"]["draft_tokens_per_token"] == 0
    assert row["policies"]["sync:4"]["accepted_per_token"] > 0
    assert "adaptive over the best" in capfd.readouterr().out
    assert main(words) == 0
    assert out.read_bytes() == first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair")


@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.grpc
@pytest.mark.api
@pytest.mark.parametrize(
    ("words", "columns"),
    [
        (["draft-step", "--rows", "1", "4"], {"format", "rows", "decode_ms", "expand_ms"}),
        (["verify-step", "--rows", "1", "4"], {"dtype", "rows", "plain_ms", "packed_ms"}),
        (["choices"], {"sampling", "sessions", "host_ms_per_step"}),
        (["memory"], {"what", "ready_s", "resident_mb", "peak_mb"}),
        (
            ["long-prompts", "--sizes", "150", "300", "--target-step", "5"],
            {"prompt_tokens", "ttft_ms", "mode"},
        ),
    ],
)
def test_every_table_is_measured(
    words: list[str], columns: set[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.real_sizes.__main__ import main

    small = ["--shape", "tiny", "--folder", str(folder), "--tokens", "12", "--repeats", "1", "--json"]
    assert main([*words, *small, "--drafts", "q4_0"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) > 1
    for row in rows:
        assert columns <= row.keys()
        assert all(row[key] > 0 for key in columns if key.endswith(("_ms", "_s", "_mb", "ms_per_step")))


@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.grpc
def test_what_doctor_expects_stands_beside_what_texts_show(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.real_sizes.__main__ import main

    small = ["--shape", "tiny", "--folder", str(folder), "--tokens", "12", "--texts", "2", "--json"]
    assert main(["outlook", *small, "--drafts", "q8_0", "--target-step", "20"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert 0.0 < row["right"] <= 1.0
    assert row["expected_over_seen"] == pytest.approx(row["expected"] / row["seen"], rel=0.01)
