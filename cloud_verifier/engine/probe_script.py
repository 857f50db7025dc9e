"""Defines the steps of the conformance probe: what is packed, in which order, into which slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from cloud_verifier.core.engine_protocol import StepItem, StepPlan, TargetInfo
from cloud_verifier.engine.packing import item_of, path_rows
from common.errors import UserError

TREE = (-1, 0, 0, 1, 2, -1, 5, 3)
"""Parents of the rows of a tree: two roots, a fork, four levels, branches interleaved."""

BRANCH = 4
"""Row of `TREE` that is committed with its ancestors before the last step."""

MARGIN = 11
"""Tokens by which the longest session passes the window."""

CHAIN = (-1, 0, 1, 2)
LONG = 1024
"""A session longer than this ends in a chain: each leaf of a tree costs a plain forward of the whole session,
and trees below long prefixes are what `attention/check.py` evaluates."""

_TRUNK, _SECOND, _THIRD = 4, 13, 5  # tokens of chunks besides the longest session's prefill

COMPARED_ROWS = 12
"""Rows of a prefill chunk whose logits are asked for, the last ones: they see most."""

TokenPath = tuple[int, ...]
"""All tokens from position 0 up to a row: what its logits are a function of."""

WARM_UP_ROWS = 64
"""Rows of the first step. Compiled code is made for any number, and fastest for about this one."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class ProbeLengths:
    """Holds the lengths of the probe's sessions."""

    window_limit: int | None  # longer sliding windows are shrunk to it meanwhile; None = as they are
    chunk: int  # prompt tokens in one step at most
    shortest: int  # tokens of the longest session, if no window asks for more


SHRUNK = ProbeLengths(window_limit=128, chunk=256, shortest=24)
"""What a load can afford; and in a short window a token too many weighs more."""

REAL = ProbeLengths(window_limit=None, chunk=256, shortest=600)
"""Windows as they are, and the scheduler's own chunks."""


def leaves_of(paths: Iterable[TokenPath]) -> Sequence[TokenPath]:
    """Paths that no other path continues: evaluating them evaluates all."""
    every = list(paths)
    inner = {path[:end] for path in every for end in range(1, len(path))}
    return [path for path in every if path not in inner]


@dataclass(slots=True)
class _Session:
    key: int
    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)


def slots_for(longest: int) -> int:
    """Return the number of KV slots that `ProbeScript.run` writes, and spare ones to spread them."""
    return longest + _SECOND + _THIRD + 4 * len(TREE) + 16


class ProbeScript(Generic[Row]):
    """Drives an engine through prefill chunks and trees of three sessions, and collects the logits.

    Args: info, of the engine; logits, which runs a step and yields a row of logits for each of its outputs.
    """

    def __init__(self, info: TargetInfo, logits: Callable[[StepPlan], Iterable[Row]]) -> None:
        self._info = info
        self._logits = logits
        self._random = np.random.default_rng(0)
        self._free: list[int] = self._random.permutation(info.num_slots).tolist()
        self._found: dict[TokenPath, Row] = {}

    def warm_up(self) -> None:
        """Run one step, which shows the terms that the layers ask for."""
        count = min(WARM_UP_ROWS, self._info.max_positions)
        self._step([(_Session(0), self._chunk(_Session(0), count))])

    def run(self, longest: int, chunk: int) -> dict[TokenPath, Row]:
        """Run all steps, one session `longest` tokens long. Returns the rows by token path.

        Raises `UserError` if the model's positions end before that.
        """
        room = self._info.max_positions - longest - len(TREE)
        if room < 0:
            raise UserError(f"its last position is {-room} too early for the conformance probe")
        first, second, third = (_Session(key) for key in range(3))
        early, *later = _pieces(longest - _TRUNK, chunk)
        self._advance([(first, early), (second, _SECOND)])
        self._advance([(third, _THIRD), (first, later[0])])
        for count in later[1:]:
            self._advance([(first, count)])
        trunk, tree = self._chunk(first, _TRUNK), self._tree(second)
        self._step([(second, tree), (first, trunk)])
        self._commit(first, trunk, _TRUNK - 1)
        self._commit(second, tree, BRANCH)
        sessions = (first, second, third)
        self._step([(session, self._tree(session)) for session in sessions])
        return self._found

    def _advance(self, chunks: Sequence[tuple[_Session, int]]) -> None:
        """Prefill one chunk of each session, in one step."""
        items = [(session, self._chunk(session, count)) for session, count in chunks]
        self._step(items)
        for session, item in items:
            self._commit(session, item, len(item.tokens) - 1)

    def _chunk(self, session: _Session, count: int) -> StepItem:
        return self._item(session, range(-1, count - 1), max(0, count - COMPARED_ROWS))

    def _tree(self, session: _Session) -> StepItem:
        return self._item(session, CHAIN if len(session.slots) > LONG else TREE, 0)

    def _item(self, session: _Session, parents: Sequence[int], first_output: int) -> StepItem:
        count = len(parents)
        return item_of(
            parents,
            np.array([self._free.pop() for _ in range(count)], np.int32),
            session.slots,
            tokens=self._random.integers(self._info.vocab_size, size=count).tolist(),
            outputs=range(first_output, count),
            session=session.key,
        )

    def _step(self, items: Sequence[tuple[_Session, StepItem]]) -> None:
        logits = iter(self._logits(StepPlan(tuple(item for _, item in items))))
        for session, item in items:
            for row in item.outputs.tolist():
                path = item.tokens[path_rows(item.parents, row)]
                self._found[*session.tokens, *path.tolist()] = next(logits)

    def _commit(self, session: _Session, item: StepItem, row: int) -> None:
        """Make the path down to `row` part of the session's prefix. Other branches keep their slots."""
        path = path_rows(item.parents, row)
        session.tokens.extend(item.tokens[path].tolist())
        session.slots.extend(item.slots[path].tolist())


def _pieces(total: int, chunk: int) -> list[int]:
    """`total` tokens in chunks, two at least: a third of them first, or a whole chunk, then whole ones."""
    pieces = [min(total // 3, chunk)]
    while (left := total - sum(pieces)) > 0:
        pieces.append(min(left, chunk))
    return pieces
