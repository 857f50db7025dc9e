"""Tries a drafter on texts of its target: what it knows, what it costs, and what both make of a token's time.

The target writes each text token by token, and before each token the drafter guesses. The guesses are then
replayed: with a tree of any depth the steps that the text would have taken can be counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from cloud_verifier.core.engine_protocol import (
    Followers,
    GuessItem,
    GuessPlan,
    IntArray,
    StepPlan,
    TargetEngine,
)
from cloud_verifier.engine.packing import item_of
from common.calibration import SHIPPED, Calibration, Confidence, promised
from common.sampling import SamplingParams
from schemes.drafters.guessing import LEAST_FOLLOWED, WIDTH

NODES = 16
"""Rows of the tree in one step, the tip included; the default of --max-nodes."""

CHUNK = 256
"""Tokens of a prompt in one step."""

TIMED = 12
"""Guesses and steps of each size that are timed."""

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TriedText:
    """Holds a text and what was guessed below each of its tokens but the last."""

    tokens: tuple[int, ...]
    guesses: tuple[tuple[Followers, ...], ...]
    trees: tuple[tuple[Path, ...], ...]  # paths of all guessed nodes, likeliest first


@dataclass(frozen=True, slots=True)
class LevelReport:
    """Reports one level of guesses, and trees that end at it."""

    level: int
    best: float  # share of the target's choices that are the best candidate, where the path was right
    listed: float  # share that are among the candidates
    guess_ms: float  # of all levels down to this one
    steps_per_token: float
    ms_per_token: float


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Reports a drafter on one machine."""

    num_tokens: int
    step_ms: float  # of a tip alone
    tree_step_ms: float  # of `rows` rows
    levels: tuple[LevelReport, ...]
    rows: int = NODES

    @property
    def best(self) -> LevelReport:
        """Return the level at whose depth a token takes least time."""
        return min(self.levels, key=lambda each: each.ms_per_token)

    @property
    def share(self) -> float:
        """Return the time of a token at that depth over that without guesses."""
        return self.best.ms_per_token / self.step_ms

    @property
    def best_depth(self) -> int:
        """The depth at which a token takes least time; 0 if it takes less without guesses."""
        return self.best.level if self.share < 1.0 else 0


