"""Sessions that share a context are each answered as if they were alone in it, and each fails alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.errors import CapacityError, ForerunError, LocalError, UserError
from common.llama.runtime import ByteArray, LlamaRuntime
from common.mask_time import SHARE
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion, Reroot, StartDrafter
from edge_client.draft.group import ALONE, BATCH_TIME, DraftGroup, MemberAnswer, MemberDrafter, fair_shares
from tests import wording
from tests.edge_client.draft.tree_world import (
    GREEDY,
    SAMPLED,
    TOLERANCE,
    TreeWorld,
    assert_same,
    check_group,
    count_decodes,
    exact_settings,
    fail_decodes,
    from_scratch,
    num_resyncs,
)

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[LlamaRuntime]:
    with LlamaRuntime(exact_settings(model, n_ctx=1024, n_seq_max=64)) as loaded:
        yield loaded


@pytest.fixture
def runtime(shared: LlamaRuntime) -> LlamaRuntime:
    shared.clear()
    return shared


class Crowd:
    """Sessions that ask, commit, prune, end and begin as they like, while the group takes its turns."""

    def __init__(self, group: DraftGroup, chance: Random) -> None:
        self.group = group
        self.chance = chance
        self.worlds = [
            TreeWorld(drafter, Random(chance.random()), GREEDY if drafter.index % 2 else SAMPLED)
            for drafter in drafters(group)
        ]
        self.under_way: dict[int, list[int]] = {}  # member -> nodes that it asked about
        self.texts: list[list[int]] = []  # that sessions had; new ones may begin likewise
        self.num_failed = 0

    def begin(self, place: int, longest: int) -> None:
        """A new text, which may begin as another did."""
        chance, world = self.chance, self.worlds[place]
        text = [chance.randrange(world.num_tokens) for _ in range(chance.randint(1, longest))]
        if self.texts and chance.random() < 0.6:
            before = chance.choice(self.texts)
            text = [*before[: chance.randint(1, len(before))], *text][:longest]
        world.start(text)
        self.texts = [*self.texts[-7:], text]

    def act(self, place: int, longest: int) -> None:
        """One input of a session that has no draft step under way."""
        chance, world = self.chance, self.worlds[place]
        choice = chance.random()
        if not world.text or len(world.text) > longest or choice < 0.05:
            self.group.release(place)
            self.begin(place, longest)
        elif choice < 0.25 and world.paths:
            world.random_pruning()
        elif choice < 0.5:
            world.reroot(world.random_commit())
        else:
            rows = self.under_way[place] = world.random_rows()
            self.group.ask(place, [world.row(node) for node in rows])

    def turn(self, check: Callable[[TreeWorld, int, Expansion], None]) -> None:
        """One turn of the group; a session that failed begins anew."""
        for answer in self.group.turn():
            nodes, world = self.under_way.pop(answer.member), self.worlds[answer.member]
            if isinstance(answer.outcome, ForerunError):
                assert isinstance(answer.outcome, CapacityError)
                self.num_failed += 1
                world.text = []
                continue
            world.learn(nodes, answer.outcome)
            for node, found in zip(nodes, answer.outcome, strict=True):
                if self.chance.random() < 0.25:
                    check(world, node, found)
        check_group(self.group)

    def run(self, num_steps: int, longest: int, check: Callable[[TreeWorld, int, Expansion], None]) -> None:
        for _ in range(num_steps):
            for place in range(len(self.worlds)):
                if place not in self.under_way and self.chance.random() < 0.7:
                    self.act(place, longest)
            self.turn(check)
        while self.group.has_work:
            self.turn(check)


def checker(oracle: MemberDrafter) -> Callable[[TreeWorld, int, Expansion], None]:
    """Holds an expansion against its path evaluated from scratch in a context of its own."""
    return lambda world, node, found: assert_same(
        found, from_scratch(oracle, world.text_of(node), world.sampling)
    )


def group_on(runtime: LlamaRuntime, size: int, clock: Callable[[], float] = lambda: 0.0) -> DraftGroup:
    """On a model that takes no time, unless the clock says otherwise."""

    class CheckedGroup(DraftGroup):
        def turn(self) -> list[MemberAnswer]:
            answers = super().turn()
            check_group(self)
            return answers

    return CheckedGroup(runtime, size, clock=clock)


class SlowModel:
    """A clock by which each token of a batch takes so many seconds."""

    def __init__(self, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch, per_token: float) -> None:
        self.now = 0.0
        self.batches: list[int] = []  # tokens of each
        decode = runtime.decode

        def slow() -> int:
            self.batches.append(runtime.batch.struct.n_tokens)
            self.now += per_token * self.batches[-1]
            return decode()

        monkeypatch.setattr(runtime, "decode", slow)

    def __call__(self) -> float:
        return self.now


@dataclass
class DearMatcher:
    """Allows every token, and takes 20 ms for each mask."""

    clock: SlowModel
    width: int

    def allowed(self, path: NDArray[np.int32]) -> NDArray[np.bool_]:
        self.clock.now += 0.020
        return np.ones(self.width, np.bool_)


def drafters(group: DraftGroup) -> list[MemberDrafter]:
    """Its members; they keep answers in one place, as any of them may take a turn."""
    answers: dict[int, MemberAnswer] = {}
    return [MemberDrafter(group, member.index, answers) for member in group.members]


def worlds_on(group: DraftGroup) -> list[TreeWorld]:
    return [TreeWorld(drafter, Random(drafter.index)) for drafter in drafters(group)]


@pytest.mark.parametrize(
    ("size", "n_ctx", "n_seq_max"),
    [(8, 1024, 64), (3, 512, 64), (8, 1024, 16), (5, 256, 32), (2, 256, 4), (1, 256, 2)],
)
def test_interleaved_sessions_are_answered_as_if_alone(
    model: Path, oracle: MemberDrafter, size: int, n_ctx: int, n_seq_max: int
) -> None:
    with LlamaRuntime(exact_settings(model, n_ctx, n_seq_max)) as runtime:
        group = group_on(runtime, size)
        crowd = Crowd(group, Random(size))
        crowd.run(90, 70, checker(oracle))
        for place in range(size):
            group.release(place)
        check_group(group)
        assert n_ctx < 512 or crowd.num_failed == 0
        assert sum(member.num_rows for member in group.members) > 20 * size
        for member in group.members:
            member.session.clear()
        check_group(group)
        assert all(runtime.seq_span(sequence) == (-1, -1) for sequence in range(n_seq_max))


def ask(group: DraftGroup, worlds: list[TreeWorld], asked: list[list[int]]) -> None:
    for place, (world, nodes) in enumerate(zip(worlds, asked, strict=True)):
        group.ask(place, [world.row(node) for node in nodes])


def check_answers(
    group: DraftGroup, worlds: list[TreeWorld], asked: list[list[int]], oracle: MemberDrafter
) -> None:
    """All are answered, as if each were alone."""
    answers = []
    while group.has_work:
        answers += group.turn()
    assert sorted(answer.member for answer in answers) == list(range(len(worlds)))
    for answer in answers:
        assert not isinstance(answer.outcome, ForerunError)
        for node, found in zip(asked[answer.member], answer.outcome, strict=True):
            assert_same(found, from_scratch(oracle, worlds[answer.member].text_of(node), GREEDY))


def test_all_that_wait_are_evaluated_in_one_decode(
    runtime: LlamaRuntime, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_on(runtime, 4)
    worlds = worlds_on(group)
    for world in worlds:
        world.begin([world.chance.randrange(300) for _ in range(20)])
    asked = [[world.child(world.tip, token) for token in (3, 4, 5)] for world in worlds]
    ask(group, worlds, asked)
    num_decodes = count_decodes(runtime, monkeypatch)
    check_answers(group, worlds, asked, oracle)
    assert num_decodes() == 1


def test_a_long_prompt_holds_nobody_up(runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that drafts is answered in every turn, and has two thirds of the time."""
    clock = SlowModel(runtime, monkeypatch, per_token=0.010)
    group = group_on(runtime, 2, clock)
    group.measured({1: 0.010, 2: 0.020})
    slow, quick = worlds_on(group)
    quick.begin(list(range(10)))
    slow.start([place % 300 for place in range(200)])
    group.ask(0, [slow.row(slow.tip)])
    began, steps = clock.now, 0
    while group.members[0].asked is not None:
        node = quick.child(quick.tip, steps % 300)
        group.ask(1, [quick.row(node)])
        turn_began = clock.now
        assert 1 in [answer.member for answer in group.turn()], "every turn evaluates what is asked"
        assert clock.now - turn_began <= BATCH_TIME + 0.011
        quick.drafter.reroot(Reroot((), (node,)))
        quick.paths, quick.tokens = {}, {}
        steps += 1
    assert steps * 0.010 >= 0.6 * (clock.now - began)


