"""Guesses how texts go on after a step: reads what the model lacks, then grows a small tree level by level.

A model with KV of its own keeps it at the target's slots. So what sessions share, it shares; what they free,
it forgets; and a session that comes back finds what is left of its text. The drafter knows which slots hold
its state: a row of the target that is written anew makes its slot's state invalid. What is invalid in front
of a tip is read before the tip, whenever that may be.

Guessed nodes lie in slots of their own, behind the target's, until the guess is over.
"""

from __future__ import annotations

import copy
import heapq
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.engine_protocol import (
    Followers,
    GuessItem,
    GuessPlan,
    GuessResult,
    IntArray,
    StepItem,
    StepPlan,
)
from cloud_verifier.engine.attention.backend import KVStore, StepContext, current_step
from cloud_verifier.engine.packing import PackedStep, StepLimits, item_of, pack
from cloud_verifier.engine.sampling.host_choice import ChoiceRow
from cloud_verifier.engine.torch_engine import TorchEngine
from common.calibration import Confidence, promised
from common.sampling import SamplingParams
from schemes.drafters.guessing import WIDTH
from schemes.drafters.ranking import Candidates, rank_rows

logger = logging.getLogger(__name__)

MOST_LEVELS = 16
"""Levels of guesses below a tip, for a model that has no limit of its own."""

SCRATCH = 512
"""Slots for guessed nodes of all sessions. The likeliest nodes of a level get those that are left."""

READ_ROWS = 512
"""Rows that are read in one forward."""

NUM_CANDIDATES = 8
"""Candidates after a node. The target's choice is among them in 98 of 100 cases, and each costs the
scheduler some microseconds."""


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Holds the rows of one forward, on the model's device."""

    tokens: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    features: Tensor | None  # [T, F] of the position before each row; None if the target keeps none
    outputs: Tensor  # int64 [O] rows whose followers are sought
    level: int  # 1 for the tip and the rows before it, 2 for the nodes below it, ...


@dataclass(frozen=True, slots=True)
class Drafted:
    """Holds what a model says of its output rows."""

    logits: Tensor  # float32 [O, V] of the tokens that follow
    features: Tensor | None = None  # [O, F] for the rows below; None if the model reads none
    is_last: Tensor | None = None  # bool [O] rows below whose tokens it guesses nothing; None: no such rows


class DraftModel(ABC):
    """A model that guesses (an `OwnDraft`). It runs inside a current step, as the target does.

    Its state at a slot may depend on the tokens up to the slot's position and on the target's features of
    the positions before, and on nothing else: sessions with a common prefix share it.
    """

    depth: int  # most levels that it can guess
    first_position: int  # of a text that it reads: 1 if it needs the features of the one before
    has_own_kv: bool  # so that it must read all rows; otherwise it reads the target's KV, or none
    by_level = False  # what follows depends on the tip and the level alone, so one node of a level is run
    num_scratch = SCRATCH
    num_ahead = 0  # rows of its own below each tip, in a chain, that run with the tip

    @abstractmethod
    def forward(self, rows: DraftRows) -> Drafted:
        """Run the rows."""

    def beside(self, engine: TorchEngine) -> Drafter:
        return Drafter(self, engine)


@dataclass(slots=True)
class _Text:
    """A session's text in one guess."""

    item: GuessItem
    slots: IntArray  # of the positions before the tip that the model reads
    before: IntArray  # of the position before each of these and before the tip; empty if none is needed
    ends: frozenset[int]  # tokens that end the text
    wants_followers: bool  # of the tip
    least: float  # log-probability of a node whose followers are sought, nats
    guessed: list[Followers] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Span:
    """Part of `text.slots` that is read now."""

    text: _Text
    first: int
    end: int

    @property
    def slots(self) -> IntArray:
        return self.text.slots[self.first : self.end]


