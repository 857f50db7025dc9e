"""Random trees and what every node of them must be answered: its path evaluated from scratch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest

from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion, Reroot
from edge_client.draft.batch_plan import NO_SEQUENCE, NOT_PLANNED, DraftNode
from edge_client.draft.branches import Branches, Sequences
from edge_client.draft.group import DraftGroup, MemberDrafter
from edge_client.draft.state_branches import StateBranches

TOLERANCE = 2e-4  # logits up to about 12; F32 KV, flash attention off, so only the order of sums differs
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, seed=21, top_p=0.95)


def exact_settings(model: Path, n_ctx: int = 512, n_seq_max: int = 12) -> LlamaSettings:
    return LlamaSettings(
        str(model), n_ctx=n_ctx, n_seq_max=n_seq_max, n_batch=max(32, n_seq_max), max_rows=12, threads=1,
        exact=True,
    )  # fmt: skip


def from_scratch(oracle: MemberDrafter, tokens: list[int], sampling: SamplingParams) -> Expansion:
    """Candidates after `tokens`, evaluated without anything from before."""
    oracle.start([0], 1, sampling)  # a text that shares nothing: no prefix is reused
    oracle.start(tokens, 1, sampling)
    return oracle.expand([DraftRow(1, None, tokens[-1], len(tokens) - 1)])[0]


def assert_same(found: Expansion, expected: Expansion, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(found.scores, expected.scores, atol=tolerance)
    for place, (token, wanted) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        if token != wanted:  # near-ties may change places
            assert wanted in found.tokens[max(0, place - 1) : place + 2] or place == len(found.tokens) - 1


def check_sequences(sequences: Sequences) -> None:
    """Law 3: every sequence is idle, free or live, once."""
    held = [branch for user in sequences.users for branch in (*user.heads, *user.free)]
    assert sorted([*sequences.idle, *held]) == list(range(sequences.first, sequences.first + sequences.count))


def check_branches(branches: Branches, tip: DraftNode) -> None:
    """Law 3: every evaluated live node is in its sequence, and no branch ends at a dead one."""
    if isinstance(branches, StateBranches):
        assert list(branches.shared_length) == branches.free
        assert all(head.sequence == branch for branch, head in branches.heads.items())
    else:
        assert set(branches.shared_length) == {*branches.free, *branches.heads}
    assert all(branches.nodes.get(head.id) is head for head in branches.heads.values())
    held = {branch: set(map(id, head.path())) for branch, head in branches.heads.items()}
    for node in branches.nodes.values():
        parent = node.parent
        assert parent is tip or (parent is not None and branches.nodes.get(parent.id) is parent), (
            "hangs nowhere"
        )
        assert node.row == NOT_PLANNED
        assert node.sequence == NO_SEQUENCE or id(node) in held[node.sequence]


def check_group(group: DraftGroup) -> None:
    """Law 3: no sequence, cell or node leaks, and llama.cpp has the cells that we count."""
    check_sequences(group._sequences)
    lengths = dict.fromkeys(group._sequences.idle, 0)
    for member in group.members:
        branches = member.session._branches
        check_branches(branches, member.session._tip)
        lengths |= {branch: head.position + 1 for branch, head in branches.heads.items()}
        lengths |= {branch: branches.shared_length[branch] for branch in branches.free}
        lengths[branches.trunk] = branches.trunk_length
    for sequence, length in lengths.items():
        first = length - 1 if group._runtime.is_recurrent else min(0, length - 1)
        assert group._runtime.seq_span(sequence) == (first, length - 1)


@dataclass
class TreeWorld:
    """Grows and prunes at random, holding its own picture of the text below the tip."""

    drafter: MemberDrafter
    chance: Random
    sampling: SamplingParams = GREEDY
    text: list[int] = field(default_factory=list)
    tip: int = 0
    num_ids: int = 0
    num_tokens: int = 300  # of the vocabulary
    paths: dict[int, tuple[int, ...]] = field(default_factory=dict)  # node id -> ids from below the tip to it
    tokens: dict[int, int] = field(default_factory=dict)
    expanded: dict[int, Expansion] = field(default_factory=dict)

    def start(self, text: list[int]) -> None:
        self.text, self.tip = list(text), self.new_id()
        self.paths, self.tokens, self.expanded = {}, {}, {}
        self.drafter.start(self.text, self.tip, self.sampling)
        check_group(self.drafter.group)

    def begin(self, text: list[int]) -> None:
        """Start, and evaluate the tip."""
        self.start(text)
        self.expand([self.tip])

    def new_id(self) -> int:
        self.num_ids += 1
        return self.num_ids

    def text_of(self, node: int) -> list[int]:
        return self.text + [self.tokens[each] for each in self.paths.get(node, ())]

    def row(self, node: int) -> DraftRow:
        if node == self.tip:
            return DraftRow(node, None, self.text[-1], len(self.text) - 1)
        path = self.paths[node]
        parent = path[-2] if len(path) > 1 else self.tip
        return DraftRow(node, parent, self.tokens[node], len(self.text) + len(path) - 1)

    def expand(self, nodes: list[int]) -> list[Expansion]:
        """Evaluate nodes; each of their best candidates may become a child later."""
        found = self.drafter.expand([self.row(node) for node in nodes])
        check_group(self.drafter.group)
        self.learn(nodes, found)
        return found

    def learn(self, nodes: list[int], found: Sequence[Expansion]) -> None:
        """These nodes were evaluated."""
        assert [each.id for each in found] == nodes
        self.expanded |= dict(zip(nodes, found, strict=True))

    def child(self, parent: int, token: int) -> int:
        node = self.new_id()
        self.paths[node] = (*self.paths.get(parent, ()), node)
        self.tokens[node] = token
        return node

    def random_rows(self) -> list[int]:
        """New nodes below random ones: expanded, or standing earlier in the same request."""
        if self.tip not in self.expanded:
            return [self.tip]
        rows: list[int] = []
        for _ in range(self.chance.randint(1, 6)):
            parent = self.chance.choice([*self.expanded, *rows])
            rows.append(self.child(parent, self.chance.randrange(self.num_tokens)))
        return rows

    def reroot(self, committed: list[tuple[int, int]]) -> None:
        """Commit (id, token) and drop all that does not hang below the new tip."""
        line = tuple(node for node, _ in committed)
        self.text += [token for _, token in committed]
        dead = [node for node, path in self.paths.items() if path[: len(line)] != line and node not in line]
        self.paths = {
            node: path[len(line) :]
            for node, path in self.paths.items()
            if path[: len(line)] == line and len(path) > len(line)
        }
        self.tip = line[-1] if line else self.tip
        self.tokens = {node: token for node, token in self.tokens.items() if node in self.paths}
        self.expanded = {
            node: found for node, found in self.expanded.items() if node in self.paths or node == self.tip
        }
        self.drafter.reroot(Reroot(tuple(committed), tuple(dead)))
        check_group(self.drafter.group)

    def random_commit(self) -> list[tuple[int, int]]:
        """Down a live path, then perhaps tokens that the verifier made itself."""
        paths = list(self.paths.values())
        path = self.chance.choice(paths) if paths and self.chance.random() < 0.8 else ()
        path = path[: self.chance.randint(1, len(path))] if path else ()
        committed = [(node, self.tokens[node]) for node in path]
        num_made = self.chance.randint(0 if committed else 1, 2)
        return committed + [(self.new_id(), self.chance.randrange(self.num_tokens)) for _ in range(num_made)]

    def random_pruning(self) -> None:
        """Give up one subtree without moving the tip, as a policy short of credit would."""
        root = self.chance.choice(list(self.paths))
        dead = [node for node, path in self.paths.items() if root in path]
        for node in dead:
            del self.paths[node], self.tokens[node]
            self.expanded.pop(node, None)
        self.drafter.reroot(Reroot((), tuple(dead)))
        check_group(self.drafter.group)


def count_decodes(runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count calls of llama_decode from here on."""
    codes: list[int] = []
    decode = runtime.decode

    def counted() -> int:
        codes.append(decode())
        return codes[-1]

    monkeypatch.setattr(runtime, "decode", counted)
    return lambda: len(codes)


def fail_decodes(runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> None:
    """Let the next calls of llama_decode return `code` without doing anything."""
    left = [times]
    decode = runtime.decode

    def failing() -> int:
        left[0] -= 1
        return code if left[0] >= 0 else decode()

    monkeypatch.setattr(runtime, "decode", failing)


def num_resyncs(drafter: MemberDrafter) -> int:
    return drafter.group.members[0].session.num_resyncs


def random_tree(
    drafter: MemberDrafter, oracle: MemberDrafter, seed: int, sampling: SamplingParams
) -> TreeWorld:
    """Draft, prune and commit at random, and hold expansions against each path from scratch."""
    world = TreeWorld(drafter, Random(seed), sampling)
    world.start([world.chance.randrange(300) for _ in range(world.chance.randint(1, 70))])
    for _ in range(40):
        for node, found in zip(rows := world.random_rows(), world.expand(rows), strict=True):
            if world.chance.random() < 0.4:
                assert_same(found, from_scratch(oracle, world.text_of(node), sampling))
        if world.paths and world.chance.random() < 0.2:
            world.random_pruning()
        if world.chance.random() < 0.4:
            world.reroot(world.random_commit())
    return world
