"""The words between the scheduler and an engine that runs the target: one ragged step, and its choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.offers import Ask
from common.messages import TokenLogprobs
from common.sampling import SamplingParams

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]


@dataclass(slots=True)
class StepItem:
    """One session's rows in a step. Every row is one token to evaluate. Nobody changes it; it is not frozen
    because one is made a session and step, while the engine waits, and freezing takes 2 us more.

    Rows hang together as a tree: `parents[i]` is the row above row i (always < i), or -1 for a row that
    follows the prefix. A row sees all of the prefix, its ancestors and itself. A prefill chunk is a chain.
    """

    session: int  # the scheduler's key; opaque to the engine
    prefix_slots: IntArray  # [C] KV slots of positions 0..C-1, written by earlier steps
    tokens: IntArray  # [T]
    positions: IntArray  # [T]; C + depth
    parents: IntArray  # [T]
    slots: IntArray  # [T] where each row's KV is written; distinct, and not among any prefix's
    outputs: IntArray  # [O] rows whose choice is wanted, increasing; may be empty
    sampling: SamplingParams
    # The two fields below are filled only if sampling.reads_text.
    prompt: IntArray | None = None  # [P] the whole prompt, wherever the rows begin
    generated: IntArray | None = None  # [G] committed tokens after the prompt, at positions before row 0's.
    # A row's choice counts as generated: `generated`, then its path's rows from position P on, itself too.
    ask: Ask | None = None  # how choices are made where not by the coupled rule (`core.rules.decide`)
    logprobs: int | None = None  # tell those of choices and of so many of the likeliest tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one forward of the target evaluates, over all sessions."""

    items: tuple[StepItem, ...]

    @property
    def num_rows(self) -> int:
        return sum([len(item.tokens) for item in self.items])

    @property
    def num_outputs(self) -> int:
        return sum(len(item.outputs) for item in self.items)


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """How likely one item's output rows held what may follow them: log-softmax of the raw logits, in nats."""

    choices: FloatArray  # [O] of the choices
    top_tokens: IntArray  # [O, K] the likeliest tokens, lowest id first among equals; K as asked, at most V
    top: FloatArray  # [O, K] theirs

    def of(self, outputs: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        """As they are told, of these output rows."""
        tokens, tops = self.top_tokens.tolist(), self.top.tolist()
        return tuple(
            TokenLogprobs(float(self.choices[row]), tuple(zip(tokens[row], tops[row], strict=True)))
            for row in outputs
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """The choices, item by item and row by row as in `StepItem.outputs`.

    The choice at a row of position p is the token the target writes at position p + 1: the argmax of
    the processed logits plus the noise of (seed, p + 1), lowest id on a tie; or, of an item with an `ask`,
    what its rule decides.
    """

    choices: tuple[IntArray, ...]  # each [O]
    margins: tuple[FloatArray, ...]  # each [O]: score of the choice minus the runner-up's, >= 0
    logprobs: tuple[RowLogprobs | None, ...] = ()  # of items that ask; empty if none does
    mask_times: tuple[tuple[int, float], ...] = ()  # seconds of making masks, by session, of those with any


@dataclass(frozen=True, slots=True)
class Chat:
    """A model's chat template (Jinja; nobody runs it here), and the words that it may name."""

    template: str
    bos_token: str = ""  # empty without one
    eos_token: str = ""


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a verifier says of the model it serves."""

    name: str
    vocab_size: int  # token ids run from 0 to this, exclusive
    max_positions: int  # longest prompt + text
    num_slots: int  # KV slots in all
    eos_token_ids: tuple[int, ...]
    fingerprint: bytes  # of the token table, `common.vocabulary`
    rows_per_read: int = 1  # rows of one session that share one reading of its context; 1 = none does
    near_tie: float = 0.0  # logits; a choice with a smaller margin might be another after other rounding
    chat: Chat | None = None  # how messages become a prompt; None if the model does not tell
    grammars: bool = False  # whether sessions may have one


class TargetEngine(Protocol):
    """Runs the target. One thread calls it; `evaluate` may take as long as the hardware needs."""

    @property
    def info(self) -> TargetInfo: ...

    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step. Slots of earlier steps keep their KV until a later step writes them anew."""
        ...
