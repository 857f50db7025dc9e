"""The interface of growth policies, and the view that they may read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from common.calibration import Survival
from common.errors import UserError
from common.estimators import IntervalEstimator, LinearTimeEstimator, RatioEstimator, RttEstimator
from common.prompt_lookup import SharedTexts
from common.tree import Node, SpeculationTree
from edge_client.core.draft_times import DraftTimes
from edge_client.core.server_pace import ServerPace

PATH_LOGPROB = attrgetter("path_logprob")


class TokenCandidate(NamedTuple):
    """A token that may follow a node, with the chance (nats) that it does if the node is right."""

    token: int
    logprob: float


Offered = Sequence[TokenCandidate]
"""The candidates after a node, best first."""


@dataclass(slots=True)
class GrowthView:
    """Shows a session's state to its policy. Read only."""

    tree: SpeculationTree
    last_position: int  # no token of the text lies beyond
    credit: int  # live nodes the verifier will hold
    rtt: RttEstimator = field(default_factory=RttEstimator)
    pace: DraftTimes = field(default_factory=DraftTimes)  # of the draft model, over all its texts
    step_time: LinearTimeEstimator = field(default_factory=LinearTimeEstimator)  # of a target step, by nodes
    acceptance: RatioEstimator = field(default_factory=lambda: RatioEstimator(prior=0.7))  # see `EdgeSession`
    survival: Survival = field(default_factory=Survival)  # of the draft's best candidates
    turn: IntervalEstimator = field(default_factory=lambda: IntervalEstimator(0.030))  # a step and its queue
    server: ServerPace = field(default_factory=ServerPace)  # what the verifier finds by itself
    now: float = 0.0  # seconds, of the input that is being answered
    news_at: float | None = None  # when the stream's newest Commit came, half a round trip after it left
    num_sent: int = 0  # live nodes below the tip that were sent on this stream
    stream_up: bool = False
    num_unread: int = 0  # committed tokens before the tip that the draft model has not evaluated
    is_paced: bool = True  # the latest draft step was a sample of the pace

    @property
    def token_time(self) -> float:
        """Seconds that a token takes without drafts of this device."""
        return self.turn.smoothed / self.server.tokens

    @property
    def catch_up_time(self) -> float:
        """Seconds that the next draft step spends reading committed tokens."""
        return self.pace.reads.predict(self.num_unread)

    @property
    def credit_left(self) -> int:
        return max(0, self.credit - self.num_sent)  # it may have shrunk since they were sent


class GrowthPolicy(Protocol):
    """Decides which nodes exist, are drafted next and are sent."""

    name: str
    fill: bool  # the verifier may go on without a draft

    def sources(self, text: Sequence[int], shared: SharedTexts, recall: bool) -> Sequence[Any]:
        """Return own `ProposalSource`s, without fill the only ones. `recall`: they may copy earlier text."""
        return ()

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        """Return the candidates that become children of `node`, which has just been drafted."""

    def expand(self, view: GrowthView) -> Sequence[Node]:
        """Return the nodes of the next draft step, parents first; none to rest until there is news."""

    def send(self, view: GrowthView) -> Sequence[Node]:
        """Return the unsent nodes to send now, parents first, at most `view.credit_left`."""


def unsent(view: GrowthView) -> list[Node]:
    """Return the live nodes below the tip that the verifier does not know, parents first."""
    missing, unsent_nodes = view.tree.num_speculative - view.num_sent, list[Node]()
    for node in reversed(view.tree.live.values()):  # the newest first: most of the others were sent long ago
        if not missing:
            break
        if not node.wire_id:
            unsent_nodes.append(node)
            missing -= 1
    unsent_nodes.reverse()
    return unsent_nodes


def can_expand(view: GrowthView, node: Node) -> bool:
    """Return whether drafting `node` could give a child that may become text."""
    return not node.evaluated and not node.busy and node.position < view.last_position


def expandable(view: GrowthView) -> list[Node]:
    """Return all nodes that `can_expand` allows, in the order of their ids."""
    last, live = view.last_position, view.tree.live.values()  # inlined: a decision looks at every node
    return [node for node in live if not node.evaluated and not node.busy and node.position < last]


def as_wide_as_it_pays(
    view: GrowthView,
    frontier: Sequence[tuple[float, Node]],
    most: int,
    promised: Callable[[Sequence[Node], float], float] | None = None,
) -> tuple[list[Node], float]:
    """Return the best first nodes of `frontier` for one draft step, and the sum of their promises.

    `frontier` holds promises (any unit) with their nodes, best first. The result has at most `most` nodes: as
    many as promise most per second, since a wider step may cost less per row. `promised` bounds the nodes'
    promises for a step of so many seconds.
    """
    rows = dict[int, None]()  # nodes that the step evaluates
    nodes, chosen = list[Node](), list[Node]()
    total, best_rate, best_total = 0.0, 0.0, 0.0
    sunk = view.catch_up_time + 1e-9  # is spent whatever the width
    for promise, node in frontier[:most]:
        rows[node.id] = None
        rows |= dict.fromkeys(above.id for above in missing_above(view.tree, node))
        nodes.append(node)
        total += promise
        step = view.pace.rows.predict(len(rows))
        least = best_rate * (sunk + step)  # to be the best so far
        if total > least and promised is not None and len(rows) > 1:
            total_promise = promised(nodes, step)
        else:
            total_promise = total
        if total_promise > least:
            chosen, best_rate, best_total = list(nodes), total_promise / (sunk + step), total_promise
    return chosen, best_total


def missing_above(tree: SpeculationTree, node: Node) -> list[Node]:
    """Return the node's ancestors that the draft must evaluate before it, the lowest first."""
    missing, live = list[Node](), tree.live
    while node.parent is not None and node.parent in live:
        node = live[node.parent]
        if node.evaluated:
            break
        missing.append(node)
    return missing


def sort_likeliest_first(nodes: list[Node]) -> None:
    """Sort nodes from the order of their ids, the likeliest first. The sort is stable, and a parent is never
    less likely than its child and has the smaller id."""
    nodes.sort(key=PATH_LOGPROB, reverse=True)


def check_counts(**settings: int) -> None:
    """Raise `UserError` for a policy's setting that is below 1."""
    for name, value in settings.items():
        if value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1")


def check_shares(**settings: float) -> None:
    """Raise `UserError` for a policy's setting that does not lie between 0 and 1."""
    for name, value in settings.items():
        if not 0.0 < value < 1.0:
            raise UserError(f"{name} is {value}; it must lie in (0, 1)")