@dataclass(frozen=True, slots=True)
class _Node:
    """A guessed node, or the tip, whose followers are sought."""

    text: _Text
    path: tuple[int, ...]  # as in `Followers`
    logprob: float  # of the path, nats
    slots: tuple[int, ...]  # of the tip, the nodes on the path, and itself last
    parent: int = -1  # number of its parent among the nodes of the level above


class Drafter:
    """Runs a `DraftModel` beside an engine's target, in the engine's thread.

    Behind the slots that the engine counts, the KV has `SCRATCH` more.
    """

    def __init__(self, model: DraftModel, engine: TorchEngine) -> None:
        info = engine.info
        self.model = model
        self.kv = KVStore(info.num_slots + SCRATCH) if model.has_own_kv else engine.kv
        self._target_kv = engine.kv
        self._backend = engine.backend
        self._device = engine.model.device
        self._ends = frozenset(info.eos_token_ids)
        self._num_slots = info.num_slots
        self._limits = StepLimits(info.vocab_size, info.max_positions, info.num_slots + SCRATCH)
        self.tokens = np.zeros(info.num_slots, np.int32)  # by slot, as the target read them
        self._valid: NDArray[np.bool_] = np.zeros(info.num_slots, np.bool_)  # by slot
        self._num_read = 0  # rows that this guess has read

    def sibling(self, model: DraftModel, kv: KVStore) -> Drafter:
        """Return a drafter of another model of the same kind beside the same engine, with KV of its own if it
        has any."""
        other = copy.copy(self)  # the tokens are common
        other.model, other.kv, other._valid = model, kv, np.zeros_like(self._valid)
        return other

    @property
    def slot_bytes(self) -> int:
        """Return the bytes of a slot beside the target's own KV, once everything has been written."""
        features = self._target_kv.features
        own = self.kv.slot_bytes if self.model.has_own_kv else 0
        return own + (0 if features is None else features[0].nbytes)

    def note(self, step: PackedStep) -> None:
        """Note that the target writes these rows."""
        self.tokens[step.slots] = step.tokens
        self._valid[step.slots] = False

    @torch.inference_mode()
    def guess(self, plan: GuessPlan) -> GuessResult:
        """Guess how the texts go on; nothing if the device has no memory for that."""
        texts = [self._text(item) for item in plan.items]
        self._num_read = 0
        try:
            self._grow(self._read(texts), plan.least_gain)
        except torch.OutOfMemoryError as error:
            message = "no memory to guess for %d sessions (%s)"
            logger.warning(message, len(plan.items), str(error).strip().splitlines()[0])
            return GuessResult(((),) * len(plan.items))
        return GuessResult(tuple(tuple(text.guessed) for text in texts), self._num_read)

    def take_memory(self) -> None:
        """Guess once after the row at slot 0, to allocate all KV. The first guess takes several times as long
        as later ones."""
        sampling = SamplingParams(temperature=1.0, ignore_eos=True)
        row = np.zeros(1, np.int32)
        self.guess(GuessPlan((GuessItem(0, row, 0, self.model.depth, WIDTH, Confidence(), sampling),)))

    def _text(self, item: GuessItem) -> _Text:
        ends = frozenset[int]() if item.sampling.ignore_eos else self._ends
        first, length = self.model.first_position, len(item.prefix_slots)
        has_room = first <= length < self._limits.max_positions - self.model.num_ahead
        before = item.prefix_slots[first - 1 :] if first else item.prefix_slots[:0]
        wants_followers = has_room and item.depth > 0 and item.tip not in ends
        least = math.log(item.least) if item.least else -math.inf
        return _Text(item, item.prefix_slots[first:], before, ends, wants_followers, least)

    # Reading committed rows

    def _read(self, texts: Sequence[_Text]) -> list[_Span]:
        """Read what is missing, up to the last rows, which the tips' forward can read along. Return those."""
        while True:
            spans, are_all = self._next_spans(texts)
            if are_all:
                return spans
            self._run_first(spans, ())

    def _next_spans(self, texts: Sequence[_Text]) -> tuple[list[_Span], bool]:
        """Return what one forward can read, and whether nothing is missing then."""
        spans, room, are_all, claimed = list[_Span](), READ_ROWS, True, set[int]()
        for text in texts:
            first = end = len(text.slots)
            if self.model.has_own_kv:
                valid = self._valid[text.slots]
                first = end if valid.all() else int(valid.argmin())
            if first < end:
                if int(text.slots[first]) in claimed:  # a common beginning, which another text reads
                    are_all = False
                    continue
                claimed.add(int(text.slots[first]))
                end = min(end, first + room)
                are_all &= end == len(text.slots)
                room -= end - first
            spans.append(_Span(text, first, end))
        return spans, are_all

    def _run_first(self, spans: Iterable[_Span], tips: Sequence[_Node]) -> Drafted | None:
        """Read `spans`, and the tips behind theirs. Returns what follows the tips; None without rows."""
        below = self.model.num_ahead
        slots_of = {id(tip.text): range(tip.slots[0], tip.slots[0] + 1 + below) for tip in tips}
        items, before = list[StepItem](), list[IntArray]()
        for span in spans:
            text, tip_slots = span.text, slots_of.get(id(span.text), ())
            slots = np.append(span.slots, tip_slots).astype(np.int32)
            if not len(slots):
                continue
            tokens = self.tokens[span.slots]
            outputs = range(len(tokens), len(tokens) + (1 if tip_slots else 0))
            tokens = np.append(tokens, [text.item.tip] * len(tip_slots)).astype(np.int32)
            items.append(_chain(text.slots[: span.first], tokens, slots, outputs))
            before.append(text.before[span.first : span.first + len(slots)])
        if not items:
            return None
        drafted = self._run(items, self._features(np.concatenate(before)), 1)
        for span in spans:
            self._valid[span.slots] = True
            self._num_read += len(span.slots)
        return drafted

    def _features(self, before: IntArray) -> Tensor | None:
        """Return the target's features at these slots."""
        stored = self._target_kv.features
        if stored is None:
            return None
        return stored.index_select(0, torch.from_numpy(before.astype(np.int64)).to(self._device))

    # Growing the tree

    def _grow(self, spans: Sequence[_Span], least_gain: float) -> None:
        """Find the followers of the tips, and of likely nodes below them, level by level as long as a level
        may win `least_gain` tokens: the chance that one of its nodes is right, summed over the texts."""
        rows = 1 + self.model.num_ahead
        texts = [span.text for span in spans if span.text.wants_followers][: SCRATCH // rows]
        nodes = [_Node(text, (), 0.0, (self._num_slots + rows * at,)) for at, text in enumerate(texts)]
        drafted, run = self._run_first(spans, nodes), nodes
        level, next_slot = 1, self._num_slots + rows * len(nodes)
        while drafted is not None and nodes:
            row_of = {self._row_key(node): row for row, node in enumerate(run)}
            places = [row_of[self._row_key(node)] for node in nodes]
            ranked = rank_rows(drafted.logits, [_choice_row(node) for node in run], NUM_CANDIDATES)
            followers = self._followers(nodes, [ranked[row] for row in places])
            level += 1
            nodes = self._likeliest(nodes, followers, drafted.is_last, level, next_slot)
            next_slot += len(nodes)
            if sum(math.exp(node.logprob) for node in nodes) < least_gain:
                return
            run = list({self._row_key(node): node for node in reversed(nodes)}.values())[::-1]
            if run:
                features = _of_parents([places[node.parent] for node in run], drafted)
                drafted = self._run([_item(node) for node in run], features, level)

    def _row_key(self, node: _Node) -> object:
        """Return what a node's row shares with others of its level. Under penalties, too, all of a text have
        the followers of the likeliest one."""
        return (id(node.text), () if self.model.by_level else node.path)

    def _followers(self, nodes: Sequence[_Node], ranked: Sequence[Candidates]) -> list[Followers]:
        """Add each node's followers to its text, and return them."""
        followers = [Followers(node.path, *own) for node, own in zip(nodes, ranked, strict=True)]
        for node, own in zip(nodes, followers, strict=True):
            node.text.guessed.append(own)
        return followers

    def _likeliest(
        self,
        nodes: Sequence[_Node],
        followers: Sequence[Followers],
        is_last: Tensor | None,
        level: int,
        first_slot: int,
    ) -> list[_Node]:
        """Return the nodes of the next level: of each text's, the likeliest, as many as it orders. Deeper
        levels keep their share of the slots, but two nodes a text come first."""
        children = dict[int, list[tuple[float, int, int]]]()  # by text: logprob, row of the parent, token
        ends = [False] * len(nodes) if is_last is None else is_last.tolist()
        for row, (node, own) in enumerate(zip(nodes, followers, strict=True)):
            if ends[row]:
                continue
            text = node.text
            deepest = min(text.item.depth, self.model.depth)
            position = len(text.item.prefix_slots) + len(node.path) + 1
            if level > deepest or position >= self._limits.max_positions:
                continue
            logprobs = promised(text.item.confidence, own.scores)
            children.setdefault(id(text), []).extend(
                (node.logprob + logprob, row, token)
                for logprob, token in zip(logprobs, own.tokens, strict=True)
                if token not in text.ends and node.logprob + logprob >= text.least
            )
        chosen = [
            child
            for own in filter(None, children.values())
            for child in heapq.nlargest(nodes[own[0][1]].text.item.width, own)
        ]
        left = self._num_slots + SCRATCH - first_slot
        num_levels = 1 + max((node.text.item.depth for node in nodes), default=level) - level
        room = max(left // max(1, num_levels), min(left, 2 * len(children)))
        if len(chosen) > room:
            chosen = heapq.nlargest(room, chosen)
        next_level = []
        for slot, (logprob, row, token) in enumerate(chosen, first_slot):
            parent = nodes[row]
            next_level.append(
                _Node(parent.text, (*parent.path, token), logprob, (*parent.slots, slot), parent=row)
            )
        return next_level

    def _run(self, items: Sequence[StepItem], features: Tensor | None, level: int) -> Drafted:
        """Run one forward of the model over these rows."""
        step = pack(StepPlan(tuple(items)), self._limits)
        packed = np.concatenate((step.tokens, step.positions, step.slots, step.outputs))
        on_device = torch.from_numpy(packed).to(self._device)
        tokens, positions, slots = on_device[: 3 * step.num_rows].view(3, step.num_rows)
        attention = self._backend.prepare(step, self._device)
        with current_step(StepContext(self.kv, slots, attention)):
            outputs = on_device[3 * step.num_rows :]
            return self.model.forward(DraftRows(tokens, positions, features, outputs, level))


def _chain(prefix_slots: IntArray, tokens: IntArray, slots: IntArray, outputs: range) -> StepItem:
    """Make an item of rows that follow each other."""
    return item_of(range(-1, len(tokens) - 1), slots, prefix_slots, tokens=tokens, outputs=outputs)


def _item(node: _Node) -> StepItem:
    """Make the item of a node below a tip."""
    *above, own = node.slots
    prefix = np.append(node.text.slots, above).astype(np.int32)
    return _chain(prefix, np.array([node.path[-1]], np.int32), np.array([own], np.int32), range(1))


def _choice_row(node: _Node) -> ChoiceRow:
    """Return what the order of a node's followers depends on besides the logits, grammars left out."""
    item = node.text.item
    generated = None
    if item.history is not None:  # which holds all tokens up to the tip, so that only the path is read
        before_tip = np.zeros(item.history.num_generated, np.int32)
        generated = np.append(before_tip, node.path).astype(np.int32)
    position = len(item.prefix_slots) + len(node.path)
    return ChoiceRow(item.sampling, position, generated=generated, history=item.history)


def _of_parents(rows: Sequence[int], drafted: Drafted) -> Tensor | None:
    """Return the features of these output rows of the level above."""
    if drafted.features is None:
        return None
    return drafted.features.index_select(0, torch.tensor(rows, device=drafted.features.device))
