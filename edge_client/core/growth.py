"""What grows a session's tree and what prunes it: the draft's expansions, guesses from the text itself, and
the target's choices, against which both are held."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.chances import Chances, SeededChances
from common.errors import LocalError
from common.messages import INITIAL_CREDIT
from common.recall import LEAST, NgramTable, Recall, grow_guesses
from common.tree import Node, SpeculationTree
from edge_client.core.calibration import Calibration, promised
from edge_client.core.config import SessionConfig
from edge_client.core.drafter import DraftRow, Expansion, Reroot
from edge_client.core.drawing import Drawing
from edge_client.core.pace import DraftPace
from edge_client.core.policies import Candidates, GrowthPolicy, GrowthView, missing_above
from edge_client.core.priors import SHIPPED

MOST_GUESSED = 32
"""New guesses after a commit; what a verifier evaluates in the two steps of a usual round trip."""

SURELY_GUESSED = math.log(0.5)
"""Chance of each guess beside a draft model, which knows better than a guess that is more often wrong."""


class Growth:
    """The tree of one session with all that is known of its nodes.

    `view` is what policies see of it; the session tells it of the stream, and this class of the tree.
    """

    def __init__(
        self,
        config: SessionConfig,
        policy: GrowthPolicy,
        ngrams: NgramTable | None = None,
        chances: Chances | None = None,
        pace: DraftPace | None = None,
    ) -> None:
        """`ngrams`, to guess from; `chances`, to draw drafts by: the seed's, unless a test has others;
        `pace`, of the draft model."""
        self.tree = SpeculationTree(config.begins_with)
        last_position = len(config.prompt) + config.sampling.max_tokens - 1
        unread = max(0, len(config.begins_with) - 1 - config.num_read)
        self.view = GrowthView(
            self.tree, last_position, INITIAL_CREDIT, pace=pace or DraftPace(), num_unread=unread
        )
        self.calibration = Calibration(config.prior or SHIPPED.at(config.sampling.temperature))
        self.view.survival = self.calibration.survival
        self.expansions: dict[int, Expansion] = {}  # of live nodes, by id
        self._overtaken: dict[int, int] = {}  # the token that followed each node that is being drafted still
        self._policy = policy
        drafts = policy.fill and policy.name != "off"  # the classic scheme, and none, stay what they are
        self._drawing: Drawing | None = None
        if config.draws:
            self._drawing = Drawing(chances or SeededChances(config.sampling.seed))
            self.view.drawn = True
            drafts = False  # a guess that is also drawn would be no draw any more
        self._recall = Recall(config.begins_with, ngrams) if config.recall and drafts else None

    @property
    def drawn(self) -> dict[int, Expansion] | None:
        """The expansions, if nodes are drawn from them and their distributions travel."""
        return self.expansions if self._drawing is not None else None

    def check_integrity(self) -> None:
        """Raise `LocalError` unless the tree is whole and the counts of sent nodes agree."""
        self.tree.check_integrity()
        sent = sum(1 for node in self.tree.speculative() if node.wire_id)
        if sent != self.view.num_sent:
            raise LocalError(f"{sent} live nodes carry a wire id, {self.view.num_sent} are counted")

    # The draft --------------------------------------------------------------------------------------------

    def rows(self, nodes: Sequence[Node]) -> tuple[DraftRow, ...]:
        """What a draft step of these nodes has to evaluate; they are busy until it has."""
        tip = self.tree.tip
        nodes = self._with_missing(nodes)
        for node in nodes:
            node.busy = True
        return tuple(
            DraftRow(node.id, None if node is tip else node.parent, node.token, node.position)
            for node in nodes
        )

    def _with_missing(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """And before each those of its ancestors that the draft has not evaluated: guesses hang below
        guesses, and the draft model reads what it goes on from."""
        rows = dict[int, Node]()
        for node in nodes:
            missing = missing_above(self.tree, node)
            rows |= {each.id: each for each in (*reversed(missing), node)}
        return list(rows.values())

    def branch(self, expansions: Sequence[Expansion]) -> None:
        """Grow from what a draft step said of live nodes; learn from what it said of nodes that have become
        text meanwhile."""
        live = self.tree.live
        for expansion in expansions:
            node, followed_by = live.get(expansion.id), self._overtaken.get(expansion.id)
            if node is not None:
                node.evaluated, node.busy = True, False
            if not math.isfinite(sum(expansion.scores)):
                continue  # a draft that overflows knows nothing here
            if node is not None:
                self._branch(node, expansion)
            elif followed_by is not None:
                self._learn(expansion, followed_by)
        self._overtaken.clear()

    def _branch(self, node: Node, expansion: Expansion) -> None:
        if self._drawing is not None:
            expansion = self._drawing.draw(expansion)
        self.expansions[node.id] = expansion
        candidates = Candidates(expansion.tokens, self._promised(expansion))
        for child in self._policy.branch(self.view, node, candidates):
            self.tree.grow(node, child.token, child.logprob)

    def _promised(self, expansion: Expansion) -> Sequence[float]:
        """The chance (nats) of each candidate."""
        drawn = self._drawing is not None
        found = expansion.scores if drawn else promised(self.calibration.confidence, expansion.scores)
        if len(found):
            self.view.survival.add(math.exp(found[0]))
        return found

    def _learn(self, expansion: Expansion, followed_by: int) -> None:
        """From a node that came too late: the text went on with `followed_by`."""
        if self._drawing is None:
            self._promised(expansion)
            self._calibrate(expansion, followed_by)

    def guess(self, *, beside_draft: bool) -> None:
        """Grow what the text would say if it repeated itself; only what is sure, beside a draft model."""
        if self._recall is not None:
            surely = SURELY_GUESSED if beside_draft else LEAST
            most = min(MOST_GUESSED, self.view.credit_left)  # what is drafted and stays here takes no room
            grow_guesses(self.tree, self._recall, self.view.last_position, most, surely)

    # The target -------------------------------------------------------------------------------------------

    def begin_stream(self) -> None:
        """Every live node is to be sent anew."""
        self.view.num_sent = 0
        for node in self.tree.live.values():
            node.wire_id = 0

    def advance(self, tokens: Sequence[int]) -> Reroot:
        """The target's choices: the tip goes along them, and what hangs elsewhere dies."""
        tree, view = self.tree, self.view
        committed, dead = list[tuple[int, int]](), list[int]()
        for token in tokens:
            self._observe(token)
            if self._recall is not None:
                self._recall.append(token)
            offered = any(tree.live[child].wire_id for child in tree.tip.children.values())
            view.num_unread += not (tree.tip.evaluated or tree.tip.busy)
            if tree.tip.busy:
                self._overtaken[tree.tip.id] = token
            died = tree.advance(token)
            accepted = tree.tip.wire_id > 0
            view.num_sent -= accepted
            if offered:
                view.acceptance.add(float(accepted), 1.0)
            committed.append((tree.tip.id, token))
            for node in died:
                dead.append(node.id)
                view.num_sent -= node.wire_id > 0
                if node.evaluated:
                    self.expansions.pop(node.id, None)
        return Reroot(tuple(committed), tuple(dead))

    def _observe(self, token: int) -> None:
        """Hold what the draft said after the tip against the target's choice."""
        said = self.expansions.pop(self.tree.tip.id, None)
        if said is not None and self._drawing is not None:
            self._drawing.observe(said, token)
        elif said is not None:
            self._calibrate(said, token)

    def _calibrate(self, said: Expansion, token: int) -> None:
        """After a node of which the draft `said` this, the target chose `token`."""
        chosen = said.tokens.index(token) if token in said.tokens else None
        self.calibration.observe(said.scores, chosen)
