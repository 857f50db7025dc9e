"""Chooses on the host: each row through `common.choice`, which evaluates noise only for tokens that
can still win. Needs no torch, so that every engine can use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import (
    FloatArray,
    IntArray,
    RowLogprobs,
    StepItem,
    StepPlan,
    StepResult,
)
from cloud_verifier.core.rules import decide
from cloud_verifier.engine.packing import IndexArray, path_rows
from cloud_verifier.engine.sampling.grammar import Mask, MaskOf
from common import choice as reference
from common.errors import LocalError
from common.sampling import SamplingParams

NO_TOKENS: IntArray = np.zeros(0, np.int32)

StepLogprobs = tuple[RowLogprobs | None, ...]
"""As `StepResult.logprobs`."""


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """Holds the parameters of one row's choice; arguments of `common.choice.choose`."""

    params: SamplingParams
    position: int  # of the row; the choice is written at position + 1
    prompt: IntArray | None = None  # [P] with `generated` all tokens up to `position`; read by penalties only
    generated: IntArray | None = None  # [G]
    allowed: NDArray[np.bool_] | None = None  # [V] by its grammar; None: all
    history: reference.History | None = None  # of the prompt and the first generated tokens, if it is kept


class Chosen(NamedTuple):
    """Holds a step runner's results, on the host."""

    choices: IntArray  # [O]
    margins: FloatArray  # [O]
    logprobs: StepLogprobs = ()


def choice_rows(item: StepItem, mask_of: MaskOf | None = None) -> list[ChoiceRow]:
    """Return all that each output row's choice depends on besides its logits. A row with a grammar calls
    `mask_of`; without `mask_of` such a row raises `LocalError`."""
    sampling, positions, outputs = item.sampling, item.positions, item.outputs.tolist()
    if not sampling.reads_text:
        return [ChoiceRow(sampling, int(positions[row]), history=item.history) for row in outputs]
    rows = []
    for row in outputs:
        generated = _generated(item, row)
        allowed = _allowed(item, generated, mask_of) if sampling.grammar else None
        rows.append(ChoiceRow(sampling, int(positions[row]), item.prompt, generated, allowed, item.history))
    return rows


def _allowed(item: StepItem, generated: IntArray, mask_of: MaskOf | None) -> Mask | None:
    """None also where the row's own path breaks the grammar: its parent's choice is never this row, so
    whatever it chooses is dropped."""
    if mask_of is None:
        raise LocalError("a session has a grammar and this runner has no masks")
    return mask_of(item.session, item.sampling.grammar, generated)


def _generated(item: StepItem, row: int) -> IntArray:
    """Tokens after the prompt, up to and including `row` on its path; rows of the prompt do not count."""
    prompt_length = 0 if item.prompt is None else len(item.prompt)
    path = [index for index in path_rows(item.parents, row) if item.positions[index] >= prompt_length]
    earlier = item.generated if item.generated is not None else np.zeros(0, np.int32)
    return np.concatenate((earlier, item.tokens[path]))


def by_item(plan: StepPlan, chosen: Chosen) -> StepResult:
    """Split choices and margins by item."""
    choices, margins, logprobs = chosen
    ends = [0, *accumulate(len(item.outputs) for item in plan.items)]
    parts = [slice(*ends[at : at + 2]) for at in range(len(plan.items))]
    return StepResult(
        tuple(choices[part] for part in parts), tuple(margins[part] for part in parts), logprobs
    )


def choose_on_host(logits: FloatArray, rows: Sequence[ChoiceRow]) -> tuple[IntArray, FloatArray]:
    """Return the choices int32 [O] and margins float32 [O] of logits float32 [O, V]. Raises as
    `common.choice.choose`."""
    choices, margins = np.empty(len(rows), np.int32), np.empty(len(rows), np.float32)
    changes = row_changes(rows, logits.shape[1])
    for index, (one, row) in enumerate(zip(logits, rows, strict=True)):
        adjusted = reference.adjust(one, changes[index], row.allowed)
        choice = reference.choose_adjusted(adjusted, row.params, row.position)
        choices[index], margins[index] = choice.token, choice.margin
    return choices, margins


def row_changes(rows: Sequence[ChoiceRow], vocab_size: int) -> list[tuple[reference.Adjustments, ...]]:
    """Return each row's changes for `common.choice.adjust`: those of its history, then of its own path."""
    changes: list[tuple[reference.Adjustments, ...]] = [()] * len(rows)
    for group in row_groups(rows, vocab_size):
        ends = np.searchsorted(group.owners, np.arange(len(group.rows) + 1)).tolist()
        for row, start, end in zip(group.rows, ends, ends[1:], strict=False):
            changes[row] = (group.history.changes, group.own.part(slice(start, end)))
    return changes


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that go on from one history."""

    history: reference.History
    rows: list[int]
    owners: NDArray[np.int64]  # [E] the place in `rows` of each entry of `own`
    own: reference.Adjustments  # [E] in place of the history's changes


def row_groups(rows: Sequence[ChoiceRow], vocab_size: int) -> list[RowGroup]:
    """Return the rows that bias or penalties change. Raises `LocalError` for tokens outside the
    vocabulary."""
    members = dict[int, tuple[reference.History, list[int]]]()
    for index, row in enumerate(rows):
        if row.params.logit_bias or row.params.has_penalties:
            history = row.history or reference.History.of(row.params, row.prompt, row.generated)
            members.setdefault(id(history), (history, []))[1].append(index)
    groups = []
    for history, indices in members.values():
        texts = [rows[index].generated for index in indices]
        paths = [NO_TOKENS if text is None else text[history.num_generated :] for text in texts]
        owners, own = history.after(paths)
        for tokens in (history.changes.tokens, np.sort(own.tokens)):
            reference.check_within(tokens, vocab_size)
        groups.append(RowGroup(history, indices, owners, own))
    return groups


# Acceptance rules other than the coupled one: they read the probabilities of the asked-for rows, on the host.


LogitsOf = Callable[[slice], FloatArray]
"""Brings the logits float32 [., V] of some output rows to the host."""


def has_rules(plan: StepPlan) -> bool:
    """Return whether any item's choices follow another rule than the coupled one."""
    return any(item.ask is not None for item in plan.items)


