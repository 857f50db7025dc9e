"""Account for the owner of every KV slot: a session's lease, the prefix cache, or the free pool.

The slots that a lease may come to own are reserved, so that a step never finds too few slots:

    reserved by all leases + cached slots that a session reads  <=  all slots

Cached slots without a reader are evicted when a session needs them. Evaluated tokens move from a lease into
the cache when the prompt is read, and when the session ends or is preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from cloud_verifier.core.engine_protocol import IntArray
from cloud_verifier.core.prefix_cache import CacheEntry, PrefixCache
from common.errors import CapacityError, LocalError

# KV slots are numbers here. The engine holds the tensors.


class SlotPool:
    """Holds the free slots of 0..num_slots-1, last freed first out. `KvMemory` decides on who takes them."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_slots(self) -> Sequence[int]:
        """Return the free slots, in no order."""
        return tuple(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` slots. Raises `LocalError` if fewer are free."""
        if count > len(self._free):
            raise LocalError(
                f"{count} slots were requested and {len(self._free)} are free; reservations were not kept"
            )
        if count == 1:
            return [self._free.pop()]
        cut = len(self._free) - count
        taken = self._free[cut:]
        del self._free[cut:]
        taken.reverse()
        return taken

    def give_back(self, slots: Sequence[int]) -> None:
        self._free.extend(slots)


class SlotList:
    """Holds the slots of one session's evaluated positions, as an int32 array that grows in place."""

    def __init__(self, capacity: int) -> None:
        self._length = 0
        self._hold(np.empty(max(capacity, 16), dtype=np.int32))

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> IntArray:
        """The slots, int32 [C], read-only. Later appends never change this array."""
        return self._shown[: self._length]

    def extend(self, slots: Sequence[int] | IntArray) -> None:
        end = self._length + len(slots)
        if end > len(self._slots):
            grown: IntArray = np.empty(max(end, 2 * len(self._slots)), dtype=np.int32)
            grown[: self._length] = self._slots[: self._length]
            self._hold(grown)
        if len(slots) == 1:
            self._slots[self._length] = slots[0]
        else:
            self._slots[self._length : end] = slots
        self._length = end

    def view_with(self, slots: Sequence[int]) -> IntArray:
        """Return the `view` as after appending `slots`. The caller's next append must be these slots."""
        length = self._length
        self.extend(slots)
        self._length = length
        return self._shown[: length + len(slots)]

    def replace(self, slots: IntArray) -> None:
        """Use other slots int32 [C] for the same positions. Earlier views keep the old slots."""
        self._hold(np.concatenate((slots, self._slots[self._length :])))

    def _hold(self, slots: IntArray) -> None:
        self._slots = slots
        self._shown = slots.view()
        self._shown.flags.writeable = False


class Lease:
    """Holds one session's claim on KV: the slots of its evaluated positions and its reservation.

    The cache owns the first `num_shared` slots. `KvMemory.open` makes leases."""

    __slots__ = ("entry", "num_shared", "num_taken", "prompt_length", "reserved", "slots", "tenant")

    def __init__(self, tenant: str, prompt_length: int = 0) -> None:
        self.tenant = tenant
        self.prompt_length = prompt_length  # tokens
        self.slots = SlotList(0)
        self.num_shared = 0
        self.num_taken = 0  # its own slots, those of the running step included
        self.reserved = 0  # the most slots of its own
        self.entry: CacheEntry | None = None  # the cache's entry at the end of the shared slots

    @property
    def spare(self) -> int:
        """The number of slots that the session may still take."""
        return self.reserved - self.num_taken


class KvMemory:
    """Manages all KV slots of an engine.

    `open` makes a session's lease, `take` takes slots for a step and `settle` keeps or frees them. `publish`
    shares evaluated slots through the cache, and `close` ends the lease. If the target is `recurrent`, only
    `close` shares, and a lease continues a cached text only at its end: there alone is its state kept.
    With `apart` (`TargetInfo.apart`) the KV of written tokens is shared with sessions that resume the text,
    and not with prompts that contain it.
    """

    def __init__(
        self, num_slots: int, caches: bool = True, recurrent: bool = False, apart: bool = False
    ) -> None:
        self.pool = SlotPool(num_slots)
        self.cache = PrefixCache()
        self.caches = caches
        self.recurrent = recurrent
        self.apart = apart
        self.num_reserved = 0
        self._held: list[int] = []  # slots to be freed once the running step has read them
        self._taken = Counter[str]()  # by tenant, slots that its leases have taken

    @property
    def num_slots(self) -> int:
        return self.pool.num_slots

    @property
    def num_unpromised(self) -> int:
        """The number of slots that can still be reserved."""
        return self.num_slots - self.num_reserved - self.cache.num_locked - len(self._held)

    def open(self, tenant: str, tokens: Sequence[int], need: int, prompt_length: int = 0) -> Lease:
        """Return a lease for a session that must read `tokens` and may need `need` slots in all.

        The first `prompt_length` tokens are its prompt. The lease shares the cached slots of `tokens`. Raises
        `CapacityError` if the rest cannot be reserved.
        """
        lease = Lease(tenant, prompt_length)
        keys = self._keys(lease, tokens) if self.caches else ()
        entry, known = self.cache.match(tenant, keys, self.recurrent)
        newly_locked = self.cache.num_unlocked(entry) if entry else 0
        self._reserve(lease, need - len(known), newly_locked)
        if entry is not None:
            self.cache.lock(entry)
            lease.entry, lease.num_shared = entry, len(known)
        lease.slots = SlotList(need)
        lease.slots.extend(known)
        return lease

    def grow(self, lease: Lease, count: int) -> bool:
        """Reserve `count` slots more. Return False if they cannot be reserved."""
        if count > self.num_unpromised:
            return False
        lease.reserved += count
        self.num_reserved += count
        return True

    def take(self, lease: Lease, count: int) -> list[int]:
        """Take `count` slots. Raises `LocalError` if the lease has fewer left."""
        if count > lease.spare:
            raise LocalError(f"{count} slots were requested and the lease has {lease.spare} left")
        self._count(lease, count)
        if count > self.pool.num_free:
            self.pool.give_back(self.cache.evict(count - self.pool.num_free, self._taken))
        return self.pool.take(count)

    def settle(self, lease: Lease, kept: Sequence[int], freed: Sequence[int]) -> None:
        """Append the taken slots in `kept` to the evaluated positions, and free those in `freed`."""
        lease.slots.extend(kept)
        if freed:
            self._count(lease, -len(freed))
            self.pool.give_back(freed)

    def publish(self, lease: Lease, tokens: Sequence[int], in_step: bool = False) -> None:
        """Move the slots of all evaluated positions, whose tokens are `tokens` [C], into the cache.

        For tokens that the cache already has, the session reads the cache's slot and frees its own. With
        `in_step` its own slot stays until `step_over`, because the running step still reads it."""
        num_own = len(lease.slots) - lease.num_shared
        if not self.caches or not num_own:
            return
        if in_step and num_own > self.num_unpromised:
            return  # it will be shared when the session ends: promises to others come first
        stored = self.cache.insert(lease.tenant, self._keys(lease, tokens), lease.slots.view)
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
        """Free the slots that only the step that has ended still read."""
        if self._held:
            self.pool.give_back(self._held)
            self._held = []

    def close(self, lease: Lease, tokens: Sequence[int], keep: bool = True) -> None:
        """End the lease. Without `keep`, after a failed step, its slots are freed and not cached."""
        if keep:
            self.publish(lease, tokens)
        self._unlock(lease)
        self.pool.give_back(lease.slots.view[lease.num_shared :].tolist())
        self._release(lease, lease.reserved)
        self._count(lease, -lease.num_taken)
        lease.slots, lease.entry = SlotList(0), None
        lease.num_shared = 0

    def check_integrity(self, leases: Iterable[Lease], in_step: Iterable[int]) -> None:
        """Raise `LocalError` unless every slot has exactly one owner and all reservations fit."""
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
            raise LocalError("num_taken of the leases differs from the slots that they own")
        if sum(lease.num_taken for lease in held) != sum(self._taken.values()):
            raise LocalError("the slots counted by tenant differ from the slots of their leases")
        if sum(lease.reserved for lease in held) != self.num_reserved or self.num_unpromised < 0:
            raise LocalError(f"{self.num_reserved} slots are reserved, which the sessions do not account for")
        self.cache.check_integrity()

    def _keys(self, lease: Lease, tokens: Sequence[int]) -> Sequence[int] | IntArray:
        """Return the tokens as the cache knows them: written ones are negative if they are kept apart."""
        if not self.apart:
            return tokens
        keys = np.array(tokens, np.int32)
        np.invert(keys[lease.prompt_length :], out=keys[lease.prompt_length :])
        return keys

    def _count(self, lease: Lease, count: int) -> None:
        lease.num_taken += count
        self._taken[lease.tenant] += count
        if not self._taken[lease.tenant]:
            del self._taken[lease.tenant]

    def _reserve(self, lease: Lease, count: int, newly_locked: int) -> None:
        room = self.num_unpromised - newly_locked
        if count > room:
            raise CapacityError(
                f"this session needs {count} KV slots more, and {max(0, room)} of {self.num_slots} (--slots) "
                "are not reserved for others; try later, or use another verifier"
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
