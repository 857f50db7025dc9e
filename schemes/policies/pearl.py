"""PEARL (arXiv 2408.11850)."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies.base import GrowthView, unsent
from schemes.policies.amusd import AmusdPolicy
from schemes.policies.rounds import MAX_BLOCK, num_within


class PearlPolicy(AmusdPolicy):
    """Sends a chain in chunks as long as a target step (PEARL, arXiv 2408.11850).

    While a chunk is verified the next is drafted (post-verify). While the first chunk after a miss is drafted
    the verifier finds what follows the tip by itself (pre-verify, here the fill). The paper's two processes
    meet at a barrier; here the verifier does not wait, and the draft first ends the step that the miss made
    useless. So the first chunk is what arrives before a target step begins, less a token for that step.
    """

    name = "pearl"

    def __init__(self, chunk: int = 0) -> None:
        """`chunk`: tokens of a chunk, the paper's gamma; 0: as many as are drafted within a target step."""
        if chunk < 0:
            raise UserError(f"chunk is {chunk}; it must be at least 1, or 0 for the ratio of speeds")
        self._chunk = chunk

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes, chunk = unsent(view), self.chunk(view)
        if not nodes:
            return ()
        ends = nodes[-1].position >= view.last_position or view.tree.num_speculative >= view.credit
        whole = len(nodes) if ends else len(nodes) - len(nodes) % chunk
        return nodes[: min(whole, view.credit_left)]

    def chunk(self, view: GrowthView) -> int:
        """Return the tokens of the next chunk: the ratio of speeds, which the paper finds best."""
        step, draft = view.step_time.predict(1), view.pace.rows.predict(1)
        chunk = self._chunk or num_within(step, draft)
        if not view.num_sent:
            rtt = view.rtt.smoothed_rtt
            room = step * (num_within(rtt, step) + 1) - rtt  # that a round trip leaves of a target step
            chunk = min(chunk, num_within(room, draft) - 1)
        return max(1, min(MAX_BLOCK, view.credit, chunk))
