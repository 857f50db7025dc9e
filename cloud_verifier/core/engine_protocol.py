"""Define the types that the scheduler and the engine exchange: a ragged step and its choices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.acceptance import Acceptance, Draft
from common.calibration import Confidence
from common.choice import History
from common.errors import LocalError, UserError
from common.messages import Open, TokenLogprobs
from common.sampling import NO_ADVICE, SamplingDefaults, SamplingParams

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]


@dataclass(slots=True)
class StepItem:
    """Holds one session's rows in a step. Every row is one token to evaluate. An item is never changed; it is
    not frozen because freezing takes 2 us more for each session and step, while the engine waits.

    The rows form a tree: `parents[i]` is the row above row i (always < i), or -1 for a row that follows the
    prefix. A row attends to all of the prefix, its ancestors and itself. A prefill chunk is a chain.
    """

    session: int  # the scheduler's key; opaque to the engine
    prefix_slots: IntArray  # [C] KV slots of positions 0..C-1, written by earlier steps
    tokens: IntArray  # [T]
    positions: IntArray  # [T]; C + depth
    parents: IntArray  # [T]
    slots: IntArray  # [T] where each row's KV is written; distinct, and not among any prefix's
    outputs: IntArray  # [O] rows whose choice is wanted, increasing; may be empty
    sampling: SamplingParams
    # The two fields below are filled only if sampling.reads_text, or under the rule `reflective`.
    prompt: IntArray | None = None  # [P] the whole prompt, wherever the rows begin
    generated: IntArray | None = None  # [G] committed tokens after the prompt, at positions before row 0's.
    # A row's choice counts as generated: `generated`, then its path's rows from position P on, itself too.
    ask: Ask | None = None  # the acceptance rule if it is not the coupled rule (`core.rules.decide`)
    logprobs: int | None = None  # return log-probabilities of choices and of this many likeliest tokens
    history: History | None = None  # of `prompt` and `generated`, where bias or penalties change logits
    hint: bool = False  # the edge takes hints: an engine that has early ones gives them for the output rows
    prompt_length: int = 0  # rows at positions below it read the prompt, later ones were written


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Holds the rows that one forward of the target evaluates, over all sessions."""

    items: tuple[StepItem, ...]

    @property
    def num_rows(self) -> int:
        return sum([len(item.tokens) for item in self.items])

    @property
    def num_outputs(self) -> int:
        return sum(len(item.outputs) for item in self.items)


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Holds the log-probabilities of one item's output rows: log-softmax of the raw logits, in nats."""

    choices: FloatArray  # [O] of the choices
    top_tokens: IntArray  # [O, K] the likeliest tokens, lowest id first among equals; K as asked, at most V
    top: FloatArray  # [O, K] log-probabilities of `top_tokens`

    def of(self, outputs: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of these output rows, as messages hold them."""
        tokens, tops = self.top_tokens.tolist(), self.top.tolist()
        return tuple(
            TokenLogprobs(float(self.choices[row]), tuple(zip(tokens[row], tops[row], strict=True)))
            for row in outputs
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """Holds the choices, item by item and row by row as in `StepItem.outputs`.

    The choice at a row of position p is the token that the target writes at position p + 1. It is the argmax
    of the processed logits plus the noise of (seed, p + 1), lowest id on a tie. For an item with an `ask`
    its rule decides.
    """

    choices: tuple[IntArray, ...]  # each [O]
    margins: tuple[FloatArray, ...]  # each [O]: score of the choice minus the runner-up's, >= 0
    logprobs: tuple[RowLogprobs | None, ...] = ()  # of items that ask; empty if none does
    mask_times: tuple[tuple[int, float], ...] = ()  # seconds of making masks, by session, of those with any


HINTED = 4
"""Tokens of a hint from the middle of a step: as many children as the default policy gives a node."""


@dataclass(frozen=True, slots=True)
class StepHints:
    """Holds the tokens that an engine expects in the middle of a step (Mirror-SD, arXiv 2510.13161)."""

    share: float  # of the step's layers that were done
    tokens: tuple[tuple[tuple[int, ...], ...], ...]  # by item and output row, best first; () without `hint`


@dataclass(frozen=True, slots=True)
class Chat:
    """Holds a model's chat template (Jinja, not run here) and the special tokens that it may name."""

    template: str
    bos_token: str = ""  # empty without one
    eos_token: str = ""


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """Describes the model that a verifier serves."""

    name: str
    vocab_size: int  # token ids run from 0 to this, exclusive
    max_positions: int  # longest prompt + text
    num_slots: int  # KV slots in all
    eos_token_ids: tuple[int, ...]
    fingerprint: bytes  # of the token table, `common.vocabulary`
    rows_per_read: int = 1  # rows of one session that share one read of its context
    near_tie: float = 0.0  # logits; a choice with a smaller margin might be another after other rounding
    chat: Chat | None = None  # the chat template; None if the model has none
    grammars: bool = False  # whether sessions may have a grammar
    sampling_defaults: SamplingDefaults = NO_ADVICE  # reported to edges; no choice here depends on them
    expert_share: float = 0.0  # share of a layer's experts that one row is sent to; 0: there are none
    guess_depth: int = 0  # most levels that the engine's own drafter guesses; 0: it has none
    row_buckets: tuple[int, ...] = ()  # rising; a step is padded to the next one; empty: not at all
    recurrent: bool = False  # layers keep states: a cached prefix is continued where a session ended, only
    apart: bool = False  # the KV of a written token differs from that of the same token in a prompt
    row_times: tuple[tuple[int, float], ...] = ()  # rows and measured seconds of a step; empty: unknown
    repeats: bool = False  # a text's bits depend on its request alone


@dataclass(slots=True)
class GuessItem:
    """Asks the engine's own drafter how one session's text goes on below its tip. With depth 0 the drafter
    only reads the prefix, so that it need not read a long prompt later."""

    session: int  # as in `StepItem`
    prefix_slots: IntArray  # [C] KV slots of positions 0..C-1, all evaluated
    tip: int  # token at position C, which no step has evaluated yet
    depth: int  # levels below the tip
    width: int  # nodes of one level whose followers are sought at most, the likeliest ones
    confidence: Confidence  # turns scores into chances
    sampling: SamplingParams
    history: History | None = None  # of the text up to the tip, where bias or penalties change logits
    least: float = 0.0  # chance of a node whose followers are sought


@dataclass(frozen=True, slots=True)
class GuessPlan:
    """Asks for guesses of several sessions between two steps."""

    items: tuple[GuessItem, ...]
    least_gain: float = 0.0  # tokens that one more level must promise, or the guess ends above it


@dataclass(frozen=True, slots=True)
class Followers:
    """Holds what may follow one node, by the engine's own drafter."""

    path: tuple[int, ...]  # tokens from below the tip to the node, itself included; () is the tip
    tokens: tuple[int, ...]  # [K] candidates, best first
    scores: tuple[float, ...]  # [K] processed logits plus the shared noise, in nats, decreasing


@dataclass(frozen=True, slots=True)
class GuessResult:
    """Holds the guesses, item by item; parents come before the nodes below them."""

    guesses: tuple[tuple[Followers, ...], ...]
    num_read: int = 0  # rows of committed text that the drafter had to read first

    @property
    def num_levels(self) -> int:
        """Return the levels that the guess reached."""
        return max((1 + len(each.path) for followers in self.guesses for each in followers), default=0)


Stats = Mapping[str, float | Mapping[str, float]]
"""An engine's figures by name (lower case, underscores): totals that only grow under names that end in
`_total`, anything else as it stands. A mapping tells a figure by reason."""


class TargetEngine(ABC):
    """Runs the target. Methods that are not abstract have the answer of an engine that does steps alone."""

    info: TargetInfo

    @abstractmethod
    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step, which may take as long as the hardware needs. Slots keep their KV until a later step
        overwrites them. One thread calls this method and `guess`, one at a time."""

    def guess(self, plan: GuessPlan) -> GuessResult:
        """Guess how the texts go on, by a drafter of the engine's own: `info.guess_depth` is above 0."""
        raise LocalError("guesses were asked of an engine without a drafter")

    def listen(self, tell: Callable[[StepHints], None]) -> None:  # noqa: B027 - most engines have none
        """Have `tell` called with early hints in the thread of `evaluate`. Called once, before all steps."""

    def stats(self) -> Stats:
        """Return the engine's figures. From another thread than `evaluate`, for which it must not wait."""
        return {}

    def check_grammar(self, request: Open) -> None:
        """Raise `UserError` or `PeerError` if the engine cannot follow the session's grammar, which is not
        empty. From any thread, without waiting for `evaluate`."""
        raise UserError("this verifier takes no grammars; leave the grammar out")

    def prepare_grammars(self) -> None:  # noqa: B027 - most engines prepare nothing
        """Prepare what the first grammar needs. From any thread, without waiting for `evaluate`."""


# What acceptance rules other than the coupled one need (`schemes/rules`).


@dataclass(frozen=True, slots=True)
class Offer:
    """Holds the children of one node that a rule considers, in the order of sending. With replacement, a
    token that was drawn again is there again."""

    tokens: tuple[int, ...] = ()
    draft: Draft | None = None  # the distribution that the tokens were drawn from; None: the rule needs none


class Judge(Protocol):
    """Says which draft tokens matter (the rule `judge`)."""

    @property
    def num_hidden(self) -> int:
        """The size of the hidden state that the judge reads; 0 for none."""

    def is_unimportant(
        self, law: NDArray[np.float64], token: int, hidden: NDArray[np.float64] | None = None
    ) -> bool:
        """Return whether `token` may take the place of the target's own under its law [V]."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Holds the input of an acceptance rule other than the coupled rule, for one session's rows in a step."""

    acceptance: Acceptance
    offers: tuple[Offer, ...]  # one for each output row
    judge: Judge | None = None  # of the rule `judge`
    copies: Mapping[int, int] = field(default_factory=dict)
    """Of the rule `reflective`: the output row of each output row's second look."""
