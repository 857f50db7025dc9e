"""Laws of room: texts outgrow what they were promised, the youngest gives way, and every text ends."""

from cloud_verifier.core.admission import longest_session
from common.errors import CapacityError, UserError
from common.messages import Commit
from tests import wording
from tests.cloud_verifier.core.bench import Bench, ask, chain, commits, ended, ends


def crowded(num_slots: int, promised_text: int = 4, sessions: int = 3) -> Bench:
    """Sessions of 1 + 40 tokens with a node a step: each is promised 6 slots and may come to need 42."""
    bench = Bench(num_slots=num_slots, promised_text=promised_text, max_nodes_per_session=1)
    for key in range(1, sessions + 1):
        assert ends(bench.open(key, ask((key,)), now=float(key))) == []
    return bench


def run(bench: Bench, steps: int = 400) -> dict[int, list[int]]:
    """The texts, by session."""
    texts = dict[int, list[int]]()
    now = 10.0
    while bench.scheduler.sessions and steps:
        sessions = list(bench.scheduler.sessions.values())
        bench.step(now)
        now += 1.0
        steps -= 1
        for session in sessions:
            texts[session.key] = session.tree.committed[session.prompt_length :]
    assert not bench.scheduler.sessions, "every text ends"
    return texts


def test_the_youngest_gives_way_and_writes_the_same_text_later() -> None:
    bench, roomy = crowded(num_slots=60), crowded(num_slots=200)
    texts = run(roomy)
    assert [len(text) for text in texts.values()] == [40] * 3, "each outgrows what it was promised"
    assert roomy.scheduler.preemption.num_preempted == 0
    assert run(bench) == texts
    assert bench.scheduler.preemption.num_preempted >= 1
    assert bench.scheduler.counters.num_prefilled > roomy.scheduler.counters.num_prefilled


def test_the_oldest_never_gives_way() -> None:
    bench = crowded(num_slots=60)
    oldest = bench.scheduler.sessions[1]
    while 1 in bench.scheduler.sessions:
        bench.step(10.0)
        assert not oldest.preempted
    assert bench.scheduler.counters.num_steps == 40, "a token in every step"


def test_one_that_gave_way_waits_and_nobody_is_admitted_before_it() -> None:
    bench = crowded(num_slots=60)
    while not bench.scheduler.preemption.num_waiting:
        bench.step(10.0)
    (end,) = ends(bench.open(9, ask((9,)), now=11.0))
    assert isinstance(end.error, CapacityError)
    wording.keep(str(end.error))
    assert end.error.retry_after is not None


def test_its_nodes_wait_with_it() -> None:
    """What an edge sent before and meanwhile is evaluated when its KV is there again."""
    bench = Bench(num_slots=52, promised_text=4, max_nodes_per_session=4)
    bench.open(1, ask((1,)), now=1.0)
    bench.open(2, ask((5,)), now=2.0)
    while not bench.scheduler.preemption.num_waiting:
        bench.step(10.0)
    waiting = bench.scheduler.sessions[2]
    last = waiting.tree.tip
    bench.propose(2, chain((last.token + 1) % 10, (last.token + 2) % 10, anchor=last.position), now=11.0)
    found = list[Commit]()
    while not found:
        found = [commit for commit in commits(bench.step(12.0)) if commit.evaluated == 3]
    assert [len(commit.tokens) for commit in found] == [3]


def test_a_text_that_could_never_end_is_refused() -> None:
    bench = Bench(num_slots=56, max_nodes_per_session=16)
    (end,) = ends(bench.open(1, ask((1,))))  # 1 + 40 + 16
    assert isinstance(end.error, UserError)
    wording.keep(str(end.error))


def test_the_longest_session_that_is_told_is_the_longest_that_is_admitted() -> None:
    bench = Bench(num_slots=57, max_nodes_per_session=16)
    longest = longest_session(bench.scheduler.info.max_positions, 57, bench.scheduler.config)
    prompt = longest - 40  # beside a text of 40
    assert ends(bench.open(1, ask((1,) * prompt))) == []
    assert ended(bench.open(2, ask((1,) * (prompt + 1))))[:2] == (2, UserError)
