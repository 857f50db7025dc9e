"""The prefix cache: KV of committed tokens, kept after their session, found again by their tokens.

One radix tree for each tenant, so that nobody learns by a fast answer what another tenant has written. A span
of tokens is compressed into one entry; an entry that a session reads is locked; what nobody reads is evicted,
least recently used first. Page size 1: a prefix matches to the token (RadixAttention, Zheng et al. 2024, with
tenants).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cloud_verifier.core.target import IntArray
from common.errors import LocalError


class Entry:
    """A span of tokens below its parent, and the slots that hold their KV. Made by `PrefixCache` only."""

    __slots__ = ("children", "num_locks", "parent", "queued", "slots", "tenant", "tokens", "used_at")

    def __init__(self, tenant: str, parent: Entry | None, tokens: IntArray, slots: IntArray) -> None:
        self.tenant = tenant
        self.parent = parent
        self.tokens = tokens  # [L] int32; empty only at a root
        self.slots = slots  # [L] int32
        self.children: dict[int, Entry] = {}  # by their first token
        self.num_locks = 0  # sessions that read it or what is below it
        self.used_at = 0  # of the cache's count of uses
        self.queued = False  # for eviction

    @property
    def alive(self) -> bool:
        """Whether it is still in the tree: an evicted entry has lost its parent."""
        return self.parent is not None

    @property
    def evictable(self) -> bool:
        return self.alive and not self.children and not self.num_locks


class Stored:
    """What `PrefixCache.insert` did with a sequence."""

    __slots__ = ("entry", "slots", "surplus")

    def __init__(self, entry: Entry, slots: IntArray, surplus: IntArray) -> None:
        self.entry = entry  # of the last token
        self.slots = slots  # [L] the cache's slots of all tokens
        self.surplus = surplus  # of the slots given, those whose tokens were there already: still the giver's


class PrefixCache:
    """Tokens to slots, by tenant. Owns the slots it was given until it evicts them."""

    def __init__(self) -> None:
        self.num_slots = 0  # held
        self.num_locked = 0  # of them, in entries that somebody reads
        self.num_evicted = 0  # slots, over all time
        self._roots: dict[str, Entry] = {}
        self._held: dict[str, int] = {}  # slots by tenant
        self._oldest: dict[str, list[tuple[int, int, Entry]]] = {}  # heaps: (used_at, sequence, leaf)
        self._num_uses = 0
        self._num_pushed = 0

    # Reading ----------------------------------------------------------------------------------------------

    def match(self, tenant: str, tokens: Sequence[int]) -> tuple[Entry | None, IntArray]:
        """The longest known beginning of `tokens`: its last entry (cut so that it ends there), and its slots
        int32 [L]. None and no slots where not even the first token is known."""
        root = self._roots.get(tenant)
        if root is None or not len(tokens):
            return None, np.zeros(0, np.int32)
        entry, spans = self._walk(root, np.asarray(tokens, np.int32))
        return (entry, np.concatenate(spans)) if spans else (None, np.zeros(0, np.int32))

    def lock(self, entry: Entry) -> None:
        """A session reads everything down to `entry`; it stays until `unlock`."""
        for each in _upward(entry):
            each.num_locks += 1
            if each.num_locks == 1:
                self.num_locked += len(each.slots)

    def unlock(self, entry: Entry) -> None:
        """The session that had locked it reads it no more."""
        for each in _upward(entry):
            if not each.num_locks:
                raise LocalError("a cache entry was unlocked more often than locked")
            each.num_locks -= 1
            if not each.num_locks:
                self.num_locked -= len(each.slots)
                self._offer(each)

    def num_unlocked(self, entry: Entry) -> int:
        """Slots that locking `entry` would lock anew."""
        return sum(len(each.slots) for each in _upward(entry) if not each.num_locks)

    # Writing ----------------------------------------------------------------------------------------------

    def insert(self, tenant: str, tokens: Sequence[int], slots: IntArray) -> Stored:
        """Take over `slots` int32 [L], the KV of `tokens` from position 0 on; L >= 1.

        Those of a beginning that is known already stay the caller's (`Stored.surplus`), unless they are the
        cache's own, which a session that reads a cached prefix gives back in front of what it has added.
        """
        root = self._roots.setdefault(tenant, Entry(tenant, None, *_EMPTY))
        new = np.asarray(tokens, np.int32)
        entry, spans = self._walk(root, new)
        known = sum(map(len, spans))
        found = np.concatenate(spans) if spans else np.zeros(0, np.int32)
        surplus = slots[:known][slots[:known] != found]
        if known < len(new):
            entry = self._append(entry, new[known:].copy(), slots[known:].copy())
        return Stored(entry, np.concatenate((found, slots[known:])), surplus)

    def evict(self, count: int, elsewhere: Mapping[str, int] | None = None) -> list[int]:
        """Free `count` slots, or fewer if nobody has more unlocked: of the tenant that holds most, the least
        recently used first. So one that floods the cache pushes out its own. `elsewhere`: what tenants hold
        besides, for their sessions; it counts as well, or who has many at once would push out others'."""
        freed = list[int]()
        while len(freed) < count:
            leaf = self._next_victim(elsewhere or {})
            if leaf is None:
                break
            freed += self._trim(leaf, count - len(freed))
        self.num_evicted += len(freed)
        return freed

    # Checks -----------------------------------------------------------------------------------------------

    def slots(self) -> Iterator[int]:
        """Every slot it holds."""
        for entry in self._entries():
            yield from entry.slots.tolist()

    def check_integrity(self) -> None:
        """Raise `LocalError` unless its counts are true and every entry hangs where it says."""
        held = locked = 0
        for entry in self._entries():
            held += len(entry.slots)
            locked += len(entry.slots) if entry.num_locks else 0
            parent = entry.parent
            if parent is None or parent.children.get(int(entry.tokens[0])) is not entry:
                raise LocalError("a cache entry does not hang below its parent")
            if len(entry.tokens) != len(entry.slots) or entry.num_locks > parent.num_locks:
                raise LocalError("a cache entry has other slots than tokens, or more locks than its parent")
        if (held, locked, sum(self._held.values())) != (self.num_slots, self.num_locked, held):
            raise LocalError(f"the cache counts {self.num_slots} slots and holds {held}")

    # Inside -----------------------------------------------------------------------------------------------

    def _walk(self, root: Entry, tokens: IntArray) -> tuple[Entry, list[IntArray]]:
        """Down along `tokens` as far as they are known; an entry that is left in its middle is cut there."""
        self._num_uses += 1
        entry, spans, at = root, list[IntArray](), 0
        entry.used_at = self._num_uses
        while at < len(tokens):
            child = entry.children.get(int(tokens[at]))
            if child is None:
                break
            common = _common(child.tokens, tokens[at:])
            entry = child if common == len(child.tokens) else self._cut(child, common)
            entry.used_at = self._num_uses
            spans.append(entry.slots)
            at += common
        return entry, spans

    def _cut(self, entry: Entry, length: int) -> Entry:
        """Make the first `length` tokens of `entry` an entry of their own, and return it."""
        parent = entry.parent
        assert parent is not None, "a root has no tokens to be cut"
        head = Entry(entry.tenant, parent, entry.tokens[:length].copy(), entry.slots[:length].copy())
        head.num_locks, head.used_at = entry.num_locks, entry.used_at
        head.children[int(entry.tokens[length])] = entry
        parent.children[int(head.tokens[0])] = head
        entry.parent = head
        entry.tokens, entry.slots = entry.tokens[length:].copy(), entry.slots[length:].copy()
        return head

    def _append(self, parent: Entry, tokens: IntArray, slots: IntArray) -> Entry:
        entry = Entry(parent.tenant, parent, tokens, slots)
        entry.used_at = self._num_uses
        parent.children[int(tokens[0])] = entry
        self.num_slots += len(slots)
        self._held[parent.tenant] = self._held.get(parent.tenant, 0) + len(slots)
        self._offer(entry)
        return entry

    def _offer(self, entry: Entry) -> None:
        """It may be evicted when its turn comes."""
        if entry.evictable and not entry.queued:
            entry.queued = True
            self._num_pushed += 1
            heap = self._oldest.setdefault(entry.tenant, [])
            heapq.heappush(heap, (entry.used_at, self._num_pushed, entry))

    def _next_victim(self, elsewhere: Mapping[str, int]) -> Entry | None:
        """The least recently used leaf of the tenant that holds most, of those that have one."""
        held = {tenant: number + elsewhere.get(tenant, 0) for tenant, number in self._held.items()}
        for tenant in sorted(held, key=held.__getitem__, reverse=True):
            heap = self._oldest.get(tenant, [])
            while heap:
                used_at, _, entry = heap[0]
                if entry.evictable and entry.used_at == used_at:
                    return entry
                heapq.heappop(heap)
                entry.queued = False
                self._offer(entry)  # used since: it comes again with its new time, if it still may go
        return None

    def _trim(self, leaf: Entry, count: int) -> list[int]:
        """Take up to `count` slots off the end of `leaf`; an entry without tokens leaves the tree."""
        kept = max(0, len(leaf.slots) - count)
        freed: list[int] = leaf.slots[kept:].tolist()
        self.num_slots -= len(freed)
        self._held[leaf.tenant] -= len(freed)
        first = int(leaf.tokens[0])
        leaf.tokens, leaf.slots = leaf.tokens[:kept].copy(), leaf.slots[:kept].copy()
        if not kept:
            self._remove(leaf, first)
        return freed

    def _remove(self, leaf: Entry, first_token: int) -> None:
        parent = leaf.parent
        assert parent is not None, "a root is no leaf that is evicted"
        del parent.children[first_token]
        leaf.parent = None
        self._offer(parent)
        if not self._held[leaf.tenant]:
            for known in (self._roots, self._held, self._oldest):
                known.pop(leaf.tenant, None)

    def _entries(self) -> Iterator[Entry]:
        ahead = [child for root in self._roots.values() for child in root.children.values()]
        while ahead:
            entry = ahead.pop()
            yield entry
            ahead += entry.children.values()


_EMPTY: tuple[IntArray, IntArray] = (np.zeros(0, np.int32), np.zeros(0, np.int32))


def _upward(entry: Entry) -> Iterator[Entry]:
    """The entry and those above it, the root included."""
    each: Entry | None = entry
    while each is not None:
        yield each
        each = each.parent


def _common(left: IntArray, right: IntArray) -> int:
    """How many tokens two sequences begin with alike."""
    length = min(len(left), len(right))
    differs = np.flatnonzero(left[:length] != right[:length])
    return int(differs[0]) if len(differs) else length
