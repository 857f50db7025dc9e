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
from edge_client.core.policies.plain import OffPolicy, SyncPolicy

POLICIES: dict[str, Callable[..., GrowthPolicy]] = {
    "adaptive": lambda **settings: AdaptivePolicy(AdaptiveSettings(**settings)),
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


def make_policy(text: str) -> GrowthPolicy:
    """Make a policy from name and settings: `tree:width=4,cut=0.01`, `sync:8`. Raise `UserError` for unknown
    names or settings."""
    name, _, rest = text.partition(":")
    make = policy_named(name)
    if name == "sync" and rest.isdigit():
        rest = f"block={rest}"
    known = signature(AdaptiveSettings if name == "adaptive" else make).parameters
    try:
        settings = dict[str, int | float]()
        for part in filter(None, rest.split(",")):
            key, _, value = (piece.strip() for piece in part.partition("="))
            counts = key in known and isinstance(known[key].default, int)
            settings[key] = int(value) if counts else float(value)
        return make(**settings)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"growth policy {text!r} cannot be parsed; the settings of {name} are: "
            f"{', '.join(known) or 'none'}. Write for example tree, tree:width=4,cut=0.01, "
            "chain:max_depth=16, sync:8 or off"
        ) from error


__all__ = [
    "POLICIES",
    "AdaptivePolicy",
    "AdaptiveSettings",
    "GrowthPolicy",
    "GrowthView",
    "OffPolicy",
    "SyncPolicy",
    "TokenCandidate",
    "make_policy",
    "offered",
    "policy_named",
]
