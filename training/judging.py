"""Trains a judge: finds the draft's tokens that change the target's answers, and learns to tell them apart.

Garipov et al. 2025 (AutoJudge, arXiv 2504.20039, alg. 1). The walk goes through the target's text from left
to right. At each mismatch the draft's token replaces the target's, and the target ends the text greedily. If
the answer stays, the token was unimportant and the new text is kept. Else it was important.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from schemes.rules.trained_judge import FloatArray, Judge, features
from training.doctests import Verdict, run_doctests

Tokens = tuple[int, ...]

HELD_OUT_EVERY = 4
"""Every so many tasks are held out: the threshold is chosen on their mismatches."""

RIDGES = (1.0, 10.0, 100.0, 1000.0)
"""Weights of the squared weights beside the summed loss. The one that tells held-out mismatches apart best is
taken, as the authors do."""

NEWTON_STEPS = 50
PATIENCE = 60.0  # seconds of a program that finds an answer


class JudgedPair(Protocol):
    """Holds a target and a draft model, both greedy."""

    def write(self, prefixes: Sequence[Tokens]) -> list[Tokens]:
        """Return the tokens that the target writes after each prefix, to its end or the limit of a text."""
        ...

    def mismatch(self, prompt: Tokens, text: Tokens, start: int) -> tuple[int, int] | None:
        """Return the first place of `text` from `start` on where the draft's best token is another, and that
        token. None without one."""
        ...

    def view(self, tokens: Tokens, token: int) -> tuple[FloatArray, FloatArray | None]:
        """Return the target's probabilities float64 [V] of the token after `tokens`, and its last hidden
        state [H] at `token` behind them; None if the judge is to read none."""
        ...

    def words(self, tokens: Tokens) -> str:
        """Return the tokens as text."""
        ...


AnswerOf = Callable[[str, str], str | None]
"""Finds the answer in a prompt's text; None if it has none."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Holds a place where the draft's token is not the target's."""

    task: int
    features: FloatArray  # [F]
    important: bool


@dataclass(slots=True)
class _Walk:
    task: int
    prompt: Tokens
    text: Tokens
    answer: str
    place: int = 0


def mine(
    pair: JudgedPair,
    prompts: Sequence[Tokens],
    answer_of: AnswerOf,
    note: Callable[[str], None] = lambda words: None,
) -> list[Mismatch]:
    """Return the mismatches of all tasks. A task whose own text has no answer is left out."""
    walks, noted = list[_Walk](), list[Mismatch]()
    for task, (prompt, text) in enumerate(zip(prompts, pair.write(prompts), strict=True)):
        answer = answer_of(pair.words(prompt), pair.words(text))
        if answer is not None:
            walks.append(_Walk(task, prompt, text, answer))
    note(f"the target's own text answers {len(walks)} of {len(prompts)} tasks")
    while walks:
        met = [(walk, at) for walk in walks if (at := pair.mismatch(walk.prompt, walk.text, walk.place))]
        swapped = [(*walk.text[:place], token) for walk, (place, token) in met]
        rests = pair.write([(*walk.prompt, *start) for (walk, _), start in zip(met, swapped, strict=True)])
        for (walk, (place, token)), start, rest in zip(met, swapped, rests, strict=True):
            law, hidden = pair.view((*walk.prompt, *walk.text[:place]), token)
            text = (*start, *rest)
            kept = answer_of(pair.words(walk.prompt), pair.words(text)) == walk.answer
            noted.append(Mismatch(walk.task, features(law, token, hidden), not kept))
            walk.text, walk.place = text if kept else walk.text, place + 1
        walks = [walk for walk, _ in met]
        note(f"{len(noted)} mismatches, {sum(each.important for each in noted)} of them important")
    return noted


@dataclass(frozen=True, slots=True)
class Fit:
    """Holds a judge and what it does on the mismatches of the held-out tasks."""

    judge: Judge
    num_trained: int
    num_held_out: int
    important: float  # share of the held-out mismatches
    area: float  # under the ROC; 0.5 is chance
    recall: float  # share of the important ones that it rejects
    passed: float  # share of the unimportant ones that it lets pass


