"""Laws of KV memory: every slot has one owner, what was promised can be taken, and a view never changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.kv_memory import KvMemory, Lease, SlotList
from common.errors import CapacityError, Code, LocalError
from tests import wording


def read(memory: KvMemory, lease: Lease, tokens: list[int]) -> None:
    """Evaluate what of `tokens` the lease has not, and share it."""
    new = len(tokens) - len(lease.slots)
    memory.settle(lease, memory.take(lease, new), ())
    memory.publish(lease, tokens)


def check(memory: KvMemory, *leases: Lease) -> None:
    memory.check_integrity(leases, ())


def test_a_promise_that_cannot_be_kept_is_not_made() -> None:
    memory = KvMemory(10)
    memory.open("a", (), 7)
    with wording.raises(CapacityError) as caught:
        memory.open("a", (), 4)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert memory.num_reserved == 7


def test_no_more_is_taken_than_was_promised() -> None:
    memory = KvMemory(10)
    lease = memory.open("a", (), 3)
    memory.take(lease, 2)
    with wording.raises(LocalError):
        memory.take(lease, 2)
    assert memory.grow(lease, 7)
    assert not memory.grow(lease, 1)
    assert len(memory.take(lease, 8)) == 8


def test_a_session_that_begins_like_another_reads_its_slots() -> None:
    memory = KvMemory(20)
    first = memory.open("a", (), 10)
    read(memory, first, [1, 2, 3, 4])
    second = memory.open("a", [1, 2, 3, 9], 10)
    assert second.slots.view.tolist() == first.slots.view.tolist()[:3]
    assert (second.reserved, first.reserved, memory.num_unpromised) == (7, 6, 3)
    check(memory, first, second)


def test_what_was_written_is_shared_with_its_resumption_and_not_with_prompts() -> None:
    memory = KvMemory(40, apart=True)
    lease = memory.open("a", (), 10, 2)
    memory.settle(lease, memory.take(lease, 4), ())
    memory.close(lease, [1, 2, 3, 4])
    resumed = memory.open("a", [1, 2, 3, 9], 10, 2)
    assert len(resumed.slots) == 3
    later_turn = memory.open("a", [1, 2, 3, 4, 5], 10, 5)
    assert len(later_turn.slots) == 2
    check(memory, resumed, later_turn)


def test_two_that_read_the_same_at_the_same_time_keep_it_once() -> None:
    memory = KvMemory(20)
    leases = [memory.open("a", (), 10) for _ in range(2)]
    for lease in leases:
        memory.settle(lease, memory.take(lease, 3), ())
    for lease in leases:
        memory.publish(lease, [1, 2, 3])
        check(memory, *leases)
    assert leases[0].slots.view.tolist() == leases[1].slots.view.tolist()
    assert (memory.cache.num_slots, memory.pool.num_free) == (3, 17)


def test_what_ended_is_cached_until_somebody_needs_the_slots() -> None:
    memory = KvMemory(10)
    lease = memory.open("a", (), 8)
    read(memory, lease, [1, 2, 3, 4, 5])
    memory.close(lease, [1, 2, 3, 4, 5])
    assert (memory.pool.num_free, memory.num_unpromised) == (5, 10)
    other = memory.open("b", (), 10)
    assert len(memory.take(other, 8)) == 8
    assert memory.cache.num_slots == 2
    assert len(memory.cache.match("a", [1, 2, 3])[1]) == 2, "its beginning is still there"


def test_with_states_a_text_is_shared_once_it_has_ended_and_continued_at_its_end() -> None:
    memory = KvMemory(40, recurrent=True)
    lease = memory.open("a", (), 10)
    memory.settle(lease, memory.take(lease, 4), ())
    memory.close(lease, [1, 2, 3, 4])
    assert len(memory.open("a", [1, 2, 3, 4, 5], 10).slots) == 4
    assert len(memory.open("a", [1, 2, 3], 10).slots) == 0


def test_without_a_cache_nothing_is_kept() -> None:
    memory = KvMemory(10, caches=False)
    lease = memory.open("a", (), 8)
    read(memory, lease, [1, 2, 3])
    memory.close(lease, [1, 2, 3])
    assert (memory.pool.num_free, memory.num_reserved) == (10, 0)
    assert len(memory.open("a", [1, 2, 3], 5).slots) == 0


def test_slots_with_two_owners_or_none_are_found() -> None:
    memory = KvMemory(10)
    lease = memory.open("a", (), 5)
    slots = memory.take(lease, 2)
    with wording.raises(LocalError):
        memory.check_integrity([lease], ())
    memory.check_integrity([lease], slots)
    memory.pool.give_back(slots)
    with wording.raises(LocalError):
        memory.check_integrity([lease], slots)


ACTION = st.tuples(
    st.sampled_from(["open", "step", "step", "publish", "close", "spoil", "grow"]),
    st.integers(0, 3),
    st.integers(0, 5),
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
)


@given(st.lists(ACTION, max_size=60), st.booleans())
def test_every_slot_has_one_owner_whatever_happens(
    actions: list[tuple[str, int, int, list[int]]], caches: bool
) -> None:
    """Sessions of two tenants write texts of two tokens, in memory that is too small for all."""
    memory = KvMemory(24, caches)
    open_now: dict[int, tuple[Lease, list[int]]] = {}
    for kind, key, count, text in actions:
        if kind == "open" and key not in open_now:
            try:
                lease = memory.open("ab"[key % 2], text, len(text) + count)
            except CapacityError:
                continue
            open_now[key] = lease, text[: len(lease.slots)]
        elif key in open_now:
            lease, tokens = open_now[key]
            _act(memory, kind, lease, tokens, count, text)
            if kind in ("close", "spoil"):
                del open_now[key]
        memory.check_integrity([lease for lease, _ in open_now.values()], ())
    for lease, tokens in open_now.values():
        memory.close(lease, tokens)
    assert memory.pool.num_free + memory.cache.num_slots == 24
    assert (memory.num_reserved, memory.cache.num_locked) == (0, 0)


def _act(memory: KvMemory, kind: str, lease: Lease, tokens: list[int], count: int, text: list[int]) -> None:
    match kind:
        case "step":
            slots = memory.take(lease, min(count, lease.spare))
            kept = slots[: len(text)]
            memory.settle(lease, kept, slots[len(kept) :])
            tokens += text[: len(kept)]
        case "publish":
            memory.publish(lease, tokens)
        case "grow":
            memory.grow(lease, count)
        case _:
            memory.close(lease, tokens, keep=kind == "close")


def test_a_view_cannot_be_written() -> None:
    slots = SlotList(4)
    slots.extend(np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="read-only"):
        slots.view[0] = 9
