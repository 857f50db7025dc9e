"""Laws of tenants: what each has had counts, and no tenant learns of or spoils what another has."""

from collections.abc import Sequence

import pytest

from cloud_verifier.core.tenants import MAX_AWAY, MAX_WITH_TEXTS, Tenants, TenantTexts
from common.prompt_lookup import NO_TEXTS
from tests.cloud_verifier.core.bench import Bench, ask, rows


def test_who_comes_starts_level_with_the_least_served() -> None:
    tenants = Tenants()
    tenants.enter("a", 1)
    tenants.enter("b", 1)
    tenants.note_service("a", 100, 0)
    tenants.note_service("b", 30, 0)
    tenants.enter("c", 1)
    assert tenants.get("c").service == 30
    tenants.leave("b", 1)
    tenants.enter("b", 1)
    assert tenants.get("b").service == 30, "being away has earned it nothing"


def test_who_has_had_much_has_had_it_when_it_comes_again() -> None:
    tenants = Tenants()
    tenants.enter("greedy", 1)
    tenants.enter("modest", 1)
    tenants.note_service("greedy", 100, 90)
    tenants.note_service("modest", 10, 0)
    tenants.leave("greedy", 1)
    assert (tenants.get("greedy").service, tenants.get("greedy").num_sessions) == (100, 0)
    tenants.enter("greedy", 1)
    assert tenants.get("greedy").service == 100, "a session for every text would pay for none"


def test_what_is_remembered_of_tenants_that_are_away_is_bounded() -> None:
    tenants = Tenants()
    tenants.enter("always", 1)
    for number in range(MAX_AWAY + 1):
        tenants.enter(f"t{number}", 1)
        tenants.note_service(f"t{number}", 5, 0)
        tenants.leave(f"t{number}", 1)
    assert (tenants.get("t0").service, tenants.get("t1").service, len(tenants)) == (0, 5, 1)


def test_texts_of_tenants_are_kept_apart_and_bounded() -> None:
    none, texts = TenantTexts(0), TenantTexts(5)
    assert none.of("a") is NO_TEXTS
    first = texts.of("a")
    assert texts.of("b") is not first
    assert texts.of("a") is first
    for number in range(MAX_WITH_TEXTS - 1):
        texts.of(f"tenant {number}")
    assert texts.of("a") is first, "b was unused for longer"
    for number in range(MAX_WITH_TEXTS):
        texts.of(f"other {number}")
    assert texts.of("a") is not first


LENGTH = 20  # tokens of a prompt
TEXT = 5


def prompt(number: int) -> tuple[int, ...]:
    """The digits of a number, which no other prompt begins with."""
    return tuple(int(digit) for digit in f"{number:05d}") * (LENGTH // 5)


def work(
    bench: Bench, tenant: str, prompts: Sequence[tuple[int, ...]], first_key: int = 1
) -> list[list[int]]:
    """These texts of a tenant, written side by side: the number of rows of each step."""
    for key, each in enumerate(prompts, start=first_key):
        bench.open(key, ask(each, max_tokens=TEXT), tenant=tenant)
        assert key in bench.scheduler.sessions
    steps = list[list[int]]()
    while bench.scheduler.sessions:
        plan = bench.begin()
        steps.append([len(each) for each in rows(plan).values()])
        bench.end(plan)
    return steps


@pytest.mark.parametrize("number", [0, 7, 12345])
def test_a_prompt_costs_a_tenant_the_same_whether_another_has_sent_it_or_not(number: int) -> None:
    sent, not_sent = Bench(), Bench()
    work(sent, "a", [prompt(number)])
    work(not_sent, "a", [prompt(99999)])
    assert work(sent, "b", [prompt(number)]) == work(not_sent, "b", [prompt(number)])
    assert work(sent, "b", [prompt(number)])[0] == [1], "its own it knows"


def hits(num_at_once: int) -> list[int]:
    """How much of its prompt a tenant finds each time it asks, while another floods the cache with texts that
    it writes so many of at a time."""
    bench, found = Bench(num_slots=300, max_nodes_per_session=8), list[int]()
    work(bench, "victim", [prompt(11111)])
    for turn in range(10):
        for first in range(0, 20, max(1, num_at_once)):
            flood = [prompt(20000 + 100 * turn + first + each) for each in range(num_at_once)]
            work(bench, "flood", flood)
        before = bench.scheduler.counters.num_cached_tokens
        work(bench, "victim", [prompt(11111)])
        found.append(bench.scheduler.counters.num_cached_tokens - before)
    assert not num_at_once or bench.scheduler.memory.cache.num_evicted > 1000
    return found


@pytest.mark.parametrize("num_at_once", [1, 4, 8])
def test_a_flood_of_the_cache_leaves_another_tenants_hits_as_they_were(num_at_once: int) -> None:
    assert hits(num_at_once) == hits(0) == [LENGTH - 1] * 10


def test_who_fills_the_memory_with_sessions_pushes_out_its_own_texts_first() -> None:
    """The victim has more in the cache than the other, and less than the other has in all."""
    bench, victims = Bench(num_slots=300, max_nodes_per_session=8), [prompt(11111 * n) for n in range(1, 7)]
    cache = bench.scheduler.memory.cache
    work(bench, "victim", victims)
    kept = cache.num_slots
    work(bench, "flood", [prompt(77777)])
    assert cache.num_slots - kept < kept
    for key in (1, 2):
        bench.open(key, ask(prompt(80000 + key)[:5], max_tokens=68), tenant="flood")
    while bench.scheduler.sessions:
        bench.step()
    assert 0 < cache.num_evicted <= LENGTH
    assert all(len(cache.match("victim", each)[1]) == LENGTH for each in victims)
    assert len(cache.match("flood", prompt(77777))[1]) < LENGTH