@pytest.mark.parametrize("grammars", ["one", "another each"])
def test_dear_masks_of_others_leave_a_session_its_pace(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch, grammars: str
) -> None:
    clock = SlowModel(runtime, monkeypatch, per_token=0.003)
    group = group_on(runtime, 5, clock)
    monkeypatch.setattr(runtime.grammars, "matcher", lambda grammar: DearMatcher(clock, runtime.num_vocab))
    plain, *dear = drafters(group)
    for drafter in (plain, *dear):
        grammar = "" if drafter is plain else "dear" if grammars == "one" else f"dear {drafter.index}"
        drafter.start([1, 2, 3], 0, replace(GREEDY, grammar=grammar))
        group.ask(drafter.index, [DraftRow(0, None, 3, 2)])
    number, times, answered = 0, list[float](), set[int]()
    while clock.now < 10.0:
        for member in group.members:
            if member.asked is None:
                rows = 1 if member.index == plain.index else 4
                group.reroot(member.index, Reroot((), tuple(range(max(1, number - 40), number + 1))))
                ids = range(number + 1, number + 1 + rows)
                number += rows
                group.ask(member.index, [DraftRow(each, 0, each % 300, 3) for each in ids])
        began = clock.now
        answers = group.turn()
        assert plain.index in [answer.member for answer in answers], "it never waits for a turn"
        answered |= {answer.member for answer in answers if answer.reading.has_dear_masks}
        times.append(clock.now - began)
    assert sum(time > 0.010 for time in times) <= 0.05 * len(times)
    assert sum(time - 0.003 for time in times) <= (SHARE + 0.02) * clock.now
    assert answered == {drafter.index for drafter in dear}, "they wait, and they do get on"

    group.release(plain.index)
    turns, began = 0, clock.now
    while clock.now < began + 2.0:
        turns += 1
        group.turn()
        clock.now += group.pause or 0.0
        for drafter in dear:
            if group.members[drafter.index].asked is None:
                number += 1
                group.ask(drafter.index, [DraftRow(number, 0, number % 300, 3)])
    assert turns < 20, "between two of them nothing is to be done"