def try_drafter(
    engine: TargetEngine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    step_floor: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> TrialReport:
    """Let the target write a text after each prompt, with `sampling`, and report what guesses are worth.

    `step_floor`: least seconds of a step, to imitate a larger target. The engine must have a drafter.
    """
    calibration = Calibration(SHIPPED.at(sampling.temperature))
    writer = _Writer(engine, sampling)
    texts = [writer.write(prompt, calibration) for prompt in prompts]
    tip, tree = (max(step_floor, writer.step_time(prompts[0], rows, clock)) for rows in (1, NODES))
    num_tokens = sum(len(text.guesses) for text in texts)
    levels = []
    for level in range(1, engine.info.guess_depth + 1):
        guess_time = writer.guess_time(prompts[0], level, clock)
        steps = sum(num_steps(text, level) for text in texts) / num_tokens
        best, listed = _hits(texts, level)
        took = steps * (guess_time + tree)
        levels.append(LevelReport(level, best, listed, 1e3 * guess_time, steps, 1e3 * took))
    return TrialReport(num_tokens, 1e3 * tip, 1e3 * tree, tuple(levels))


def num_steps(text: TriedText, depth: int) -> int:
    """Return the steps in which the text would be written after its first token, with trees of this depth."""
    steps, at, last = 0, 0, len(text.tokens) - 1
    while at < last:
        nodes = set([path for path in text.trees[at] if len(path) <= depth][: NODES - 1])
        length = 0
        while text.tokens[at + 1 : at + 2 + length] in nodes and at + 1 + length < last:
            length += 1
        steps, at = steps + 1, at + 1 + length
    return steps


def _hits(texts: Sequence[TriedText], level: int) -> tuple[float, float]:
    """Return how often the best candidate of a level is right, and how often any is."""
    best, listed, seen = 0, 0, 0
    for text in texts:
        for at, guesses in enumerate(text.guesses):
            right, path = text.tokens[at + level : at + level + 1], text.tokens[at + 1 : at + level]
            found = next((each for each in guesses if each.path == path), None) if right else None
            if found is not None and found.tokens:
                seen += 1
                best += found.tokens[0] == right[0]
                listed += right[0] in found.tokens
    return (best / seen, listed / seen) if seen else (0.0, 0.0)


class _Writer:
    """Writes texts with an engine, one at a time, from slot 0 on."""

    def __init__(self, engine: TargetEngine, sampling: SamplingParams) -> None:
        self._engine = engine
        self._sampling = sampling

    def write(self, prompt: Sequence[int], calibration: Calibration) -> TriedText:
        """Write a text and guess below each of its tokens; `calibration` learns from it."""
        tokens, guesses, trees = list[int](), list[tuple[Followers, ...]](), list[tuple[Path, ...]]()
        ends = () if self._sampling.ignore_eos else self._engine.info.eos_token_ids
        held = self._read(prompt)
        tip = prompt[-1]
        while True:
            tip = self._next(held, tip)
            held += 1
            if tokens and guesses[-1]:
                first = guesses[-1][0]
                calibration.observe(first.scores, first.tokens.index(tip) if tip in first.tokens else None)
            tokens.append(tip)
            if tip in ends or len(tokens) == self._sampling.max_tokens:
                return TriedText(tuple(tokens), tuple(guesses), tuple(trees))
            found = self._guess(held, tip, self._engine.info.guess_depth, calibration.confidence)
            guesses.append(found)
            trees.append(_tree(found, calibration.confidence))

    def step_time(self, prompt: Sequence[int], num_rows: int, clock: Callable[[], float]) -> float:
        """Return the median seconds of a step of a tip and a chain below it."""
        held = self._read(prompt)

        def step() -> None:
            self._evaluate(held, [prompt[-1]] * num_rows, range(num_rows))

        return _median_time(step, clock)

    def guess_time(self, prompt: Sequence[int], depth: int, clock: Callable[[], float]) -> float:
        """Return the median seconds of a guess after a step of one token."""
        held = self._read(prompt)
        times = []
        for _ in range(TIMED):
            tip = self._next(held, prompt[-1])
            held += 1
            began_at = clock()
            self._guess(held, tip, depth, Confidence())
            times.append(clock() - began_at)
        return median(times)

    def _read(self, prompt: Sequence[int]) -> int:
        """Evaluate a prompt up to its last token, and let the drafter read it. Return the slots held."""
        held = len(prompt) - 1
        for first in range(0, held, CHUNK):
            self._evaluate(first, prompt[first : min(held, first + CHUNK)], ())
        if held:
            self._guess(held, prompt[-1], 0, Confidence())
        return held

    def _next(self, held: int, tip: int) -> int:
        return int(self._evaluate(held, [tip], [0])[0])

    def _evaluate(self, held: int, tokens: Sequence[int], outputs: Sequence[int]) -> IntArray:
        """Evaluate a chain of tokens behind the slots that are held; the next slots are theirs."""
        own = np.arange(held, held + len(tokens), dtype=np.int32)
        item = item_of(
            range(-1, len(tokens) - 1),
            own,
            np.arange(held, dtype=np.int32),
            tokens=tokens,
            outputs=outputs,
            sampling=self._sampling,
        )
        return self._engine.evaluate(StepPlan((item,))).choices[0]

    def _guess(self, held: int, tip: int, depth: int, confidence: Confidence) -> tuple[Followers, ...]:
        slots = np.arange(held, dtype=np.int32)
        item = GuessItem(0, slots, tip, depth, WIDTH, confidence, self._sampling, least=LEAST_FOLLOWED)
        return self._engine.guess(GuessPlan((item,))).guesses[0]


def _tree(guesses: Sequence[Followers], confidence: Confidence) -> tuple[Path, ...]:
    """Return the paths of all guessed nodes, likeliest first."""
    worth: dict[Path, float] = {(): 0.0}
    for each in guesses:
        for token, logprob in zip(each.tokens, promised(confidence, each.scores), strict=True):
            worth[(*each.path, token)] = worth[each.path] + logprob
    return tuple(sorted(worth, key=worth.__getitem__, reverse=True)[1:])


def _median_time(call: Callable[[], object], clock: Callable[[], float]) -> float:
    times = []
    for _ in range(TIMED):
        began_at = clock()
        call()
        times.append(clock() - began_at)
    return median(times)
