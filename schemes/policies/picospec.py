"""PicoSpec (arXiv 2603.19133)."""

from __future__ import annotations

from edge_client.core.policies.base import GrowthView
from schemes.policies.amusd import AmusdPolicy
from schemes.policies.rounds import whole_ratio


class PicoSpecPolicy(AmusdPolicy):
    """Grows a chain just long enough to be drafted while a verdict travels (PicoSpec, arXiv 2603.19133).

    What has been drafted goes out at once and the verifier takes it as a partial block; it never goes on
    alone.
    """

    name = "picospec"
    fill = False

    def window(self, view: GrowthView) -> int:
        """Return n so that drafting n tokens takes a round trip and a target step."""
        away = view.rtt.smoothed_rtt + view.step_time.predict(1)
        return max(1, min(view.credit, whole_ratio(away, view.pace.rows.predict(1))))
