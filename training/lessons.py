"""Holds what a target says about texts, and measures a draft against it.

A lesson keeps only the target's likeliest tokens at each row. So the target reads a text once, on either
engine, and is not in memory while the draft trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.engine_protocol import IntArray, StepPlan
from cloud_verifier.engine.packing import item_of
from cloud_verifier.engine.torch_engine import TorchEngine
from common.sampling import SamplingParams
from schemes.drafters.ranking import gumbel, noise_keys
from simulator.knowledge import NUM_CANDIDATES
from simulator.recordings import RecordedText
from training.losses import coupled_acceptance
from training.trainer import side_by_side

if TYPE_CHECKING:
    from cloud_verifier.llama.llama_engine import LlamaEngine

FloatArray = NDArray[np.float32]

WIDTH = 64
"""Tokens that are kept of each row. At temperature 0.8 the others hold less than 1 % of most rows."""

CHUNK, LLAMA_CHUNK = 512, 32  # rows of a step; an engine on llama.cpp has outputs for as many
RANKS, DEPTHS = 4, 8

Logits = Callable[[Tensor, Tensor], Tensor]
"""A draft: logits [N, V] of the rows bool [B, T] of tokens int64 [B, T], each from the tokens up to it."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Holds a text, and the target's distributions after each of its tokens from `first` on."""

    tokens: IntArray  # int32 [T]
    first: int  # the last row of the prompt: its distribution is that of the first token after it
    best: IntArray  # int32 [T - first, K] the likeliest tokens, best first
    logprobs: FloatArray  # [T - first, K] their log-probabilities at the lesson's temperature
    weights: FloatArray | None = None  # [T - first] how much each row counts; None: as much as any other

    def as_written(self) -> Lesson:
        """Return a lesson whose target is certain of each token that it wrote."""
        written = self.tokens[self.first + 1 :, None]
        weights = None if self.weights is None else self.weights[:-1]
        return Lesson(self.tokens[:-1], self.first, written, np.zeros(written.shape, np.float32), weights)


def read_lesson(
    engine: LlamaEngine | TorchEngine,
    tokens: Sequence[int],
    first: int,
    temperature: float,
    width: int = WIDTH,
) -> Lesson:
    """Let the target read a text. Raises as `TargetEngine.evaluate`.

    Args: tokens: prompt and text; first: row of the first distribution; temperature: above 0.
    """
    best, logprobs = list[IntArray](), list[FloatArray]()
    chunk = CHUNK if isinstance(engine, TorchEngine) else LLAMA_CHUNK
    for start in range(0, len(tokens), chunk):
        rows = min(chunk, len(tokens) - start)
        outputs = range(max(0, first - start), rows)
        item = item_of(
            range(-1, rows - 1),
            np.arange(start, start + rows, dtype=np.int32),
            np.arange(start, dtype=np.int32),
            tokens=tokens[start : start + rows],
            outputs=outputs,
            sampling=SamplingParams(),
        )
        logits = torch.as_tensor(engine.logits(StepPlan((item,))))[: len(outputs)]
        values, places = (logits.float() / temperature).log_softmax(dim=-1).topk(width)
        best.append(places.int().cpu().numpy())
        logprobs.append(values.cpu().numpy())
    return Lesson(np.asarray(tokens, np.int32), first, np.concatenate(best), np.concatenate(logprobs))


def passes(lessons: Sequence[Lesson], most_rows: int) -> Iterator[list[Lesson]]:
    """Divide lessons among passes of about `most_rows` rows, which are padded to their longest."""
    group: list[Lesson] = []
    for lesson in sorted(lessons, key=lambda each: len(each.tokens)):
        if group and (len(group) + 1) * len(lesson.tokens) > most_rows:
            yield group
            group = []
        group.append(lesson)
    yield group


@dataclass(frozen=True, slots=True)
class LessonBatch:
    """Holds lessons side by side, padded at their ends."""

    tokens: Tensor  # int64 [B, T]
    is_taught: Tensor  # bool [B, T]
    best: Tensor  # int64 [N, K] of the rows that are taught, in order
    target: Tensor  # float [N, K + 1] the target's log-probabilities, all other tokens' last
    weights: Tensor  # float [N] how much each of these rows counts

    @classmethod
    def of(cls, lessons: Sequence[Lesson]) -> LessonBatch:
        firsts = [lesson.first for lesson in lessons]
        tokens, is_taught = side_by_side([lesson.tokens for lesson in lessons], firsts)
        best = torch.from_numpy(np.concatenate([lesson.best for lesson in lessons]).astype(np.int64))
        logprobs = torch.from_numpy(np.concatenate([lesson.logprobs for lesson in lessons]))
        weights = [
            np.ones(len(each.best), np.float32) if each.weights is None else each.weights for each in lessons
        ]
        return cls(tokens, is_taught, best, with_rest(logprobs), torch.from_numpy(np.concatenate(weights)))

    def said(self, draft: Logits, temperature: float) -> Tensor:
        """Return the draft's log-probabilities [N, V] of the rows that are taught."""
        return (draft(self.tokens, self.is_taught).float() / temperature).log_softmax(dim=-1)

    def pairs(self, draft: Logits, temperature: float) -> tuple[Tensor, Tensor]:
        """Return the target's and the draft's log-probabilities, both [N, K + 1]."""
        return self.target, with_rest(self.said(draft, temperature).gather(-1, self.best))


