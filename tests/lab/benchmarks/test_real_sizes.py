"""The oracle writes its texts whatever is proposed, and one tiny run of everything."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.engine_protocol import StepItem, StepPlan, TargetInfo
from lab.benchmarks.plans import item_of
from lab.benchmarks.real_sizes.oracle import OracleEngine
from lab.benchmarks.real_sizes.pair import PairText
from lab.demo_models import DRAFT_GGUF
from tests.support.clock import Clock

SIZE, END = 50, 49
INFO = TargetInfo("oracle", SIZE, 100, 64, (END,), b"")


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
    clock = Clock()
    engine = OracleEngine(INFO, (text,), 0.06, 0.0, 0.0, clock=clock, sleep=clock.sleep)
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
