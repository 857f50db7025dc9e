"""Count the holdings and the service of each tenant, so that none takes more than its share.

If a step cannot serve all sessions, the least served tenant comes first (the counter of Sheng et al. 2024,
"Fairness in serving large language models", with evaluated rows in place of tokens). Rows of rejected drafts
count as well: a tenant pays for what its edges propose in vain.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from common.prompt_lookup import NO_TEXTS, SharedTexts
from common.suffix_index import GrowingIndex

MAX_AWAY = 4096
"""Tenants without a session whose service is remembered. Beyond that the first to leave is forgotten."""

MAX_WITH_TEXTS = 64
"""Tenants whose texts are remembered, in some 10 bytes a token."""


@dataclass(slots=True)
class Tenant:
    """Holds the current holdings of one tenant, and its service so far."""

    name: str
    num_sessions: int = 0
    num_slots: int = 0  # promised to its sessions
    service: float = 0.0  # rows evaluated for it, prefill and drafts included
    num_wasted: int = 0  # of them, rejected drafts, since the tenant last had no session


class Tenants:
    """Holds the tenants that have a session. A returning tenant keeps its earlier service, and starts with at
    least that of the least served tenant here (or of the last that left). So a tenant gains nothing by being
    away or by reconnecting for every text."""

    def __init__(self) -> None:
        self._here: dict[str, Tenant] = {}
        self._away = OrderedDict[str, float]()  # service of tenants without a session, first to leave first
        self._last_left = 0.0  # service

    def __len__(self) -> int:
        return len(self._here)

    def get(self, name: str) -> Tenant:
        """Return the tenant's current record. A tenant without a session has only its service."""
        return self._here.get(name) or Tenant(name, service=self._away.get(name, 0.0))

    def enter(self, name: str, num_slots: int) -> None:
        """Begin a session of the tenant, with `num_slots` promised."""
        tenant = self._here.get(name)
        if tenant is None:
            least = min((each.service for each in self._here.values()), default=self._last_left)
            service = max(least, self._away.pop(name, 0.0))
            tenant = self._here[name] = Tenant(name, service=service)
        tenant.num_sessions += 1
        tenant.num_slots += num_slots

    def leave(self, name: str, num_slots: int) -> None:
        """End a session of the tenant, with `num_slots` still promised."""
        tenant = self._here[name]
        tenant.num_sessions -= 1
        tenant.num_slots -= num_slots
        if not tenant.num_sessions:
            del self._here[name]
            self._last_left = self._away[name] = tenant.service
            if len(self._away) > MAX_AWAY:
                self._away.popitem(last=False)

    def hold(self, name: str, num_slots: int) -> None:
        """Promise `num_slots` more to a session of the tenant; fewer if negative."""
        self._here[name].num_slots += num_slots

    def note_service(self, name: str, num_rows: int, num_wasted: int) -> None:
        """Add a step's rows to the tenant's service. A tenant without a session is ignored."""
        tenant = self._here.get(name)
        if tenant is not None:
            tenant.service += num_rows
            tenant.num_wasted += num_wasted


class TenantTexts:
    """Holds the texts of each tenant, for others of its sessions to look up in. The speed of guesses may
    reveal texts to users of the same tenant, never to another tenant. Beyond `MAX_WITH_TEXTS` the texts of
    the longest unused tenant are forgotten.

    Args: capacity, tokens of each tenant, the newest; 0: none.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._texts = OrderedDict[str, SharedTexts]()

    def of(self, tenant: str) -> SharedTexts:
        if not self._capacity:
            return NO_TEXTS
        found = self._texts.pop(tenant, None)
        texts = self._texts[tenant] = found or SharedTexts(GrowingIndex(capacity=self._capacity))
        if len(self._texts) > MAX_WITH_TEXTS:
            self._texts.popitem(last=False)
        return texts
