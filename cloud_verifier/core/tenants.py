"""Who is served for whom: what each tenant holds and has had, so that one takes no more than its share.

Where all cannot be served in one step, the tenant that has had the least comes first (the counter of Sheng et
al. 2024, "Fairness in serving large language models", with evaluated rows in place of tokens). A row counts
whether or not it came to be text: what a tenant's edges propose in vain is its own loss.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tenant:
    """What one tenant holds now, and what it has had since it was last seen without a session."""

    name: str
    num_sessions: int = 0
    num_slots: int = 0  # promised to its sessions
    service: float = 0.0  # rows evaluated for it, prefill and drafts included
    num_wasted: int = 0  # of them, drafts that did not become text


class Tenants:
    """The tenants that have a session. One that comes starts level with the least served of those here, so
    that being away earns nothing."""

    def __init__(self) -> None:
        self._here: dict[str, Tenant] = {}

    def __len__(self) -> int:
        return len(self._here)

    def get(self, name: str) -> Tenant:
        """As it stands; one that is not here has nothing."""
        return self._here.get(name) or Tenant(name)

    def enter(self, name: str, num_slots: int) -> None:
        """A session of it begins, with so many slots promised."""
        tenant = self._here.get(name)
        if tenant is None:
            least = min((each.service for each in self._here.values()), default=0.0)
            tenant = self._here[name] = Tenant(name, service=least)
        tenant.num_sessions += 1
        tenant.num_slots += num_slots

    def leave(self, name: str, num_slots: int) -> None:
        """A session of it has ended, with so many slots still promised."""
        tenant = self._here[name]
        tenant.num_sessions -= 1
        tenant.num_slots -= num_slots
        if not tenant.num_sessions:
            del self._here[name]

    def hold(self, name: str, num_slots: int) -> None:
        """So many slots more were promised to a session of it; fewer, if negative."""
        self._here[name].num_slots += num_slots

    def charge(self, name: str, num_rows: int, num_wasted: int) -> None:
        """A step had rows of it. Nothing to one whose last session ended meanwhile."""
        tenant = self._here.get(name)
        if tenant is not None:
            tenant.service += num_rows
            tenant.num_wasted += num_wasted
