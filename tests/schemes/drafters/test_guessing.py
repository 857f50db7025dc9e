"""The engine's own drafter: its guesses enter the tree, are counted, and are asked for where they pay."""

import math

import pytest

from cloud_verifier.core.effects import Reply
from cloud_verifier.core.engine_protocol import Followers, GuessPlan, GuessResult, TargetInfo
from cloud_verifier.core.scheduler import VerifyScheduler
from common.calibration import Calibration, Confidence, Prior
from common.messages import Commit, Wait
from common.tree import SpeculationTree
from schemes.drafters.guessing import LEAST, LEAST_FOLLOWED, SURE, Guessing, OwnGuesses, Wins, won_by_level
from tests.cloud_verifier.core.bench import PRINT, VOCAB, ask, chain, result_of

STEP, LEVEL = 0.030, 0.001  # seconds


def own(tree: SpeculationTree) -> OwnGuesses:
    """Guesses with honest scores: the logarithms of chances, and nothing beyond the list."""
    honest = Prior(Confidence(sharpness=1.0, rest=1e-6))
    return OwnGuesses(tree, Calibration(honest), last_position=400, wins=Wins(4))


def said(path: tuple[int, ...], *chances: float) -> Followers:
    """Tokens 5, 6, 7 ... with these chances, and fillers without any."""
    logs = [math.log(chance) for chance in (*chances, *[1e-9] * (5 - len(chances)))]
    return Followers(path, tuple(range(5, 5 + len(logs))), tuple(logs))


# In the tree


def test_guesses_hang_below_the_tip_and_unlikely_ones_are_left_out() -> None:
    tree = SpeculationTree([1])
    assert own(tree).take([said((), 0.7, 0.3), said((5,), 0.9, 0.1)]) == 4
    paths = {node.token: round(math.exp(tree.worth(node)), 2) for node in tree.speculative()}
    assert paths == {5: 0.63, 6: 0.07}  # by token: the lower level's come later
    tree.check_integrity()
    assert all(tree.worth(node) >= LEAST for node in tree.speculative())


def test_a_node_that_the_edge_proposed_is_guessed_and_not_made() -> None:
    tree = SpeculationTree([1])
    sent = tree.grow(tree.tip, 5, -1.0)
    sent.wire_id = 1
    guesses = own(tree)
    guesses.take([said((), 0.7, 0.3)])
    other = tree.live[tree.tip.children[6]]
    assert (guesses.proposed(sent), guesses.made(sent)) == (True, False)
    assert (guesses.proposed(other), guesses.made(other)) == (True, True)
    assert sent.logprob == pytest.approx(math.log(0.7), abs=0.01)  # who is surer counts


def test_a_node_that_the_edge_proposes_while_the_drafter_runs_would_have_come_too_late() -> None:
    tree = SpeculationTree([1])
    guesses = own(tree)
    early = tree.grow(tree.tip, 6, -1.0)
    early.wire_id = 1
    guesses.ask(1, 0)
    late = tree.grow(tree.tip, 5, -1.0)
    late.wire_id = 2
    guesses.take([said((), 0.7, 0.3)])
    assert (guesses.made(late), guesses.made(early)) == (True, False)


def test_the_drafter_is_calibrated_by_what_the_target_writes() -> None:
    tree = SpeculationTree([1])
    guesses = own(tree)
    for _ in range(60):  # it claims nine in ten and is wrong each time
        guesses.take([said((), 0.9, 0.1)])
        guesses.learn(tree.tip.id, 6)
        tree.advance(6)
    assert guesses.calibration.num_observed == 60
    assert guesses.calibration.confidence.sharpness < 0.5


# What a step won by them


@pytest.mark.parametrize(
    ("made", "won"),
    [
        ("....", {}),
        ("x...", {0: 3}),  # only the first was the drafter's: without it one token, not four
        ("xxx.", {0: 1, 1: 1, 2: 1}),
        ("..x.", {2: 1}),  # two nodes of the edge, then one of its own
        ("x.x..", {0: 2, 2: 2}),
        ("...x", {}),  # the last token was not evaluated
        ("x", {}),
    ],
)
def test_a_level_wins_the_tokens_that_end_with_it(made: str, won: dict[int, int]) -> None:
    assert won_by_level([mark == "x" for mark in made]) == won


# Between steps


