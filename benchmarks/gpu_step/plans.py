"""Step plans by hand: random ones for checks, and loads to be timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.gpu_step.settings import Load
from cloud_verifier.core.target import IntArray, StepItem, StepPlan
from common.sampling import SamplingParams

GREEDY = SamplingParams()


@dataclass
class Book:
    """Slots in shuffled order, as a long-lived verifier hands them out, and the slots of sessions'
    prefixes."""

    num_slots: int
    random: np.random.Generator
    free: list[int] = field(default_factory=list)
    held: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = self.random.permutation(self.num_slots).tolist()

    def item(
        self, session: int, tokens: Sequence[int], parents: Sequence[int], sampling: SamplingParams = GREEDY
    ) -> StepItem:
        """Rows below what the session holds, each of which wants its choice."""
        held = self.held.setdefault(session, [])
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return StepItem(
            session=session,
            prefix_slots=ints(held),
            tokens=ints(tokens),
            positions=ints(depths) + np.int32(len(held)),
            parents=ints(parents),
            slots=ints([self.free.pop() for _ in tokens]),
            outputs=ints(range(len(tokens))),
            sampling=sampling,
        )

    def keep(self, item: StepItem, rows: Sequence[int]) -> None:
        """Commit `rows`, a path; the others' slots are free again."""
        kept = item.slots[list(rows)].tolist()
        self.held[item.session] += kept
        self.free += [slot for slot in item.slots.tolist() if slot not in kept]


def random_tree(count: int, random: np.random.Generator) -> list[int]:
    """Parents of a tree whose row 0 is the tip."""
    return [-1, *(int(random.integers(0, row)) for row in range(1, count))]


def load_plan(load: Load, vocab_size: int, sampling: SamplingParams = GREEDY) -> StepPlan:
    """Sessions with their contexts in slots 0, 1, 2 ...: a step to be timed again and again."""
    random = np.random.default_rng(0)
    items, at = [], 0
    for session in range(load.sessions):
        slots = np.arange(at, at + load.context + load.nodes, dtype=np.int32)
        at += len(slots)
        parents = random_tree(load.nodes, random)
        depths = [0] * load.nodes
        for row in range(1, load.nodes):
            depths[row] = depths[parents[row]] + 1
        items.append(
            StepItem(
                session=session,
                prefix_slots=slots[: load.context],
                tokens=random.integers(vocab_size, size=load.nodes).astype(np.int32),
                positions=ints(depths) + np.int32(load.context),
                parents=ints(parents),
                slots=slots[load.context :],
                outputs=ints(range(load.nodes)),
                sampling=replace(sampling, seed=session),
            )
        )
    return StepPlan(tuple(items))


def slots_of(load: Load) -> int:
    """KV slots that `load_plan` names."""
    return load.sessions * (load.context + load.nodes)


def ints(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int32)
