"""Constructs growth policies by name: our own, and those that an installed package offers.

A package offers a policy as an entry point of the group `forerun.policies`, as `schemes` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from inspect import signature

from common import offers
from common.errors import UserError
from edge_client.core.policies.adaptive import AdaptivePolicy, AdaptiveSettings
from edge_client.core.policies.base import GrowthPolicy, GrowthView, TokenCandidate
from edge_client.core.policies.plain import ChainPolicy, OffPolicy, SyncPolicy, TreePolicy, TreeSettings

POLICIES: dict[str, Callable[..., GrowthPolicy]] = {
    "adaptive": lambda **settings: AdaptivePolicy(AdaptiveSettings(**settings)),
    "tree": lambda **settings: TreePolicy(TreeSettings(**settings)),
    "chain": ChainPolicy,
    "sync": SyncPolicy,
    "off": OffPolicy,
}
"""Our own. Policies of entry points have other names."""

GROUP = "forerun.policies"


def offered() -> Mapping[str, EntryPoint]:
    """Return the policies that installed packages offer, by name, in the order of the names."""
    return offers.offered(GROUP)


def policy_named(name: str) -> Callable[..., GrowthPolicy]:
    """Return what makes a policy. Raise `UserError` for an unknown name."""
    if name in POLICIES:
        return POLICIES[name]
    if name in offered():
        made: Callable[..., GrowthPolicy] = offered()[name].load()
        return made
    known = ", ".join((*POLICIES, *offered()))
    raise UserError(f"growth policy {name!r} is unknown; choose one of {known}")


WHOLE = (
    *("width", "max_children", "max_depth", "max_live", "max_width", "block"),
    *("budget", "depth", "beam", "children", "fan_out", "branch_depth", "chunk", "step", "proactive"),
)
"""Settings that count nodes; the others are shares."""


def make_policy(text: str) -> GrowthPolicy:
    """Make a policy from name and settings: `tree:width=4,cut=0.01`, `sync:8`. Raise `UserError` for unknown
    names or settings."""
    name, _, rest = text.partition(":")
    make = policy_named(name)
    if name == "sync" and rest.isdigit():
        rest = f"block={rest}"
    try:
        settings = dict(_setting(part) for part in rest.split(",") if part)
        return make(**settings)
    except (TypeError, ValueError) as error:
        settings_of = {"adaptive": AdaptiveSettings, "tree": TreeSettings}.get(name, make)
        known = ", ".join(signature(settings_of).parameters) or "none"
        raise UserError(
            f"growth policy {text!r} cannot be parsed; the settings of {name} are: {known}. Write for "
            "example tree, tree:width=4,cut=0.01, chain:max_depth=16, sync:8 or off"
        ) from error


def _setting(part: str) -> tuple[str, int | float]:
    key, _, value = (piece.strip() for piece in part.partition("="))
    return key, int(value) if key in WHOLE else float(value)


__all__ = [
    "POLICIES",
    "AdaptivePolicy",
    "AdaptiveSettings",
    "ChainPolicy",
    "GrowthPolicy",
    "GrowthView",
    "OffPolicy",
    "SyncPolicy",
    "TokenCandidate",
    "TreePolicy",
    "TreeSettings",
    "make_policy",
    "offered",
    "policy_named",
]
