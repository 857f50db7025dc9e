"""Who is served for whom: what each tenant holds and has had, so that one takes no more than its share.

Where all cannot be served in one step, the tenant that has had the least comes first (the counter of Sheng et
al. 2024, "Fairness in serving large language models", with evaluated rows in place of tokens). A row counts
whether or not it came to be text: what a tenant's edges propose in vain is its own loss.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from common.recall import NgramTable

MAX_AWAY = 4096
"""Tenants without a session whose service is remembered. Beyond it the one that left first is forgotten."""

MAX_TABLES = 64
"""Tenants whose texts are remembered; each table takes some 0.4 KB a key."""


@dataclass(slots=True)
class Tenant:
    """What one tenant holds now, and what it has had."""

    name: str
    num_sessions: int = 0
    num_slots: int = 0  # promised to its sessions
    service: float = 0.0  # rows evaluated for it, prefill and drafts included
    num_wasted: int = 0  # of them, drafts that did not become text; since it last had no session


class Tenants:
    """The tenants that have a session. One that comes has had what it had when it left, and no less than the
    least served of those here (the last that left, if nobody is): so being away earns nothing, neither to
    who saved up meanwhile nor to who takes much and comes again for every text."""

    def __init__(self) -> None:
        self._here: dict[str, Tenant] = {}
        self._away = OrderedDict[str, float]()  # service of those without a session, who left first first
        self._last_left = 0.0  # service

    def __len__(self) -> int:
        return len(self._here)

    def get(self, name: str) -> Tenant:
        """As it stands; one that is not here has nothing but what it has had."""
        return self._here.get(name) or Tenant(name, service=self._away.get(name, 0.0))

    def enter(self, name: str, num_slots: int) -> None:
        """A session of it begins, with so many slots promised."""
        tenant = self._here.get(name)
        if tenant is None:
            least = min((each.service for each in self._here.values()), default=self._last_left)
            service = max(least, self._away.pop(name, 0.0))
            tenant = self._here[name] = Tenant(name, service=service)
        tenant.num_sessions += 1
        tenant.num_slots += num_slots

    def leave(self, name: str, num_slots: int) -> None:
        """A session of it has ended, with so many slots still promised."""
        tenant = self._here[name]
        tenant.num_sessions -= 1
        tenant.num_slots -= num_slots
        if not tenant.num_sessions:
            del self._here[name]
            self._last_left = self._away[name] = tenant.service
            if len(self._away) > MAX_AWAY:
                self._away.popitem(last=False)

    def hold(self, name: str, num_slots: int) -> None:
        """So many slots more were promised to a session of it; fewer, if negative."""
        self._here[name].num_slots += num_slots

    def charge(self, name: str, num_rows: int, num_wasted: int) -> None:
        """A step had rows of it. Nothing to one that is not here."""
        tenant = self._here.get(name)
        if tenant is not None:
            tenant.service += num_rows
            tenant.num_wasted += num_wasted


class NgramTables:
    """A table of texts for each tenant to guess from: by the pace of guessed tokens its users may learn of
    each other's texts, and nobody of another tenant's. Beyond `MAX_TABLES` the longest unused is forgotten.

    Args: capacity, `NgramTable`'s, of each; 0 = none.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tables = OrderedDict[str, NgramTable]()

    def of(self, tenant: str) -> NgramTable | None:
        """For a session that begins."""
        if not self._capacity:
            return None
        found = self._tables.pop(tenant, None)
        table = self._tables[tenant] = NgramTable(self._capacity) if found is None else found
        if len(self._tables) > MAX_TABLES:
            self._tables.popitem(last=False)
        return table
