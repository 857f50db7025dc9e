"""PEARL (arXiv 2408.11850)."""

from __future__ import annotations

from collections.abc import Sequence

from common.tree import Node
from edge_client.core.policies.base import GrowthView, unsent
from edge_client.core.policies.published.amusd import AmusdPolicy
from edge_client.core.policies.published.rounds import MAX_BLOCK, whole_ratio


class PearlPolicy(AmusdPolicy):
    """Sends a chain in chunks as long as a target step (PEARL, arXiv 2408.11850).

    While a chunk is verified the next is drafted (post-verify); while the first chunk after a miss is drafted
    the verifier finds what follows the tip by itself (pre-verify, here the fill).
    """

    name = "pearl"

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes, chunk = unsent(view), self.chunk(view)
        if not nodes:
            return ()
        ends = nodes[-1].position >= view.last_position or view.tree.num_speculative >= view.credit
        whole = len(nodes) if ends else len(nodes) - len(nodes) % chunk
        return nodes[: min(whole, view.credit_left)]

    def chunk(self, view: GrowthView) -> int:
        """Return the tokens drafted within one target step, the ratio of speeds that the paper finds best."""
        speeds = whole_ratio(view.step_time.predict(1), view.pace.rows.predict(1))
        return max(1, min(MAX_BLOCK, view.credit, speeds))
