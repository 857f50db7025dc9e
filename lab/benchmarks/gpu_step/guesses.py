"""Checks and times the verifier's own drafter: a recurrent head with random weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from cloud_verifier.core.engine_protocol import Followers, GuessItem, GuessPlan, StepPlan
from cloud_verifier.engine.attention.backend import AttentionBackend
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from cloud_verifier.engine.torch_loading import accelerate
from common.calibration import Confidence
from common.sampling import SamplingParams
from lab.benchmarks.gpu_step.clock import times_of
from lab.benchmarks.gpu_step.plans import Book, random_tree
from lab.benchmarks.gpu_step.settings import GpuSettings
from lab.benchmarks.plans import ints
from schemes.drafters.heads import RecurrentHead, keep_features

DEPTH, WIDTH = 6, 2
CONTEXT = 512
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.8))
NEAR = 1e-3
"""Nats by which a candidate's score may differ after other kernels in float32."""


def new_head(model: TargetModel) -> RecurrentHead:
    """Return a random head; the model keeps features for it from now on."""
    torch.manual_seed(0)
    keep_features(model)
    return RecurrentHead(model, DEPTH).eval().requires_grad_(False)


def engine_with(
    head: RecurrentHead, model: TargetModel, num_slots: int, backend: AttentionBackend
) -> TorchEngine:
    """Return an engine as `forerun verify --drafter` makes it."""
    engine = TorchEngine(model, num_slots, backend=backend, draft=head)
    accelerate(engine)
    return engine


def guess_errors(model: TargetModel, backend: AttentionBackend, num_steps: int) -> dict[str, Any]:
    """Compare the guesses of an engine with `backend` and graphs with those of the reference, after steps of
    trees whose tips are kept. The model is in float32."""
    head = new_head(model)
    engines = [engine_with(head, model, 600, each) for each in (backend, TorchRefBackend())]
    random, worst, guessed = np.random.default_rng(0), 0.0, 0
    book = Book(600, random)
    for step in range(num_steps):
        items = []
        for session, sampling in enumerate(SAMPLINGS):
            count = 9 + session if step == 0 else 3
            parents = list(range(-1, count - 1)) if step == 0 else random_tree(count, random)
            tokens = random.integers(1, model.vocab_size, size=count).tolist()
            items.append(book.item(session, tokens, parents, sampling))
        plan, both_guesses = StepPlan(tuple(items)), []
        for item in items:
            book.keep(item, range(len(item.tokens)) if step == 0 else [0])
        for engine in engines:
            engine.evaluate(plan)
            both_guesses.append(engine.guess(_guess_plan(book.held, DEPTH)).guesses)
        worst = max([worst, *(_apart(*both) for both in zip(*both_guesses, strict=True))])
        guessed += sum(len(each) for each in both_guesses[0])
    counts = engines[0].runner.counts
    return {
        "guesses": guessed,
        "score_error": worst,
        "graph_steps": counts.graph,
        "right": guessed > 0 and worst < NEAR,
    }


def guess_times(
    model: TargetModel, settings: GpuSettings, backend: AttentionBackend
) -> Iterator[dict[str, Any]]:
    """Time guesses of each depth, and a step of the tips alone, for one session and for many."""
    most = max(load.sessions for load in settings.loads)
    context = min(CONTEXT, *(load.context for load in settings.loads))
    engine = engine_with(new_head(model), model, most * (context + 1), backend)
    for sessions in sorted({1, most}):
        book, random = Book(most * (context + 1), np.random.default_rng(0)), np.random.default_rng(1)
        for session in range(sessions):
            tokens = random.integers(model.vocab_size, size=context).tolist()
            item = book.item(session, tokens, range(-1, context - 1), SAMPLINGS[1])
            engine.evaluate(StepPlan((item,)))
            book.keep(item, range(context))
        tips = [book.item(session, [7], [-1], SAMPLINGS[1]) for session in range(sessions)]
        time = partial(times_of, repeats=settings.repeats, device=model.device, warm_up=settings.warm_up)
        row: dict[str, Any] = {"sessions": sessions, "context": context}
        row["step_ms"] = round(1e3 * time(partial(engine.evaluate, StepPlan(tuple(tips)))).median, 4)
        for depth in range(1, DEPTH + 1):
            took = time(partial(engine.guess, _guess_plan(book.held, depth))).median
            row[f"depth_{depth}_ms"] = round(1e3 * took, 4)
        yield row


def _guess_plan(held: dict[int, list[int]], depth: int) -> GuessPlan:
    return GuessPlan(
        tuple(
            GuessItem(session, ints(slots), 7, depth, WIDTH, Confidence(), SAMPLINGS[session % 2])
            for session, slots in held.items()
        )
    )


def _apart(one: Sequence[Followers], other: Sequence[Followers]) -> float:
    """The largest difference of two guesses' scores; nodes that only one has followed are near ties."""
    scores = {each.path: each.scores for each in other}
    both = [(each.scores, scores[each.path]) for each in one if each.path in scores]
    apart = [float(np.abs(np.subtract(a, b)).max()) for a, b in both if len(a) == len(b)]
    return max(apart, default=math.inf)
