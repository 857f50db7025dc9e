"""The oracle writes its texts whatever is proposed, in its own time; prompts of each kind; the simulator's
prediction; and one tiny run of everything."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.engine_protocol import StepItem, StepPlan, TargetInfo
from edge_client.draft.measure_pace import PaceTables
from lab.benchmarks.plans import item_of
from lab.benchmarks.real_sizes.oracle import OracleEngine
from lab.benchmarks.real_sizes.pair import PairText
from lab.benchmarks.real_sizes.predicted import DraftRecord, TargetSteps, predict
from lab.demo_models import DRAFT_GGUF
from simulator.figures import pace
from simulator.link_spec import LinkSpec
from simulator.recordings import RecordedText
from tests.support.clock import Clock

SIZE, END = 50, 49
INFO = TargetInfo("oracle", SIZE, 100, 64, (END,), b"")


def oracle(
    *texts: PairText, step: float = 0.06, prompt_row: float = 0.0, row: float = 0.0
) -> tuple[OracleEngine, Clock]:
    clock = Clock()
    return OracleEngine(INFO, texts, step, prompt_row, row, clock=clock, sleep=clock.sleep), clock


def item(
    text: PairText, prefix: list[int], tokens: list[int], parents: list[int], outputs: list[int]
) -> StepItem:
    """Rows that follow `prefix`, in the slots after its."""
    size = len(prefix)
    made = item_of(1, tokens, range(size), range(size, size + len(tokens)), parents, text.sampling)
    return replace(made, outputs=np.array(outputs, np.int32))


TOKENS = st.integers(0, SIZE - 1)
TEXTS = st.builds(
    lambda prompt, tokens: PairText(tuple(prompt), 0.8, 7, tuple(tokens)),
    st.lists(TOKENS, min_size=1, max_size=10),
    st.lists(TOKENS, min_size=2, max_size=10),
)


@given(TEXTS, st.data())
def test_the_text_is_the_one_it_knows_whatever_is_proposed(text: PairText, data: st.DataObject) -> None:
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
    text = PairText((1, 2, 3), 0.0, 0, (4, 5, 6))
    engine, _ = oracle(text)
    chosen = []
    for first in range(SIZE):
        plan = StepPlan((item(text, [], [first, 2, 3], [-1, 0, 1], [2]),))
        chosen.append(int(engine.evaluate(plan).choices[0][0]))
    assert chosen[1] == 4
    assert END not in chosen
    assert len(set(chosen)) > SIZE // 4


def test_a_step_takes_its_time_and_that_of_its_prompt_rows_whatever_else_is_in_it() -> None:
    text = PairText((1, 2, 3), 0.0, 0, (4, 5, 6))
    engine, clock = oracle(text, prompt_row=0.001)
    for outputs, took in (([2], 0.062), ([0, 1, 2], 0.06)):
        began = clock.now
        engine.evaluate(StepPlan((item(text, [], [1, 2, 3], [-1, 0, 1], outputs),)))
        assert clock.now - began == pytest.approx(took, abs=1e-4)


# The simulator's prediction

PACE = PaceTables({1: 0.010, 2: 0.012}, {2: 0.011, 33: 0.020})


def recorded(right: bool, count: int = 40) -> tuple[PairText, DraftRecord]:
    """A text of different tokens, and a draft that is sure and right, or sure and wrong."""
    prompt, tokens = tuple(range(100, 120)), tuple(range(200, 200 + count))
    said = tuple((token if right else token + 500, token + 900) for token in tokens)
    ranks = (1 if right else None,) * count
    text = RecordedText(len(prompt), tokens, said, ((5.0, -5.0),) * count, ranks)
    return PairText(prompt, 0.0, 1, tokens), DraftRecord((text,), PACE)


@pytest.mark.parametrize("recall", [False, True])
def test_a_predicted_stream_takes_the_target_s_steps(recall: bool) -> None:
    text, record = recorded(right=True)
    target = TargetSteps(0.100, 0.090, recall=recall, time_per_prompt_row=0.001)
    run = predict(text, 0, record, "off", LinkSpec(rtt=0.060), target)
    assert pace([run]) == pytest.approx(100.0)
    assert run["arrivals_ms"][0] < 2 * 100.0 + 60.0 + 20.0, "prompt rows cost less than others"


def test_a_predicted_draft_saves_steps_if_it_is_right_and_rows_are_cheap() -> None:
    def steps(right: bool, row: float) -> float:
        text, record = recorded(right)
        run = predict(text, 0, record, "chain", LinkSpec(rtt=0.020), TargetSteps(0.100, row))
        assert len(run["arrivals_ms"]) == len(text.tokens)
        return pace([run])

    assert steps(right=True, row=0.001) < 50.0
    assert steps(right=False, row=0.001) == pytest.approx(100.0, rel=0.05)
    assert steps(right=True, row=0.001) < steps(right=True, row=0.090)


# Published prompts

ENTRIES = {
    "HumanEval.jsonl": {
        "prompt": "def f{n}(x):\n",
        "canonical_solution": "    return x\n",
        "entry_point": "f{n}",
    },
    "gsm8k_test.jsonl": {"question": "How many is {n}?", "answer": "{n}"},
    "mt_bench_question.jsonl": {"question_id": 1, "turns": ["Speak of {n}.", "Again."]},
}


def write_entries(folder: Path, count: int) -> None:
    for name, entry in ENTRIES.items():
        lines = (json.dumps(entry).replace("{n}", str(number)) for number in range(count))
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.grpc
def test_every_policy_writes_the_texts_of_a_pair(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from lab.benchmarks.real_sizes.__main__ import POLICIES, main
    from lab.demo_models.gguf_export import write_target

    out, target = tmp_path / "report.json", tmp_path / "target.gguf"
    write_target(target)
    write_entries(tmp_path, 9)
    words = ["--target", str(target), "--draft", str(DRAFT_GGUF), "--prompts", str(tmp_path)]
    words += ["--kinds", "chat", "--folder", str(tmp_path / "kept"), "--out", str(out)]
    words += ["--target-steps", "5", "--temperatures", "0.8", "--rtts", "4"]
    words += ["--texts", "2", "--tokens", "12", "--slowdown", "2"]
    assert main(words) == 0
    first = out.read_bytes()
    (row,) = json.loads(first)["results"]
    assert tuple(row["policies"]) == POLICIES
    assert row["policies"]["off"]["predicted_ms_per_token"] == pytest.approx(5.0)
    assert row["kinds"]["chat"]["draft_right"] > 0.3
    for policy, found in row["policies"].items():
        assert found["identical"], policy
        assert found["first_text"]["ms_per_token"] > 0
        assert found["later_texts"]["ms_per_token"] > 0
    assert row["policies"]["off"]["draft_tokens_per_token"] == 0
    assert row["policies"]["sync:4"]["accepted_per_token"] > 0
    assert "adaptive over the best" in capfd.readouterr().out
    assert main(words) == 0
    assert out.read_bytes() == first