def fit(mismatches: Sequence[Mismatch], recall: float = 0.9) -> Fit:
    """Train a judge, with the highest threshold that rejects at least the share `recall` of the important
    mismatches of held-out tasks. Raises `UserError` if a part has only one kind."""
    held_out = np.array([each.task % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 for each in mismatches], bool)
    rows = np.array([each.features for each in mismatches], np.float64)
    important = np.array([each.important for each in mismatches], bool)
    for part, what in ((~held_out, "trained on"), (held_out, "held out")):
        if len(set(important[part].tolist())) < 2:
            raise UserError(
                f"{int(part.sum())} mismatches are {what}, and {int(important[part].sum())} of them are "
                "important; both kinds are needed: give more tasks, or an --answer that tells texts apart"
            )
    mean, scale = rows[~held_out].mean(axis=0), rows[~held_out].std(axis=0)
    scale[scale == 0.0] = 1.0
    inputs = (rows - mean) / scale
    tried = [logistic(inputs[~held_out], important[~held_out], ridge) for ridge in RIDGES]
    scores = [inputs[held_out] @ weights[:-1] for weights in tried]
    areas = [area(each, important[held_out]) for each in scores]
    best = areas.index(max(areas))
    *weights, bias = tried[best].tolist()
    judge = Judge(tuple(mean.tolist()), tuple(scale.tolist()), tuple(weights), bias, threshold=0.0)
    chances = judge.importance(rows[held_out])
    hits = np.sort(chances[important[held_out]])[::-1]
    threshold = float(hits[math.ceil(recall * len(hits)) - 1])
    rejected = chances >= threshold
    return Fit(
        replace(judge, threshold=threshold),
        int((~held_out).sum()),
        int(held_out.sum()),
        float(important[held_out].mean()),
        areas[best],
        float(rejected[important[held_out]].mean()),
        float(1.0 - rejected[~important[held_out]].mean()),
    )


def area(scores: FloatArray, is_hit: NDArray[np.bool_]) -> float:
    """Return the chance that a hit has a higher score than another, halves for equals (the ROC's area)."""
    above = scores[is_hit][:, None] - scores[~is_hit][None]
    return float(((above > 0.0) + 0.5 * (above == 0.0)).mean())


def logistic(rows: FloatArray, is_hit: NDArray[np.bool_], ridge: float) -> FloatArray:
    """Return weights float64 [F + 1], the bias last, that minimise the summed log-loss of `is_hit` [N] given
    `rows` [N, F], plus `ridge` / 2 times the squared weights without the bias. By Newton's method."""
    inputs = np.column_stack((rows, np.ones(len(rows))))
    penalty = np.array([ridge] * rows.shape[1] + [1e-9])
    weights = np.zeros(inputs.shape[1])

    def loss(point: FloatArray) -> float:
        scores = inputs @ point
        return float((np.logaddexp(0.0, scores) - is_hit * scores).sum() + (penalty * point**2).sum() / 2)

    for _ in range(NEWTON_STEPS):
        chances = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -500.0, 500.0)))
        slope = inputs.T @ (chances - is_hit) + penalty * weights
        curve = (inputs * (chances * (1.0 - chances))[:, None]).T @ inputs + np.diag(penalty)
        step = np.linalg.solve(curve, slope)
        while loss(weights - step) > loss(weights) and np.abs(step).max() > 1e-12:
            step /= 2  # a whole step may overshoot
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return weights


# Answers ----------------------------------------------------------------------------------------------------


def last_number(prompt: str, text: str) -> str | None:
    """Return the last number of the text, as in answers to GSM8K."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return numbers[-1] if numbers else None


def last_line(prompt: str, text: str) -> str | None:
    """Return the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def doctests_pass(prompt: str, text: str) -> str | None:
    """Return "passed" if all functions of prompt and text pass their doctests; else there is no answer."""
    outcomes = run_doctests(prompt + text)
    return "passed" if outcomes and all(each.verdict is Verdict.PASSED for each in outcomes) else None


ANSWERS: dict[str, AnswerOf] = {"number": last_number, "line": last_line, "doctests": doctests_pass}


def answers_by(name: str) -> AnswerOf:
    """Return one of `ANSWERS`, or a program that reads prompt and text on standard input and prints the
    answer, or nothing. Raises `UserError` for a name without a program; the program's failures come later."""
    if name in ANSWERS:
        return ANSWERS[name]
    try:
        command = shlex.split(name)
    except ValueError as error:
        raise UserError(f"the program {name!r} that finds answers is not understood: {error}") from error
    if not command:
        raise UserError(f"the answer is found by {', '.join(ANSWERS)} or a program; an empty name is neither")

    def printed(prompt: str, text: str) -> str | None:
        try:
            done = subprocess.run(
                command, input=prompt + text, capture_output=True, text=True, timeout=PATIENCE, check=True
            )
        except (OSError, subprocess.SubprocessError, UnicodeError) as error:
            raise UserError(f"the program {name!r} that finds answers failed: {error}") from error
        return done.stdout.strip() or None

    return printed
