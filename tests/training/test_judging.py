"""Laws of a judge's training: tokens that change an answer are found, and told apart by the target's law."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from forerun.cli import main
from lab import demo_models
from lab.rig import Processes, RigEdge, own_places
from schemes.rules.trained_judge import FloatArray, Judge, features
from training.judging import Mismatch, Tokens, doctests_pass, fit, last_line, last_number, mine

# A pair with planted important tokens: the text is fillers and digits in turn, then the sum of the digits.
# The draft always prefers the other filler, and at places 3 and 9 another digit.

END, FILLERS, DIGITS, LENGTH = 0, (1, 2), tuple(range(3, 13)), 12
SUM_AT, VOCAB = LENGTH, 64


class ToyPair:
    """The target writes fillers like the last one, so that a swapped filler changes the text after it."""

    def write(self, prefixes: Sequence[Tokens]) -> list[Tokens]:
        return [self._rest(prefix) for prefix in prefixes]

    def _rest(self, prefix: Tokens) -> Tokens:
        text = prefix
        while text[-1] != END:
            text = (*text, self._own(text))
        return text[len(prefix) :]

    def _own(self, before: Tokens) -> int:
        """The token after `before`, whose first token is the prompt and names the task."""
        task, text = before[0], before[1:]
        if len(text) > SUM_AT:
            return END
        if len(text) == SUM_AT:
            return 13 + sum(text[1::2]) % 50
        if len(text) % 2 == 0:
            return text[-2] if text else FILLERS[0]
        return DIGITS[(task + len(text)) % 10]

    def mismatch(self, prompt: Tokens, text: Tokens, start: int) -> tuple[int, int] | None:
        for place in range(start, min(len(text), SUM_AT)):
            if place % 2 == 0:
                return place, FILLERS[text[place] == FILLERS[0]]
            if place % 3 == 0:
                return place, DIGITS[(text[place] - DIGITS[0] + 1) % 10]
        return None

    def view(self, tokens: Tokens, token: int) -> tuple[FloatArray, FloatArray | None]:
        """Fillers are nearly a tie, digits are not; the task shifts both a little."""
        own, law = self._own(tokens), np.full(VOCAB, 1e-4)
        sure = (0.5 if own in FILLERS else 0.9) + 0.04 * (tokens[0] % 7) / 7
        law[list(FILLERS if own in FILLERS else DIGITS)] += 0.05
        law[own] = sure
        return law / law.sum(), None

    def words(self, tokens: Tokens) -> str:
        return " ".join(map(str, tokens))


def answer(prompt: str, text: str) -> str | None:
    """The sum, which stands before the end."""
    words = text.split()
    return words[-2] if len(words) > 1 else None


PROMPTS = [(20 + task,) for task in range(16)]


def test_the_planted_tokens_are_found_important_and_no_others() -> None:
    found = mine(ToyPair(), PROMPTS, answer)
    places = (0, 2, 3, 4, 6, 8, 9, 10)
    for task in range(16):
        important = [each.important for each in found if each.task == task]
        assert important == [place in {3, 9} for place in places]


def test_a_trained_judge_tells_the_planted_tokens_apart() -> None:
    pair, found = ToyPair(), fit(mine(ToyPair(), PROMPTS, answer))
    assert (found.recall, found.passed, found.num_held_out) == (1.0, 1.0, 4 * 8)
    for prompt in [(50,), (51,)]:  # other tasks
        text = pair.write([prompt])[0]
        for place in range(SUM_AT):
            law, _ = pair.view((*prompt, *text[:place]), 0)
            swapped = FILLERS[1] if place % 2 == 0 else DIGITS[0] + (text[place] - DIGITS[0] + 1) % 10
            assert found.judge.is_unimportant(law, swapped) == (place % 2 == 0)


def test_a_hidden_state_tells_what_the_law_does_not() -> None:
    class NotingPair(ToyPair):
        """One law for all; the third number of the hidden state is about the token."""

        def view(self, tokens: Tokens, token: int) -> tuple[FloatArray, FloatArray | None]:
            chance = np.random.default_rng(tokens)
            hidden = np.array([*chance.normal(size=2), float(token in FILLERS) + 0.1 * chance.normal(), 1.0])
            return np.full(VOCAB, 1 / VOCAB), hidden

    found = fit(mine(NotingPair(), PROMPTS, answer))
    assert (found.area, found.recall, found.passed) == (1.0, 1.0, 1.0)
    assert found.judge.num_hidden == 4
    law = np.full(VOCAB, 1 / VOCAB)
    assert found.judge.is_unimportant(law, 5, np.array([0.0, 0.0, 1.0, 1.0]))
    assert not found.judge.is_unimportant(law, 5, np.array([0.0, 0.0, 0.0, 1.0]))
    assert not found.judge.is_unimportant(law, 5, None), "its row is not evaluated"


@pytest.mark.parametrize("bias", ["1" + 400 * "0", "1e400", "NaN", "null", '"much"'])
def test_a_file_with_impossible_numbers_is_refused(bias: str) -> None:
    judge = Judge((0.0,) * 4, (1.0,) * 4, (0.0,) * 4, 0.25, 0.5)
    text = judge.to_json()
    assert Judge.from_json(text) == judge
    with pytest.raises(UserError):
        Judge.from_json(text.replace("0.25", bias))


def noisy(count: int, seed: int = 0) -> list[Mismatch]:
    """Mismatches whose importance depends on their features by chance."""
    random, found = np.random.default_rng(seed), list[Mismatch]()
    for number in range(count):
        law = random.dirichlet(np.full(6, 0.5)) * (1 - 6e-6) + 1e-6
        row = features(law, int(random.integers(6)))
        important = bool(random.random() < 1 / (1 + np.exp(row[0] + 2)))
        found.append(Mismatch(number % 40, row, important))
    return found


@pytest.mark.parametrize("recall", [0.5, 0.9, 1.0])
def test_the_threshold_is_the_highest_with_the_recall_that_was_asked_for(recall: float) -> None:
    mismatches = noisy(800)
    found = fit(mismatches, recall)
    hits = [
        chance
        for each in mismatches
        if each.task % 4 == 3 and each.important
        for chance in found.judge.importance(each.features[None]).tolist()
    ]
    assert found.recall >= recall
    rejected = sum(chance > found.judge.threshold for chance in hits)
    assert rejected / len(hits) < recall, "a higher threshold would let more pass"


# Answers


def test_answers_are_found() -> None:
    assert last_number("", "so 1,200 less 3 is 1,197.") == "1197"
    assert last_number("", "none") is None
    assert last_line("", "a\n b \n\n") == "b"
    asked = 'def f(x: int) -> int:\n    """Double.\n\n    >>> f(2)\n    4\n    """\n'
    assert doctests_pass(asked, "    return x * 2\n") == "passed"
    assert doctests_pass(asked, "    return x * 3\n") is None


# The command


@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.grpc
@pytest.mark.slow
async def test_a_judge_is_trained_and_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pair; the number of lines is the answer."""
    tasks, out = tmp_path / "tasks.json", tmp_path / "judge.json"
    prompts = [entry["text"] for entry in json.loads(demo_models.PROMPTS.read_text(encoding="utf-8"))]
    tasks.write_text(json.dumps(prompts[:8]), encoding="utf-8")
    words = ["--tasks", str(tasks), "--answer", "wc -l", "--max-tokens", "32", "--json"]
    assert main(["judge", "train", *words, "--out", str(out), "--threads", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["recall"] >= 0.9
    assert Judge.from_json(out.read_text(encoding="utf-8")).threshold == report["judge"]["threshold"]
    tasks.write_text(json.dumps(prompts[:2]), encoding="utf-8")
    for name, place in own_places(tmp_path).items():
        monkeypatch.setenv(name, place)
    target = ("--model", str(demo_models.TARGET_DIR), "--threads", "1", "--log-level", "warning")
    allowed = ("--allow-rule", "judge", "--allow-rule", "bild", "--judge", str(out), "--no-recall")
    async with Processes() as processes:
        _, address = await processes.start_verifier(*target, *allowed)
        draft = ("--draft", str(demo_models.DRAFT_GGUF), "--threads", "1", "--remember", "0")
        daemon = await processes.start(
            "edge", "edge", *draft, "--verifier", address, "--listen", "127.0.0.1:0"
        )
        await RigEdge.ready(daemon, own_places(tmp_path))
        check = ["judge", "check", *words, "--acceptance", "judge", "bild:50"]
        assert await asyncio.to_thread(main, check) == 0
    own, judged, loose = json.loads(capsys.readouterr().out)
    assert (own["rule"], own["texts_changed"], own["answers_changed"]) == ("coupled", 0.0, 0.0)
    assert own["tokens_per_step"] <= judged["tokens_per_step"] <= loose["tokens_per_step"]
    assert loose["tokens_per_step"] >= 32 / 5, "blocks of eight, and a first step for which the draft waits"