def shared_noise(seed: int, rows: Tensor, first: int = 0) -> Tensor:
    """Return the noise float64 [N, V] of logits [N, V], which choose the tokens from place `first` on."""
    keys = noise_keys([seed] * len(rows), range(first, first + len(rows)), rows.device)
    return gumbel(keys.unsqueeze(1), torch.arange(rows.shape[1], device=rows.device))


def with_rest(logprobs: Tensor) -> Tensor:
    """Append the logarithm of what log-probabilities [N, K] leave of 1: [N, K + 1]."""
    left = (1.0 - logprobs.exp().sum(dim=-1, keepdim=True)).clamp(min=1e-12)
    return torch.cat((logprobs, left.log()), dim=-1)


@dataclass(frozen=True, slots=True)
class DraftReport:
    """Tells how well a draft knows a target's texts."""

    coupled: float  # mean chance of the same token under shared noise, in closed form, by the rows' weights
    greedy: float  # share of rows with the same likeliest token
    by_rank: tuple[
        float, ...
    ]  # share of rows whose token is among the draft's best 1, 2, ... under shared noise
    by_depth: tuple[float, ...]  # share of rows after which 1, 2, ... tokens in a row are the draft's best
    texts: tuple[RecordedText, ...] = field(repr=False)  # what the draft says, for the simulator
    by_mask: tuple[float, ...] = ()  # of a parallel draft: `coupled` of the rows of its 1st, 2nd, ... mask
    masked: tuple[tuple[RecordedText, ...], ...] = field(default=(), repr=False)  # `texts` as these say them

    @property
    def known(self) -> float:
        """Mean chance of the same token under shared noise, over all rows that a decode buys."""
        return fmean((self.coupled, *self.by_mask))

    @property
    def figures(self) -> dict[str, Any]:
        """Return all but the texts."""
        return {name: value for name, value in asdict(self).items() if name not in ("texts", "masked")}


@torch.inference_mode()
def measure(draft: Logits, lessons: Sequence[Lesson], temperature: float) -> DraftReport:
    """Measure a draft on whole lessons, the shared noise of each with a seed of its own."""
    coupled, weights = list[Tensor](), list[Tensor]()
    greedy, ranks = list[Tensor](), list[Tensor]()
    texts = list[RecordedText]()
    for seed, lesson in enumerate(lessons):
        batch = LessonBatch.of([lesson])
        own = batch.said(draft, temperature)
        listed = with_rest(own.gather(-1, batch.best))
        coupled.append(coupled_acceptance(batch.target, listed, has_rest=True) * batch.weights)
        weights.append(batch.weights)
        greedy.append(own.argmax(dim=-1) == batch.best[:, 0])
        noise = shared_noise(seed, own).float()
        theirs = batch.target[:, :-1] + noise.gather(-1, batch.best)
        chosen = batch.best.gather(-1, theirs.argmax(dim=-1, keepdim=True))
        scores = own + noise
        ranks.append((scores > scores.gather(-1, chosen)).sum(dim=-1))
        best, candidates = scores.topk(NUM_CANDIDATES)
        said = zip(ranks[-1].tolist(), candidates.tolist(), best.tolist(), strict=True)
        columns = [
            (tuple(ids), tuple(nats), rank + 1 if rank < len(ids) else None) for rank, ids, nats in said
        ]
        tokens = tuple(chosen.squeeze(-1).tolist())
        texts.append(RecordedText(lesson.first + 1, tokens, *zip(*columns, strict=True)))
    rows = torch.cat(ranks)
    hits = [rank == 0 for rank in ranks]
    runs = [
        [hit.unfold(0, depth, 1).all(dim=-1) for hit in hits if len(hit) >= depth]
        for depth in range(1, DEPTHS + 1)
    ]
    return DraftReport(
        (torch.cat(coupled).sum() / torch.cat(weights).sum().clamp(min=1e-9)).item(),
        torch.cat(greedy).float().mean().item(),
        tuple((rows < most).float().mean().item() for most in range(1, RANKS + 1)),
        tuple(torch.cat(run).float().mean().item() for run in runs if run),
        tuple(texts),
    )
