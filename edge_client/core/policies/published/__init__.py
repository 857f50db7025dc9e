"""Published schemes as growth policies, one file each (docs/schemes.md).

Each keeps its defining idea: how long a block is, what is drafted while a verdict travels, and whether the
verifier goes on alone. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_client.core.policies.base import GrowthPolicy
from edge_client.core.policies.published.amusd import AmusdPolicy
from edge_client.core.policies.published.bild import BildPolicy
from edge_client.core.policies.published.delay_optimal import DelayOptimalPolicy
from edge_client.core.policies.published.pacer import PacerPolicy
from edge_client.core.policies.published.parked import ParkedPolicy
from edge_client.core.policies.published.pearl import PearlPolicy
from edge_client.core.policies.published.picospec import PicoSpecPolicy
from edge_client.core.policies.published.saguaro import SaguaroPolicy
from edge_client.core.policies.published.specedge import SpecEdgePolicy

PUBLISHED: dict[str, Callable[..., GrowthPolicy]] = {
    "sync_delay_optimal": DelayOptimalPolicy,
    "amusd": AmusdPolicy,
    "pearl": PearlPolicy,
    "picospec": PicoSpecPolicy,
    "specedge": SpecEdgePolicy,
    "saguaro": SaguaroPolicy,
    "parked": ParkedPolicy,
    "bild": BildPolicy,
    "pacer": PacerPolicy,
}
"""By the names that `make_policy` takes."""
