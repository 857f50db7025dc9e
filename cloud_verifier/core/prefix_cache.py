"""Cache the KV of committed tokens after their session has ended, and find it by the tokens.

Each tenant has a radix tree of its own, so that response times reveal nothing of another tenant's texts. One
entry holds a span of tokens. Entries that a session reads are locked; the others are evicted, least recently
used first. The page size is 1: a prefix matches to the token (RadixAttention, Zheng et al. 2024, with
tenants).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cloud_verifier.core.engine_protocol import IntArray
from common.errors import LocalError


@dataclass(slots=True, eq=False)
class CacheEntry:
    """Holds a span of tokens below its parent, and the slots of their KV. Made by `PrefixCache` only."""

    tenant: str
    parent: CacheEntry | None
    tokens: IntArray  # [L] int32; empty only at a root
    slots: IntArray  # [L] int32
    used_at: int = 0  # of the cache's count of uses
    num_locks: int = 0  # sessions that read this entry or one below it
    queued: bool = False  # for eviction
    ended: bool = False  # a text was inserted that ended with the last slot
    children: dict[int, CacheEntry] = field(default_factory=dict)  # by their first token

    @property
    def evictable(self) -> bool:
        """Whether the entry is a leaf without locks. An evicted entry has lost its parent."""
        return self.parent is not None and not self.children and not self.num_locks


class StoredPrefix(NamedTuple):
    """Holds the result of `PrefixCache.insert`."""

    entry: CacheEntry  # of the last token
    slots: IntArray  # [L] the cache's slots of all tokens
    surplus: IntArray  # given slots whose tokens were cached already; the caller keeps them


class PrefixCache:
    """Maps tokens to slots, by tenant. Owns the slots it was given until it evicts them."""

    def __init__(self) -> None:
        self.num_slots = 0  # held
        self.num_locked = 0  # of them, in locked entries
        self.num_evicted = 0  # slots, over all time
        self._roots: dict[str, CacheEntry] = {}
        self._held: dict[str, int] = {}  # slots by tenant
        self._oldest: dict[str, list[tuple[int, int, CacheEntry]]] = {}  # heaps: (used_at, sequence, leaf)
        self._num_uses = 0
        self._num_pushed = 0

    # Reading ----------------------------------------------------------------------------------------------

    def match(
        self, tenant: str, tokens: Sequence[int] | IntArray, at_ends: bool = False
    ) -> tuple[CacheEntry | None, IntArray]:
        """Return the longest cached prefix of `tokens`: its last entry, split at the end of the prefix, and
        its slots int32 [L]. Return None and no slots if the first token is not cached. With `at_ends` the
        prefix is one whose last slot was the last one of an insertion."""
        root = self._roots.get(tenant)
        if root is None or not len(tokens):
            return None, _NOTHING
        entry, spans = self._walk(root, np.asarray(tokens, np.int32))
        while at_ends and spans and not entry.ended:
            spans.pop()
            entry = entry.parent or root
        return (entry, np.concatenate(spans)) if spans else (None, _NOTHING)

    def lock(self, entry: CacheEntry) -> None:
        """Keep everything down to `entry` for a session that reads it, until `unlock`."""
        for each in _upward(entry):
            each.num_locks += 1
            if each.num_locks == 1:
                self.num_locked += len(each.slots)

    def unlock(self, entry: CacheEntry) -> None:
        for each in _upward(entry):
            if not each.num_locks:
                raise LocalError("a cache entry was unlocked more often than locked")
            each.num_locks -= 1
            if not each.num_locks:
                self.num_locked -= len(each.slots)
                self._offer(each)

    def num_unlocked(self, entry: CacheEntry) -> int:
        """Return the number of slots that locking `entry` would lock anew."""
        return sum(len(each.slots) for each in _upward(entry) if not each.num_locks)

    # Writing ----------------------------------------------------------------------------------------------

    def insert(self, tenant: str, tokens: Sequence[int] | IntArray, slots: IntArray) -> StoredPrefix:
        """Take over `slots` int32 [L], the KV of `tokens` from position 0 on; L >= 1.

        The slots of a prefix that is cached already stay the caller's (`StoredPrefix.surplus`), unless they
        are the cache's own. A session that reads a cached prefix passes these in front of its new slots.
        """
        root = self._roots.setdefault(tenant, CacheEntry(tenant, None, _NOTHING, _NOTHING))
        new = np.asarray(tokens, np.int32)
        entry, spans = self._walk(root, new)
        known = sum(map(len, spans))
        cached = np.concatenate((_NOTHING, *spans))
        surplus = slots[:known][slots[:known] != cached]
        if known < len(new):
            entry = self._append(entry, new[known:].copy(), slots[known:].copy())
        stored = np.concatenate((cached, slots[known:]))
        entry.ended |= bool(stored[-1] == slots[-1])  # else the end that was cached had another slot
        return StoredPrefix(entry, stored, surplus)

    def evict(self, count: int, elsewhere: Mapping[str, int] | None = None) -> list[int]:
        """Free `count` unlocked slots, or as many as there are: of the tenant that holds most, least recently
        used first. So a tenant that floods the cache evicts its own entries. `elsewhere` counts the slots of
        each tenant's sessions, which weigh in as well."""
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
        for entry in self._entries():
            yield from entry.slots.tolist()

    def check_integrity(self) -> None:
        """Raise `LocalError` unless all counts are right and every entry is a child of its parent."""
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
            raise LocalError(f"the cache counts {self.num_slots} slots, but its entries hold {held}")

    # Inside -----------------------------------------------------------------------------------------------

    def _walk(self, root: CacheEntry, tokens: IntArray) -> tuple[CacheEntry, list[IntArray]]:
        """Walk down along `tokens` as far as they are cached. An entry that matches in part is split."""
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

    def _cut(self, entry: CacheEntry, length: int) -> CacheEntry:
        """Make the first `length` tokens of `entry` an entry of their own, and return it."""
        parent = entry.parent
        assert parent is not None, "a root has no tokens to be cut"
        tokens, slots = entry.tokens[:length].copy(), entry.slots[:length].copy()
        head = CacheEntry(entry.tenant, parent, tokens, slots, entry.used_at, entry.num_locks)
        head.children[int(entry.tokens[length])] = entry
        parent.children[int(head.tokens[0])] = head
        entry.parent = head
        entry.tokens, entry.slots = entry.tokens[length:].copy(), entry.slots[length:].copy()
        return head

    def _append(self, parent: CacheEntry, tokens: IntArray, slots: IntArray) -> CacheEntry:
        entry = CacheEntry(parent.tenant, parent, tokens, slots, self._num_uses)
        parent.children[int(tokens[0])] = entry
        self.num_slots += len(slots)
        self._held[parent.tenant] = self._held.get(parent.tenant, 0) + len(slots)
        self._offer(entry)
        return entry

    def _offer(self, entry: CacheEntry) -> None:
        """Queue the entry for eviction."""
        if entry.evictable and not entry.queued:
            entry.queued = True
            self._num_pushed += 1
            heap = self._oldest.setdefault(entry.tenant, [])
            heapq.heappush(heap, (entry.used_at, self._num_pushed, entry))

    def _next_victim(self, elsewhere: Mapping[str, int]) -> CacheEntry | None:
        """Return the least recently used leaf of the tenant that holds most and has a leaf to evict."""
        held = {tenant: number + elsewhere.get(tenant, 0) for tenant, number in self._held.items()}
        for tenant in sorted(held, key=held.__getitem__, reverse=True):
            heap = self._oldest.get(tenant, [])
            while heap:
                used_at, _, entry = heap[0]
                if entry.evictable and entry.used_at == used_at:
                    return entry
                heapq.heappop(heap)
                entry.queued = False
                self._offer(entry)  # it was used since; queue it with its new time if it is still evictable
        return None

    def _trim(self, leaf: CacheEntry, count: int) -> list[int]:
        """Take up to `count` slots off the end of `leaf`; an entry without tokens leaves the tree."""
        kept = max(0, len(leaf.slots) - count)
        freed: list[int] = leaf.slots[kept:].tolist()
        leaf.ended = False
        self.num_slots -= len(freed)
        self._held[leaf.tenant] -= len(freed)
        first = int(leaf.tokens[0])
        leaf.tokens, leaf.slots = leaf.tokens[:kept].copy(), leaf.slots[:kept].copy()
        if not kept and (parent := leaf.parent) is not None:
            del parent.children[first]
            leaf.parent = None
            self._offer(parent)
            if not self._held[leaf.tenant]:
                for known in (self._roots, self._held, self._oldest):
                    known.pop(leaf.tenant, None)
        return freed

    def _entries(self) -> Iterator[CacheEntry]:
        ahead = [child for root in self._roots.values() for child in root.children.values()]
        while ahead:
            entry = ahead.pop()
            yield entry
            ahead += entry.children.values()


_NOTHING: IntArray = np.zeros(0, np.int32)


def _upward(entry: CacheEntry) -> Iterator[CacheEntry]:
    each: CacheEntry | None = entry
    while each is not None:
        yield each
        each = each.parent


def _common(left: IntArray, right: IntArray) -> int:
    """Return how many tokens two sequences begin with alike."""
    length = min(len(left), len(right))
    differs = np.flatnonzero(left[:length] != right[:length])
    return int(differs[0]) if len(differs) else length