class GuessBench:
    """A scheduler whose engine counts, and whose drafter knows that."""

    def __init__(
        self, *, right: bool = True, level: float = LEVEL, depth: int = 4, row: float = 0.0, every: int = 1
    ) -> None:
        """A row after an item's first adds `row` seconds. A guess is right if `every` divides the token."""
        info = TargetInfo("counter", VOCAB, 500, 4000, (), PRINT, guess_depth=depth)
        self.scheduler = VerifyScheduler(info)
        self.right, self.level, self.row, self.every = right, level, row, every
        self.now = 0.0
        self.depths: list[int] = []  # of guesses before each step
        self.commits: list[Commit] = []

    @property
    def drafter(self) -> Guessing:
        assert isinstance(self.scheduler.drafter, Guessing)
        return self.scheduler.drafter

    def open(self, key: int = 1, prompt: tuple[int, ...] = (1,), max_tokens: int = 400) -> None:
        self.scheduler.on_open(key, ask(prompt, max_tokens=max_tokens), self.now)

    def run(self, steps: int) -> None:
        """Let that many steps pass, or a few more which the engine may begin without a decision."""
        until = len(self.depths) + steps
        while len(self.depths) < until:
            guesses = self.scheduler.next_guess(self.now)
            self.depths.append(max((item.depth for item in guesses.items), default=0) if guesses else 0)
            if guesses is not None:
                assert self.scheduler.next_step(self.now) is None, "the drafter is at work"
                self.now += self.level * self.depths[-1]
                self.drafter.on_guessed(self.guess(guesses), self.now)
            plan = self.scheduler.next_step(self.now)
            assert plan is not None
            while plan is not None:
                ahead, result = self.scheduler.look_ahead(), result_of(plan)
                self.now += STEP + self.row * sum(len(item.tokens) - 1 for item in plan.items)
                plan = None if ahead is None else ahead.complete(result)
                self.scheduler.on_step_done(result, self.now, next_began=plan is not None)
                self.depths += [0] * (plan is not None)
            told = [each.message for each in self.scheduler.effects() if isinstance(each, Reply)]
            self.commits += [each for each in told if isinstance(each, Commit)]

    def guess(self, plan: GuessPlan) -> GuessResult:
        found = []
        for item in plan.items:
            path, token, below = list[int](), item.tip, list[Followers]()
            right = self.right and token % self.every == 0
            for _ in range(item.depth):
                token = (token + (1 if right else 2)) % VOCAB
                below.append(Followers(tuple(path), (token, (token + 5) % VOCAB), (5.0, 0.0)))
                path.append(token)
            found.append(tuple(below))
        return GuessResult(tuple(found))


def test_right_guesses_are_committed_and_told() -> None:
    bench = GuessBench()
    bench.open()
    bench.run(60)
    tokens = [token for commit in bench.commits for token in commit.tokens]
    assert tokens == [(2 + place) % VOCAB for place in range(len(tokens))]
    last = bench.commits[-1]
    assert len(last.tokens) == 5
    assert (last.guessed, last.server_made) == (0b01111, 0b11111)
    counters = bench.scheduler.counters
    assert counters.num_guesses_won == counters.num_committed - 60
    bench.scheduler.check_integrity()


def test_wrong_guesses_are_given_up_and_tried_again() -> None:
    bench = GuessBench(right=False)
    bench.open()
    bench.run(200)
    assert bench.depths[2] > 0
    late = bench.depths[-128:]
    assert 0 < sum(depth > 0 for depth in late) <= len(late) // SURE


def test_guesses_that_take_longer_than_they_save_are_given_up() -> None:
    bench = GuessBench(level=4 * STEP)
    bench.open()
    bench.run(200)
    assert sum(depth > 0 for depth in bench.depths[-128:]) <= 5


@pytest.mark.parametrize(("row", "pays"), [(0.0, True), (0.3 * STEP, False)])
def test_what_their_rows_cost_counts_against_guesses(row: float, pays: bool) -> None:
    bench = GuessBench(level=0.25 * STEP, depth=1, row=row, every=3)
    bench.open()
    bench.run(200)
    assert (sum(depth > 0 for depth in bench.depths[-100:]) > 50) is pays


@pytest.mark.parametrize("row", [0.0, 0.03, 0.1], ids=str)
def test_followers_are_sought_of_nodes_that_are_worth_their_row(row: float) -> None:
    bench = GuessBench(row=row * STEP)
    bench.open()
    bench.run(40)
    guesses = bench.scheduler.next_guess(bench.now)
    assert guesses is not None
    pace = bench.scheduler.sessions[1].account.pace.ratio  # tokens in the time of a bare step
    assert guesses.items[0].least == pytest.approx(max(row * pace, LEAST_FOLLOWED), rel=0.2)