def test_dear_masks_of_a_lone_session_wait_for_nothing(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SlowModel(runtime, monkeypatch, per_token=0.003)
    group = group_on(runtime, 2, clock)
    monkeypatch.setattr(runtime.grammars, "matcher", lambda grammar: DearMatcher(clock, runtime.num_vocab))
    (lone, other) = drafters(group)
    lone.start([1, 2, 3], 0, replace(GREEDY, grammar="dear"))
    for first in range(0, 40, 4):
        rows = [DraftRow(0, None, 3, 2)] if not first else []
        group.ask(lone.index, rows or [DraftRow(first + each, 0, first + each, 3) for each in range(4)])
        assert group.pause == 0.0
        (answer,) = group.turn()
        assert not answer.reading.has_dear_masks
    other.start([1, 2, 3], 0, GREEDY)
    group.ask(lone.index, [DraftRow(50, 0, 50, 3)])
    group.ask(other.index, [DraftRow(0, None, 3, 2)])
    assert {answer.member for answer in group.turn()} == {lone.index, other.index}, "no debt"


def test_reading_uses_the_time_in_which_nobody_drafts(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that has a text and rests asks for nothing: after a moment the reader goes on."""
    clock = SlowModel(runtime, monkeypatch, per_token=0.010)
    group = group_on(runtime, 2, clock)
    group.measured({1: 0.010, 2: 0.020})
    slow, resting = worlds_on(group)
    resting.begin(list(range(10)))
    slow.start([place % 300 for place in range(100)])
    group.ask(0, [slow.row(slow.tip)])
    began = clock.now
    while group.has_work:
        group.turn()
        clock.now += group.pause or 0.0
    assert clock.now - began <= 100 * 0.010 + 0.011


@pytest.mark.parametrize(
    ("beside", "longest"),
    [("nothing", ALONE * 0.005), ("a text", BATCH_TIME), ("a text of another group", BATCH_TIME / 2)],
)
def test_a_batch_of_a_prompt_is_short_where_another_session_has_a_text(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch, beside: str, longest: float
) -> None:
    clock = SlowModel(runtime, monkeypatch, per_token=0.005)
    group, by_turns = group_on(runtime, 2, clock), group_on(runtime, 2, clock)
    group.beside = by_turns.beside = [group, by_turns]
    world, other = worlds_on(group)
    if beside == "a text":
        other.start([1, 2])
    elif beside == "a text of another group":
        worlds_on(by_turns)[0].start([1, 2])
    world.start(list(range(200)))
    assert not group.has_work, "what nobody asks about is not read"
    world.expand([world.tip])
    first, *batches = clock.batches
    assert first <= runtime.n_batch
    assert sum(batches) + first == 200
    assert 0.5 * longest < max(batches) * 0.005 <= longest


def test_a_prompt_is_read_in_several_tokens_where_one_row_takes_long(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_on(runtime, 2, SlowModel(runtime, monkeypatch, per_token=0.0))
    group.measured({1: 0.2, 8: 0.25, 32: 1.0})
    world, other = worlds_on(group)
    other.start([1, 2])
    world.start(list(range(64)))
    group.ask(0, [world.row(world.tip)])
    group.turn()
    assert group.members[0].session.num_held == 8


def test_a_lone_session_may_have_all_branches_and_gives_them_up(runtime: LlamaRuntime) -> None:
    group = group_on(runtime, 8)
    worlds = worlds_on(group)
    rich, *others = worlds
    rich.begin([1, 2, 3])
    all_branches = runtime.n_seq_max - 8
    rich.expand([rich.child(rich.tip, token) for token in range(all_branches)])
    assert group.members[0].session.num_branches == all_branches
    for world in others:
        world.begin([4, 5, 6])
        world.expand([world.child(world.tip, token) for token in range(6)])
    rich.expand([rich.child(node, 7) for node in list(rich.paths)[:3]])


def test_a_prefix_that_another_session_holds_is_shared(
    runtime: LlamaRuntime, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_on(runtime, 2)
    first, second = worlds_on(group)
    first.begin(list(range(200)))
    num_decodes = count_decodes(runtime, monkeypatch)
    second.start([*range(190), 7, 8])
    (found,) = second.expand([second.tip])
    assert num_decodes() <= 2
    assert_same(found, from_scratch(oracle, second.text, GREEDY))
    group.release(0)
    first.start([5, 6])
    (found,) = second.expand([second.child(second.tip, 3)])
    assert_same(found, from_scratch(oracle, [*second.text, 3], GREEDY))


def test_texts_that_take_turns_are_read_once_and_hold_no_cells_of_each_other(
    runtime: LlamaRuntime, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_on(runtime, 2)
    worlds = worlds_on(group)
    for place, world in enumerate(worlds):
        world.begin([place + 1] * 300)
        group.release(place)
    num_decodes = count_decodes(runtime, monkeypatch)
    for turn in (1, 2, 3):
        for place, other in enumerate(reversed(worlds)):
            other.begin([place + 1] * (300 + 2 * turn))  # in the seat of the other text
            assert runtime.seq_span(place) == (-1, -1)
            stem = other.child(other.tip, 7)
            (found,) = other.expand([stem])
            assert_same(found, from_scratch(oracle, other.text_of(stem), GREEDY))
            group.release(1 - place)
    assert num_decodes() <= 3 * 2 * 3


def test_kept_texts_go_first_and_the_oldest_of_them_is_forgotten_first(model: Path) -> None:
    with LlamaRuntime(exact_settings(model, 256, 16)) as runtime:
        group = group_on(runtime, 4)
        worlds = worlds_on(group)
        for place, world in enumerate(worlds[:3]):
            world.begin([place + 1] * 60)
        group.release(1)
        group.release(0)
        worlds[3].begin([9] * 140)
        held = [member.session.num_held for member in group.members]
        assert held == [0, 0, 60, 140]
        assert [each.tokens[0] for each in group.parked] == [2, 1]
        group.release(3)
        worlds[0].begin([5])
        assert [each.tokens[0] for each in group.parked] == [1, 9]
        assert sum(member.session.num_resyncs for member in group.members) == 0


@pytest.mark.parametrize("window", [0, 100, 200])
def test_the_beginning_of_a_parked_text_longer_than_a_sliding_window_is_read_again(
    model: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlamaRuntime(exact_settings(model, 512, 16)) as runtime:
        runtime.window = window
        group = group_on(runtime, 2)
        first, second = worlds_on(group)
        first.begin([1] * 150)
        group.release(0)
        second.begin([2] * 90)
        restored = list[int]()

        def restore(sequence: int, state: ByteArray) -> bool:
            restored.append(sequence)
            return LlamaRuntime.seq_restore(runtime, sequence, state)

        monkeypatch.setattr(runtime, "seq_restore", restore)
        first.begin([1] * 140)
        assert bool(restored) is (window != 100)


def test_a_session_that_does_not_fit_fails_alone(model: Path, oracle: MemberDrafter) -> None:
    with LlamaRuntime(exact_settings(model, 256, 16)) as runtime:
        group = group_on(runtime, 3)
        first, second, third = worlds_on(group)
        first.begin([1] * 100)
        second.begin([2] * 100)
        third.start([3] * 100)
        group.ask(2, [third.row(third.tip)])
        stems = [first.child(first.tip, token) for token in (3, 4)]
        for node, found in zip(stems, first.expand(stems), strict=True):
            assert_same(found, from_scratch(oracle, first.text_of(node), GREEDY))
        with wording.raises(CapacityError):
            finish(group)
        second.expand([second.child(second.tip, 7)])
        with wording.raises(CapacityError):
            third.expand([third.tip])
        group.release(1)
        third.begin([3] * 100)


def finish(group: DraftGroup) -> None:
    """Let the group go on until the only session that asks is answered."""
    while not (answers := group.turn()):
        pass
    (answer,) = answers
    if isinstance(answer.outcome, ForerunError):
        raise answer.outcome


def test_a_defect_of_one_session_ends_it_alone_until_its_next_text(runtime: LlamaRuntime) -> None:
    group = group_on(runtime, 2)
    first, second = worlds_on(group)
    for world in (first, second):
        world.begin([1, 2, 3])
    for _ in range(2):
        with wording.raises(LocalError):
            first.drafter.expand([DraftRow(88, 77, 4, 5)])
    second.expand([second.child(second.tip, 3)])
    with wording.raises(LocalError):
        first.drafter.start([], 9, GREEDY)
    with wording.raises(LocalError):
        first.drafter.expand([])
    first.begin([1, 2])


def test_more_sessions_than_sequences_are_refused(runtime: LlamaRuntime) -> None:
    with wording.raises(UserError):
        group_on(runtime, 33)


@given(st.lists(st.integers(0, 20), max_size=10), st.integers(0, 60))
def test_shares_are_max_min_fair(wanted: list[int], total: int) -> None:
    shares = fair_shares(wanted, total)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(total, sum(wanted))
    for share, want in zip(shares, wanted, strict=True):
        assert share == want or share >= max(shares) - 1


# Expanding a tree equals evaluating each of its paths from scratch, whatever happened before.


def test_a_commit_of_server_made_tokens_is_evaluated_with_the_next_rows(
    drafter: MemberDrafter, runtime: LlamaRuntime, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TreeWorld(drafter, Random(1))
    world.begin(list(range(20)))
    assert drafter.reading.num_tokens == 19
    world.reroot([(world.new_id(), 50), (world.new_id(), 51)])
    num_decodes = count_decodes(runtime, monkeypatch)
    (found,) = world.expand([world.tip])
    assert num_decodes() == 1
    assert drafter.reading.num_tokens == 1
    assert drafter.reading.seconds > 0
    assert_same(found, from_scratch(oracle, world.text, GREEDY))


def test_a_full_context_makes_room_by_forgetting_branches(model: Path, oracle: MemberDrafter) -> None:
    with LlamaRuntime(exact_settings(model, n_ctx=256)) as small:
        drafter = MemberDrafter(DraftGroup(small, 1))
        world = TreeWorld(drafter, Random(3))
        world.begin(list(range(240)))
        nodes = [world.child(world.tip, token) for token in range(40)]
        for node in nodes:
            world.expand([node])
        assert_same(world.expanded[nodes[-1]], from_scratch(oracle, world.text_of(nodes[-1]), GREEDY))
        assert num_resyncs(drafter) > 0


def test_a_resync_that_fails_too_is_an_error_and_not_the_end(
    drafter: MemberDrafter, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TreeWorld(drafter, Random(2))
    world.start(list(range(50)))
    with monkeypatch.context() as broken:
        fail_decodes(runtime, broken, -3, 99)
        with wording.raises(LocalError):
            drafter.expand([world.row(world.tip)])
    world.begin(list(range(50)))


@pytest.mark.parametrize("tokens", [[], [300]])
def test_tokens_outside_the_vocabulary_are_refused(drafter: MemberDrafter, tokens: list[int]) -> None:
    with wording.raises(LocalError):
        drafter.start(tokens, 1, GREEDY)


def test_a_committed_token_that_was_drafted_otherwise_forgets_the_tree(
    drafter: MemberDrafter, oracle: MemberDrafter
) -> None:
    world = TreeWorld(drafter, Random(2))
    world.begin(list(range(30)))
    stem = world.child(world.tip, 3)
    world.expand([stem])
    drafter.reroot(Reroot(((stem, 4),), ()))
    check_group(drafter.group)
    (found,) = drafter.expand([DraftRow(stem, world.tip, 4, 30)])
    assert_same(found, from_scratch(oracle, [*range(30), 4], GREEDY))


@pytest.mark.parametrize("generated", [0, 4])
def test_text_that_is_there_is_penalised_as_text_that_came(drafter: MemberDrafter, generated: int) -> None:
    likely = tuple((token, 30.0) for token in (4, 5, 6))
    penalised = SamplingParams(presence_penalty=2.0, frequency_penalty=1.0, logit_bias=likely)
    prompt, text = [1, 2, 3], [4, 5, 4, 6]
    drafter.start(prompt, 1, penalised)
    drafter.reroot(Reroot(tuple(zip((5, 6, 7, 9), text, strict=True)), ()))
    tip = DraftRow(9, None, 6, 6)
    grown = drafter.expand([tip])
    drafter.group.begin(0, StartDrafter((*prompt, *text), 9, penalised, generated=generated))
    found = drafter.expand([tip])
    assert (found[0].scores == pytest.approx(grown[0].scores, abs=TOLERANCE)) is (generated == 4)
