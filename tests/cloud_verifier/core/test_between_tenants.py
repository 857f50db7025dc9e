"""One tenant learns nothing of another's texts by what its own cost, and cannot spoil its cache."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cloud_verifier.core.admission import Caller
from tests.cloud_verifier.core.bench import Bench, ask, rows

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
        bench.scheduler.on_open(key, ask(each, max_tokens=TEXT), 0.0, Caller(tenant))
        assert key in bench.scheduler.sessions
        bench.effects()
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
        request = ask(prompt(80000 + key)[:5], max_tokens=68)
        bench.scheduler.on_open(key, request, 0.0, Caller("flood"))
        bench.effects()
    while bench.scheduler.sessions:
        bench.step()
    assert 0 < cache.num_evicted <= LENGTH
    assert all(len(cache.match("victim", each)[1]) == LENGTH for each in victims)
    assert len(cache.match("flood", prompt(77777))[1]) < LENGTH
