"""Who owns which KV slot: sessions by their leases, the prefix cache, or nobody.

What a lease may come to own is reserved, so that a step never finds too few slots:

    reserved by all leases + cached slots that a session reads  <=  all slots

and what is cached and read by nobody gives way when a session needs it. Evaluated tokens move from a lease
into the cache when the prompt is read, and when the session ends or is preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from cloud_verifier.core.prefix_cache import Entry, PrefixCache
from cloud_verifier.core.slots import SlotList, SlotPool
from cloud_verifier.core.target import IntArray
from common.errors import CapacityError, LocalError


class Lease:
    """One session's claim on KV: the slots of its evaluated positions, of which the first `num_shared` are
    the cache's, and how many slots of its own it may have. Made by `KvMemory.open`."""

    __slots__ = ("entry", "num_shared", "num_taken", "reserved", "slots", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.slots = SlotList(0)
        self.num_shared = 0
        self.num_taken = 0  # its own slots, those of the running step included
        self.reserved = 0  # its own slots at most
        self.entry: Entry | None = None  # of the cache: the end of what it shares

    @property
    def spare(self) -> int:
        """Slots that it may take besides those it has."""
        return self.reserved - self.num_taken


class KvMemory:
    """All KV slots of an engine.

    `open` gives a session a lease, `take` slots for a step, `settle` says what became of them, `publish`
    shares what is evaluated, `close` ends the lease.
    """

    def __init__(self, num_slots: int, caches: bool = True) -> None:
        self.pool = SlotPool(num_slots)
        self.cache = PrefixCache()
        self.caches = caches
        self.num_reserved = 0
        self._held: list[int] = []  # given up while a step still reads them
        self._taken = Counter[str]()  # by tenant, slots that its leases have taken

    @property
    def num_slots(self) -> int:
        return self.pool.num_slots

    @property
    def num_unpromised(self) -> int:
        """Slots that could still be reserved."""
        return self.num_slots - self.num_reserved - self.cache.num_locked - len(self._held)

    def open(self, tenant: str, tokens: Sequence[int], need: int) -> Lease:
        """A lease for a session that must read `tokens` and may need `need` slots in all.

        What the cache knows of `tokens` is evaluated already and shared. Raises `CapacityError` when what
        remains cannot be promised.
        """
        lease = Lease(tenant)
        entry, known = self.cache.match(tenant, tokens) if self.caches else (None, _NOTHING)
        newly_locked = self.cache.num_unlocked(entry) if entry else 0
        self._reserve(lease, need - len(known), newly_locked)
        if entry is not None:
            self.cache.lock(entry)
            lease.entry, lease.num_shared = entry, len(known)
        lease.slots = SlotList(need)
        lease.slots.extend(known)
        return lease

    def grow(self, lease: Lease, count: int) -> bool:
        """Promise `count` slots more; False if they are not there."""
        if count > self.num_unpromised:
            return False
        lease.reserved += count
        self.num_reserved += count
        return True

    def take(self, lease: Lease, count: int) -> list[int]:
        """`count` slots. Raises `LocalError` if the lease is not for so many."""
        if count > lease.spare:
            raise LocalError(f"{count} slots asked for and {lease.spare} of the lease left")
        self._count(lease, count)
        if count > self.pool.num_free:
            self.pool.give_back(self.cache.evict(count - self.pool.num_free, self._taken))
        return self.pool.take(count)

    def settle(self, lease: Lease, kept: Sequence[int], freed: Sequence[int]) -> None:
        """Of the slots taken, `kept` hold the next positions and `freed` nothing any more."""
        lease.slots.extend(kept)
        if freed:
            self._count(lease, -len(freed))
            self.pool.give_back(freed)

    def publish(self, lease: Lease, tokens: Sequence[int], in_step: bool = False) -> None:
        """Move the slots of all evaluated positions, whose tokens are `tokens` [C], into the cache. The
        session goes on reading them there; where the cache knew a token already, it reads the cache's
        slot. Its own is free then; if it is `in_step`, only when that is over (`step_over`)."""
        num_own = len(lease.slots) - lease.num_shared
        if not self.caches or not num_own:
            return
        if in_step and num_own > self.num_unpromised:
            return  # it will be shared when the session ends: promises to others come first
        stored = self.cache.insert(lease.tenant, tokens, lease.slots.view)
        self.cache.lock(stored.entry)
        self._unlock(lease)
        lease.entry, lease.num_shared = stored.entry, len(lease.slots)
        lease.slots.replace(stored.slots)
        surplus = stored.surplus.tolist()
        if in_step:
            self._held += surplus
        else:
            self.pool.give_back(surplus)
        self._count(lease, -num_own)
        self._release(lease, num_own)

    def step_over(self) -> None:
        """A step has ended: what was given up while it was read is free."""
        if self._held:
            self.pool.give_back(self._held)
            self._held = []

    def close(self, lease: Lease, tokens: Sequence[int], keep: bool = True) -> None:
        """The session reads and writes no more. `tokens` as for `publish`; what is cached may be evicted.
        Without `keep` nothing of its own is cached: after a failed step nobody knows what its KV is worth."""
        if keep:
            self.publish(lease, tokens)
        self._unlock(lease)
        self.pool.give_back(lease.slots.view[lease.num_shared :].tolist())
        self._release(lease, lease.reserved)
        self._count(lease, -lease.num_taken)
        lease.slots, lease.entry = SlotList(0), None
        lease.num_shared = 0

    def check_integrity(self, leases: Iterable[Lease], in_step: Iterable[int]) -> None:
        """Raise `LocalError` unless every slot is owned exactly once: by one of `leases`, the running step
        (`in_step`), the cache, or nobody; and every promise can be kept."""
        held = list(leases)
        owned = [slot for lease in held for slot in lease.slots.view[lease.num_shared :].tolist()]
        stepping = list(in_step)
        everywhere = [*owned, *stepping, *self._held, *self.cache.slots(), *self.pool.free_slots()]
        if len(everywhere) != self.num_slots or len(set(everywhere)) != self.num_slots:
            raise LocalError(
                f"{len(owned)} slots are owned by sessions, {len(stepping)} by the step, "
                f"{self.cache.num_slots} by the cache and {self.pool.num_free} by nobody, of {self.num_slots}"
            )
        if sum(lease.num_taken for lease in held) != len(owned) + len(stepping):
            raise LocalError("a lease counts other slots than it has")
        if sum(lease.num_taken for lease in held) != sum(self._taken.values()):
            raise LocalError("the tenants are counted other slots than their leases have")
        if sum(lease.reserved for lease in held) != self.num_reserved or self.num_unpromised < 0:
            raise LocalError(f"{self.num_reserved} slots are reserved, and not by these sessions")
        self.cache.check_integrity()

    def _count(self, lease: Lease, count: int) -> None:
        """The lease has taken so many slots more; fewer, if negative."""
        lease.num_taken += count
        self._taken[lease.tenant] += count
        if not self._taken[lease.tenant]:
            del self._taken[lease.tenant]

    def _reserve(self, lease: Lease, count: int, newly_locked: int) -> None:
        room = self.num_unpromised - newly_locked
        if count > room:
            raise CapacityError(
                f"this session needs {count} KV slots more and {max(0, room)} of {self.num_slots} are not "
                "promised to others; try later, or use another verifier"
            )
        lease.reserved = count
        self.num_reserved += count

    def _release(self, lease: Lease, count: int) -> None:
        lease.reserved -= count
        self.num_reserved -= count

    def _unlock(self, lease: Lease) -> None:
        if lease.entry is not None:
            self.cache.unlock(lease.entry)
            lease.entry = None


_NOTHING: IntArray = np.zeros(0, np.int32)
