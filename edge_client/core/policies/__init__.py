"""Growth policies by name."""

from __future__ import annotations

from collections.abc import Callable

from common.errors import UserError
from edge_client.core.policies.base import Candidate, GrowthPolicy, GrowthView
from edge_client.core.policies.chain import ChainPolicy
from edge_client.core.policies.off import OffPolicy
from edge_client.core.policies.sync import SyncPolicy
from edge_client.core.policies.tree import TreePolicy, TreeSettings

POLICIES: dict[str, Callable[[], GrowthPolicy]] = {
    "tree": TreePolicy,
    "chain": ChainPolicy,
    "sync": SyncPolicy,
    "off": OffPolicy,
}


def make_policy(text: str) -> GrowthPolicy:
    """A policy from `name` or, for sync, `sync:K`. Raises `UserError` for an unknown one."""
    name, _, argument = text.partition(":")
    if name == "sync" and argument.isdigit():
        return SyncPolicy(int(argument))
    if name not in POLICIES or argument:
        raise UserError(f"growth policy {text!r} is unknown; choose one of {', '.join(POLICIES)} or sync:K")
    return POLICIES[name]()


__all__ = [
    "POLICIES",
    "Candidate",
    "ChainPolicy",
    "GrowthPolicy",
    "GrowthView",
    "OffPolicy",
    "SyncPolicy",
    "TreePolicy",
    "TreeSettings",
    "make_policy",
]
