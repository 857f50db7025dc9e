"""Makes step plans: random ones for checks, and loads to be timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cloud_verifier.core.engine_protocol import StepItem, StepPlan
from common.sampling import SamplingParams
from lab.benchmarks.gpu_step.settings import Load
from lab.benchmarks.plans import GREEDY, ints, item_of


@dataclass
class Book:
    """Hands out shuffled slots, as a long-lived verifier does, and holds those of sessions' prefixes."""

    num_slots: int
    random: np.random.Generator
    free: list[int] = field(default_factory=list)
    held: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = self.random.permutation(self.num_slots).tolist()

    def item(
        self, session: int, tokens: Sequence[int], parents: Sequence[int], sampling: SamplingParams = GREEDY
    ) -> StepItem:
        """Return rows below the session's prefix, each of which wants its choice."""
        slots = [self.free.pop() for _ in tokens]
        return item_of(session, tokens, self.held.setdefault(session, []), slots, parents, sampling)

    def keep(self, item: StepItem, rows: Sequence[int]) -> None:
        """Commit `rows`, a path; the others' slots become free again."""
        kept = item.slots[list(rows)].tolist()
        self.held[item.session] += kept
        self.free += [slot for slot in item.slots.tolist() if slot not in kept]


def random_tree(count: int, random: np.random.Generator) -> list[int]:
    """Return parents of a tree whose row 0 is the tip."""
    return [-1, *(int(random.integers(0, row)) for row in range(1, count))]


def load_plan(load: Load, vocab_size: int, sampling: SamplingParams = GREEDY) -> StepPlan:
    """Make sessions with their contexts in slots 0, 1, 2 ...: a step to be timed repeatedly."""
    random, size = np.random.default_rng(0), load.context + load.nodes
    items = []
    for session in range(load.sessions):
        slots = range(session * size, (session + 1) * size)
        parents = random_tree(load.nodes, random)
        tokens = ints(random.integers(vocab_size, size=load.nodes).tolist())
        own = replace(sampling, seed=session)
        items.append(item_of(session, tokens, slots[: load.context], slots[load.context :], parents, own))
    return StepPlan(tuple(items))


def slots_of(load: Load) -> int:
    """Return the KV slots that `load_plan` names."""
    return load.sessions * (load.context + load.nodes)
