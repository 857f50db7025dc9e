"""Laws of the prefix cache: it finds the longest known beginning, owns its slots, and forgets the oldest."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cloud_verifier.core.prefix_cache import CacheEntry, PrefixCache
from common.errors import LocalError
from tests import wording


def give(cache: PrefixCache, tokens: Sequence[int], first_slot: int, tenant: str = "a") -> list[int]:
    """Insert with slots counted from `first_slot`; the surplus."""
    slots = np.arange(first_slot, first_slot + len(tokens), dtype=np.int32)
    found: list[int] = cache.insert(tenant, tokens, slots).surplus.tolist()
    cache.check_integrity()
    return found


def known(cache: PrefixCache, tokens: Sequence[int], tenant: str = "a") -> list[int]:
    found: list[int] = cache.match(tenant, tokens)[1].tolist()
    return found


def test_slots_of_the_cache_given_back_to_it_are_no_surplus() -> None:
    cache = PrefixCache()
    give(cache, (1, 2), 10)
    stored = cache.insert("a", (1, 2, 3), np.array([10, 11, 5], np.int32))
    assert stored.surplus.tolist() == []
    assert stored.slots.tolist() == [10, 11, 5]


def test_the_least_recently_used_goes_first_and_from_its_end() -> None:
    cache = PrefixCache()
    give(cache, (1, 2, 3), 10)
    give(cache, (5, 6, 7), 20)
    known(cache, (1, 2, 3))
    assert cache.evict(2) == [21, 22]
    assert known(cache, (5, 6, 7)) == [20]
    assert cache.evict(3) == [10, 11, 12], "the other was looked up since"
    cache.check_integrity()


def test_a_match_at_ends_is_a_text_that_was_given_with_its_last_slot() -> None:
    cache = PrefixCache()
    give(cache, (1, 2, 3), 10)
    give(cache, (1, 2, 3, 4, 5), 20)
    give(cache, (1, 2), 30)  # its end was cached, in another slot
    for tokens, length in {(1, 2): 0, (1, 2, 3, 4): 3, (1, 2, 3, 4, 5, 6): 5, (1, 2, 9): 0}.items():
        entry, slots = cache.match("a", tokens, at_ends=True)
        assert slots.tolist() == [10, 11, 12, 23, 24][:length]
        assert (entry is None) == (length == 0)
    cache.evict(1)
    assert len(cache.match("a", (1, 2, 3, 4, 5), at_ends=True)[1]) == 3, "what was trimmed has no end"
    cache.check_integrity()


def test_what_a_session_reads_stays() -> None:
    cache = PrefixCache()
    give(cache, (1, 2, 3), 10)
    entry, _ = cache.match("a", (1, 2))
    assert entry is not None
    cache.lock(entry)
    assert (cache.num_locked, cache.evict(9)) == (2, [12])
    cache.unlock(entry)
    assert sorted(cache.evict(9)) == [10, 11]
    assert (cache.num_slots, cache.num_evicted) == (0, 3)
    with wording.raises(LocalError):
        cache.unlock(entry)


TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@settings(max_examples=60, stateful_step_count=40)
class CacheMachine(RuleBasedStateMachine):
    """Against a dictionary of every beginning that was given and not evicted."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        self.beginnings: dict[tuple[str, tuple[int, ...]], int] = {}  # its last token's slot
        self.locked: list[tuple[str, tuple[int, ...], CacheEntry]] = []
        self.next_slot = 0

    @rule(tenant=st.sampled_from("ab"), text=TEXT)
    def insert(self, tenant: str, text: list[int]) -> None:
        slots = np.arange(self.next_slot, self.next_slot + len(text), dtype=np.int32)
        self.next_slot += len(text)
        stored = self.cache.insert(tenant, text, slots)
        for length in range(1, len(text) + 1):
            self.beginnings.setdefault((tenant, tuple(text[:length])), int(slots[length - 1]))
        expected = [self.beginnings[tenant, tuple(text[:n])] for n in range(1, len(text) + 1)]
        assert stored.slots.tolist() == expected
        assert sorted(stored.surplus) == sorted(set(slots.tolist()) - set(expected))

    @rule(tenant=st.sampled_from("ab"), text=TEXT, lock=st.booleans())
    def match(self, tenant: str, text: list[int], lock: bool) -> None:
        entry, slots = self.cache.match(tenant, text)
        expected = list[int]()
        while (beginning := (tenant, tuple(text[: len(expected) + 1]))) in self.beginnings:
            expected.append(self.beginnings[beginning])
            if len(expected) == len(text):
                break
        assert slots.tolist() == expected
        if lock and entry is not None:
            self.cache.lock(entry)
            self.locked.append((tenant, tuple(text[: len(expected)]), entry))

    @precondition(lambda self: self.locked)
    @rule(which=st.integers(0, 9))
    def unlock(self, which: int) -> None:
        self.cache.unlock(self.locked.pop(which % len(self.locked))[2])

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        safe = {(tenant, text[:n]) for tenant, text, _ in self.locked for n in range(1, len(text) + 1)}
        possible = len(self.beginnings) - len(safe)
        freed = self.cache.evict(count)
        assert len(freed) == min(count, possible)
        gone = {key for key, slot in self.beginnings.items() if slot in freed}
        assert not gone & safe
        self.beginnings = {key: slot for key, slot in self.beginnings.items() if key not in gone}

    @invariant()
    def is_whole(self) -> None:
        self.cache.check_integrity()
        assert sorted(self.cache.slots()) == sorted(self.beginnings.values())
        safe = {(tenant, text[:n]) for tenant, text, _ in self.locked for n in range(1, len(text) + 1)}
        assert self.cache.num_locked == len(safe)


TestCache = CacheMachine.TestCase


@given(st.lists(TEXT, max_size=30))
def test_looking_up_a_thousand_times_leaves_no_trace_but_cuts(texts: list[list[int]]) -> None:
    cache = PrefixCache()
    give(cache, (0, 1, 2, 0, 1, 2), 0)
    for text in texts:
        cache.match("a", text)
    assert sorted(cache.slots()) == list(range(6))
    assert known(cache, (0, 1, 2, 0, 1, 2)) == list(range(6))
    assert len(cache._oldest["a"]) == 1