@pytest.mark.parametrize(("due_us", "guesses"), [(20_000, True), (100_000, False)])
def test_time_in_which_the_edge_drafts_costs_less(due_us: int, guesses: bool) -> None:
    bench = GuessBench(level=0.25 * STEP)
    bench.open()
    bench.run(5)
    session = bench.scheduler.sessions[1]
    bench.drafter.own[1].uncovered.add(800, 100.0)
    session.awaited.told(Wait(due_us, 10))
    session.awaited.committed(session.tree.tip_position, had_nodes=False, has_nodes=False, now=bench.now)
    bench.run(1)
    assert (bench.depths[-1] > 0) is guesses


def test_reading_a_prompt_lowers_no_pace() -> None:
    bench = GuessBench(depth=0, row=0.1 * STEP)
    for key in range(1, 4):  # the first teach what rows cost
        bench.scheduler.on_open(key, ask((1,) * 20 * key, max_tokens=400), bench.now)
        bench.run(5)
    for session in bench.scheduler.sessions.values():
        assert session.account.pace.ratio == pytest.approx(1.0, abs=0.1)


def test_no_more_levels_are_asked_for_than_the_text_has_left() -> None:
    bench = GuessBench()
    bench.scheduler.on_open(1, ask(max_tokens=9), 0.0)
    while bench.scheduler.sessions:
        bench.run(1)
    assert sum(len(commit.tokens) for commit in bench.commits) == 9


def test_a_session_without_fill_is_never_guessed_for() -> None:
    bench = GuessBench()
    bench.scheduler.on_open(1, ask(fill=False), 0.0)
    bench.scheduler.on_propose(1, chain(2, anchor=0), 0.0)
    bench.run(1)
    assert bench.scheduler.next_guess(bench.now) is None


def test_a_drafter_that_fails_is_not_asked_again() -> None:
    bench = GuessBench()
    bench.open()
    bench.run(3)
    plan = bench.scheduler.next_guess(bench.now)
    assert plan is not None
    bench.drafter.on_failed()
    bench.run(50)
    assert set(bench.depths[-50:]) == {0}


def test_a_session_that_ended_while_the_drafter_ran_is_left_out() -> None:
    bench = GuessBench()
    bench.open()
    bench.run(3)
    plan = bench.scheduler.next_guess(bench.now)
    assert plan is not None
    bench.scheduler.on_close(1, None, bench.now)
    bench.drafter.on_guessed(bench.guess(plan), bench.now)
    assert bench.scheduler.next_step(bench.now) is None
    bench.scheduler.check_integrity()


def test_the_drafter_reads_a_long_prompt_in_the_chunks_in_which_the_target_does() -> None:
    bench = GuessBench()
    for key in (1, 2):  # a prompt alone would be read in one step
        bench.scheduler.on_open(key, ask(prompt=(1,) * 450, max_tokens=20), 0.0)
    read = list[dict[int, tuple[int, int]]]()
    for _ in range(3):
        plan = bench.scheduler.next_step(bench.now)
        assert plan is not None
        bench.now += STEP
        bench.scheduler.on_step_done(result_of(plan), bench.now)
        guesses = bench.scheduler.next_guess(bench.now)
        assert guesses is not None
        read.append({item.session: (len(item.prefix_slots), item.depth) for item in guesses.items})
        bench.drafter.on_guessed(bench.guess(guesses), bench.now)
    assert all(depth == 0 for length, depth in read[0].values() if length < 450)
    lengths = [each[1][0] for each in read if 1 in each]
    assert lengths == sorted(lengths)
    assert lengths[0] < 450


def test_who_reads_a_prompt_pays_nothing_for_guesses_that_somebody_could_not_bear() -> None:
    bench = GuessBench()
    bench.open()
    bench.run(2)  # step and guess have been measured
    poor = bench.scheduler.sessions[1]
    bench.scheduler.on_open(2, ask(prompt=(1,) * 450, max_tokens=20), bench.now)
    for _ in range(2):
        plan = bench.scheduler.next_step(bench.now)
        assert plan is not None
        bench.now += STEP
        bench.scheduler.on_step_done(result_of(plan), bench.now)
        poor.account.balance = -1.0
        reading = bench.scheduler.sessions[2].account
        before = reading.balance
        guesses = bench.scheduler.next_guess(bench.now)
        if guesses is not None:
            assert {item.depth for item in guesses.items} == {0}
            bench.drafter.on_guessed(bench.guess(guesses), bench.now)
            assert reading.balance == before
            return
    pytest.fail("the prompt was read without the drafter")
