"""Law 3 on the bookkeeping alone, over a memory that forgets nothing."""

from __future__ import annotations

from common.llama.runtime import TO_THE_END
from edge_client.draft.batch_plan import BatchPlan, DraftNode, EngineSurprise
from edge_client.draft.branches import Branches, Sequences
from tests import wording
from tests.edge_client.draft.tree_world import check_branches, check_sequences

TRUNK = 0


class CellMemory:
    """Positions that each sequence holds, as llama.cpp's cells would."""

    def __init__(self, num_sequences: int, refuses: bool = False) -> None:
        self.cells: list[set[int]] = [set() for _ in range(num_sequences)]
        self.num_calls = 0
        self._refuses = refuses

    def seq_copy(self, source: int, destination: int, start: int, stop: int) -> None:
        self.num_calls += 1
        self.cells[destination] |= {place for place in self.cells[source] if start <= place < stop}

    def seq_remove(self, sequence: int, start: int, stop: int = TO_THE_END) -> bool:
        assert stop == TO_THE_END
        self.num_calls += 1
        self.cells[sequence] = {place for place in self.cells[sequence] if place < start}
        return not self._refuses


class World:
    """A tip at position 3 whose text is evaluated, and nodes below it by name."""

    def __init__(self, num_sequences: int = 6, refuses: bool = False) -> None:
        self.memory = CellMemory(num_sequences, refuses)
        self.sequences = Sequences(self.memory, 1, num_sequences)
        self.branches = Branches(self.memory, self.sequences, TRUNK)
        self.tip = DraftNode(0, None, 9, 3, TRUNK)
        self.memory.cells[TRUNK] = {0, 1, 2, 3}
        self.branches.trunk_length = 4

    def grow(self, *edges: tuple[int, int]) -> BatchPlan:
        """Evaluate nodes (parent, id) in one batch."""
        plan = BatchPlan()
        for parent_id, node_id in edges:
            parent = self.branches.nodes.get(parent_id, self.tip)
            node = DraftNode(node_id, parent, 100 + node_id, parent.position + 1)
            self.branches.nodes[node_id] = node
            self.branches.place(node, plan)
        for row, sequence in enumerate(plan.sequences):
            for holder in [sequence, *plan.shared.get(row, [])]:
                assert self.memory.cells[holder] == set(range(plan.positions[row])), "not consecutive"
                self.memory.cells[holder].add(plan.positions[row])
        for node in filter(None, plan.nodes):
            node.row = -1
        self.check()
        return plan

    def reroot(self, committed: tuple[int, ...], dead: tuple[int, ...]) -> None:
        if committed:
            position = self.tip.position + len(committed)
            node = self.branches.commit(committed)
            self.tip = node or DraftNode(committed[-1], None, 0, position)
            self.tip.parent, self.tip.sequence = None, TRUNK
        self.branches.prune(dead, self.tip)
        self.check()

    def check(self) -> None:
        check_sequences(self.sequences)
        check_branches(self.branches, self.tip)
        for branch, head in self.branches.heads.items():
            assert self.memory.cells[branch] == set(range(head.position + 1))
        for branch in self.branches.free:
            assert self.memory.cells[branch] == set(range(self.branches.shared_length[branch]))
        assert self.memory.cells[TRUNK] == set(range(self.branches.trunk_length))


def test_a_chain_stays_in_one_sequence_and_a_second_child_forks() -> None:
    world = World()
    assert world.grow((0, 1), (1, 2)).sequences == [1, 1]
    assert world.grow((2, 3)).sequences == [1]
    assert world.grow((1, 4)).sequences == [2]
    assert set(world.branches.heads) == {1, 2}


def test_a_row_with_several_children_in_the_batch_is_in_all_their_sequences() -> None:
    plan = World().grow((0, 1), (1, 2), (1, 3), (3, 4), (3, 5))
    assert plan.sequences == [1, 1, 2, 2, 3]
    assert plan.shared == {0: [2, 3], 2: [3]}


def test_extending_a_branch_asks_llama_for_nothing() -> None:
    world = World()
    world.grow((0, 1), (0, 2))
    before = world.memory.num_calls
    world.grow((1, 3), (2, 4))
    assert world.memory.num_calls == before


def test_a_commit_moves_cells_to_the_trunk_and_frees_the_rest() -> None:
    world = World()
    world.grow((0, 1), (0, 2), (1, 3), (1, 4), (3, 5))
    world.reroot((1, 3), (2, 4))
    assert world.branches.trunk_length == 6
    assert list(world.branches.nodes) == [5]
    assert len(world.branches.heads) == 1


def test_a_live_parent_keeps_one_branch_when_children_die() -> None:
    world = World()
    world.grow((0, 1), (1, 2), (1, 3))
    world.reroot((), (2,))
    world.grow((1, 4), (3, 5))
    assert len(world.branches.heads) == 2
    world.reroot((), (3, 4, 5))
    assert [head.id for head in world.branches.heads.values()] == [1]
    world.grow((1, 6))


def test_what_hangs_below_a_forgotten_node_is_forgotten_too() -> None:
    world = World()
    world.grow((0, 1), (1, 2), (2, 3))
    world.reroot((), (1,))
    assert not world.branches.nodes
    assert not world.branches.heads


def test_a_freed_branch_keeps_the_trunk_so_that_a_fork_copies_only_what_is_new() -> None:
    world = World(num_sequences=2)
    world.grow((0, 1))
    world.reroot((1,), ())
    assert world.branches.shared_length[1] == 4
    world.grow((1, 2))
    world.reroot((2,), ())
    world.grow((2, 3))


def test_no_free_sequence_is_a_surprise() -> None:
    world = World(num_sequences=2)
    world.grow((0, 1))
    with wording.raises(EngineSurprise):
        world.grow((0, 2))


def test_a_refused_removal_is_a_surprise() -> None:
    world = World(refuses=True)
    world.grow((0, 1))
    with wording.raises(EngineSurprise):
        world.reroot((), (1,))