def decide_by_rules(
    plan: StepPlan,
    logits: LogitsOf,
    rows: Sequence[ChoiceRow],
    coupled: StepResult,
    hidden: LogitsOf | None = None,
) -> StepResult:
    """Decide the items that ask for another rule by that rule, from the step's logits. `hidden` brings the
    last hidden states [., H] of some output rows, for judges that read them.

    A margin is a choice's distance from another one under the noise. A choice by chance has none: inf.
    Probabilities take milliseconds a row for the largest vocabularies; only sessions with such a rule pay.
    """
    choices, margins, end = list[IntArray](), list[FloatArray](), 0
    for item, own, margin in zip(plan.items, coupled.choices, coupled.margins, strict=True):
        start, end = end, end + len(own)
        if item.ask is None:
            choices.append(own)
            margins.append(margin)
        else:
            law_of = partial(_law_of, logits(slice(start, end)), rows[start:end])
            hidden_of = hidden and partial(_hidden_of, hidden, start)
            choices.append(decide(item, own, law_of, hidden=hidden_of))
            margins.append(np.full_like(margin, np.inf))
    return StepResult(tuple(choices), tuple(margins))


def _law_of(logits: NDArray[np.float32], rows: Sequence[ChoiceRow], row: int) -> NDArray[np.float64]:
    return probabilities(logits[row], rows[row])


def _hidden_of(hidden: LogitsOf, start: int, row: int) -> NDArray[np.float64]:
    state: NDArray[np.float64] = hidden(slice(start + row, start + row + 1))[0].astype(np.float64)
    return state


def probabilities(logits: NDArray[np.float32], row: ChoiceRow) -> NDArray[np.float64]:
    """Return float64 [V], the law of the coupled rule's choice from one row's logits float32 [V]."""
    (changes,) = row_changes([row], len(logits))
    weights = np.exp(reference.process_adjusted(reference.adjust(logits, changes, row.allowed), row.params))
    law: NDArray[np.float64] = weights / weights.sum()
    return law


# Log-probabilities of the raw logits, for sessions that ask.


def asked_logprobs(
    items: Sequence[StepItem], of_rows: Callable[[IndexArray, int], RowLogprobs]
) -> StepLogprobs:
    """Return the log-probabilities of items that ask; empty if none asks.

    `of_rows` gives those of some output rows, int64 [R], with the most tokens that an item asks for.
    """
    if all(item.logprobs is None for item in items):
        return ()
    ends = [0, *accumulate(len(item.outputs) for item in items)]
    spans = {
        place: range(*ends[place : place + 2])
        for place, item in enumerate(items)
        if item.logprobs is not None
    }
    rows = np.array([row for span in spans.values() for row in span], np.int64)
    logprobs = of_rows(rows, max(item.logprobs or 0 for item in items))
    shares, at = list[RowLogprobs | None]([None] * len(items)), 0
    for place, span in spans.items():
        part, count = slice(at, at + len(span)), items[place].logprobs or 0
        shares[place] = RowLogprobs(
            logprobs.choices[part], logprobs.top_tokens[part, :count], logprobs.top[part, :count]
        )
        at += len(span)
    return tuple(shares)


def logprobs_on_host(logits: FloatArray, choices: IntArray, most: int) -> RowLogprobs:
    """Return the log-probabilities of the choices int32 [R] under logits float32 [R, V], and those of the
    `most` likeliest tokens of each row, lowest id first among equals, V at most."""
    count = min(most, logits.shape[1])
    own = np.empty(len(choices), np.float32)
    tokens, tops = np.empty((len(own), count), np.int32), np.empty((len(own), count), np.float32)
    for row, (values, choice) in enumerate(zip(logits, choices.tolist(), strict=True)):
        best = values.max()
        total = best + np.log(np.exp(values - best).sum())
        own[row] = values[choice] - total
        if count:
            least = np.partition(values, -count)[-count]
            front = np.flatnonzero(values >= least)
            tokens[row] = front[np.argsort(-values[front], kind="stable")[:count]]
            tops[row] = values[tokens[row]] - total
    return RowLogprobs(negative(own), tokens, negative(tops))


def negative(values: FloatArray) -> FloatArray:
    """Return the values, at most 0: rounding may lift the logarithm of a chance of 1 above it."""
    return np.minimum(values, np.float32(0.0))
