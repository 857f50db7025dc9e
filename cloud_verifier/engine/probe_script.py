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

_TRUNK, _SECOND, _THIRD = 4, 13, 5  # tokens of chunks besides the longest session's prefill

COMPARED_ROWS = 12
"""Rows of a prefill chunk whose logits are asked for, the last ones: they see most."""

TokenPath = tuple[int, ...]
"""All tokens from position 0 up to a row: what its logits are a function of."""

WARM_UP_ROWS = 64
"""Rows of the first step."""

Row = TypeVar("Row")


def leaves_of(paths: Iterable[TokenPath]) -> Sequence[TokenPath]:
    """Paths that no other path continues: evaluating them evaluates all."""
    every = list(paths)
    inner = {path[:end] for path in every for end in range(1, len(path))}
    return [path for path in every if path not in inner]


@dataclass(slots=True)
class ScriptedSession:
    """Holds what a session of a script has committed."""

    key: int
    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    prompt_length: int = 0  # as in `StepItem`


class StepScript(Generic[Row]):
    """Drives an engine through steps of several sessions, and collects the logits of their rows.

    Args: free, KV slots, taken from the end; logits, which runs a step and yields a row of logits for each of
    its outputs.
    """

    def __init__(self, free: list[int], logits: Callable[[StepPlan], Iterable[Row]]) -> None:
        self.free = free
        self.rows: dict[TokenPath, Row] = {}
        self.prompts: dict[TokenPath, int] = {}  # of every path: the length of its session's prompt
        self._logits = logits

    def item(
        self, session: ScriptedSession, parents: Sequence[int], tokens: Sequence[int], first_output: int = 0
    ) -> StepItem:
        """Make an item of rows behind a session's text, with outputs from `first_output` on."""
        count = len(parents)
        return item_of(
            parents,
            np.array([self.free.pop() for _ in range(count)], np.int32),
            session.slots,
            tokens=tokens,
            outputs=range(first_output, count),
            session=session.key,
            prompt_length=session.prompt_length,
        )

    def step(self, *items: tuple[ScriptedSession, StepItem]) -> None:
        logits = iter(self._logits(StepPlan(tuple(item for _, item in items))))
        for session, item in items:
            for row in item.outputs.tolist():
                path = *session.tokens, *item.tokens[path_rows(item.parents, row)].tolist()
                self.rows[path] = next(logits)
                self.prompts[path] = session.prompt_length

    def commit(self, session: ScriptedSession, item: StepItem, row: int) -> list[int]:
        """Make the path down to `row` part of the session's text. Return the slots of the other branches."""
        path = path_rows(item.parents, row)
        session.tokens += item.tokens[path].tolist()
        session.slots = [*session.slots, *item.slots[path].tolist()]
        return [slot for place, slot in enumerate(item.slots.tolist()) if place not in path]


def slots_for(longest: int) -> int:
    """Return the number of KV slots that `ProbeScript.run` writes, and spare ones to spread them."""
    return longest + _SECOND + _THIRD + 4 * len(TREE) + 16


class ProbeScript(StepScript[Row]):
    """Drives an engine through prefill chunks and trees of three sessions, in shuffled slots.

    Args: info, of the engine; logits, as in `StepScript`.
    """

    def __init__(self, info: TargetInfo, logits: Callable[[StepPlan], Iterable[Row]]) -> None:
        self._info = info
        self._random = np.random.default_rng(0)
        super().__init__(self._random.permutation(info.num_slots).tolist(), logits)

    def warm_up(self) -> None:
        """Run one step, which shows the terms that the layers ask for."""
        session = ScriptedSession(0)
        self.step((session, self._chunk(session, min(WARM_UP_ROWS, self._info.max_positions))))

    def run(self, longest: int) -> dict[TokenPath, Row]:
        """Run all steps, one session `longest` tokens long. Returns the rows by token path.

        Raises `UserError` if the model's positions end before that.
        """
        room = self._info.max_positions - longest - len(TREE)
        if room < 0:
            raise UserError(f"its last position is {-room} too early for the conformance probe")
        sessions = first, second, third = tuple(ScriptedSession(key) for key in range(3))
        early = (longest - _TRUNK) // 3
        self._advance((first, early), (second, _SECOND))
        self._advance((third, _THIRD), (first, longest - _TRUNK - early))
        trunk, tree = self._chunk(first, _TRUNK), self._tree(second)
        self.step((second, tree), (first, trunk))
        self.commit(first, trunk, _TRUNK - 1)
        self.commit(second, tree, BRANCH)
        self.step(*((session, self._tree(session)) for session in sessions))
        return self.rows

    def _advance(self, *chunks: tuple[ScriptedSession, int]) -> None:
        """Prefill one chunk of each session, in one step."""
        items = [(session, self._chunk(session, count)) for session, count in chunks]
        self.step(*items)
        for session, item in items:
            self.commit(session, item, len(item.tokens) - 1)

    def _chunk(self, session: ScriptedSession, count: int) -> StepItem:
        first_output = max(0, count - COMPARED_ROWS)
        return self.item(session, range(-1, count - 1), self._tokens(count), first_output)

    def _tree(self, session: ScriptedSession) -> StepItem:
        return self.item(session, TREE, self._tokens(len(TREE)))

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self._random.integers(self._info.vocab_size, size=count).tolist()
        return tokens
