"""SSD / Saguaro (arXiv 2603.03251)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from common.errors import UserError
from common.estimators import RatioEstimator
from common.messages import MAX_NODES
from common.prompt_lookup import LEAST, PromptLookup, SharedTexts
from common.token_source import CopiedText
from common.tree import Node, SpeculationTree
from edge_client.core.policies.base import GrowthPolicy, GrowthView, Offered, can_expand
from edge_client.core.proposal_source import ProposalSource
from schemes.policies.rounds import MAX_BLOCK, likeliest_first, main_line, tokens_per_round

MAX_ENDS = 24
"""Most ends foreseen where `ends` follows the time: as many as the authors foresee, 3 after each of 0 to 7
accepted tokens."""

FIRST_MISSES = 0.5
"""Share of verdicts unforeseen with one guess at each place, before any was seen. So 0.17 with three guesses;
the paper reports down to 0.1."""


def fan_outs(block: int, acceptance: float, budget: float, exponent: float) -> list[float]:
    """Return guesses F_0 ... F_block of the token after 0 ... block accepted, reals that sum to `budget`.

    F_k = F_0 a**(k / (1 + r)), and F_block larger by (1 - a)**(-1 / (1 + r)), where the miss rate falls as
    F**-r (arXiv 2603.03251). The acceptance counts as one within 0.01 and 0.99.
    """
    a, root = min(max(acceptance, 0.01), 0.99), 1.0 / (1.0 + exponent)
    shares = [a ** (place * root) for place in range(block + 1)]
    shares[block] *= (1.0 - a) ** -root
    return [budget * share / sum(shares) for share in shares]


class SaguaroPolicy(GrowthPolicy):
    """Sends blocks, and caches the next block of each likely verdict (SSD / Saguaro, arXiv 2603.03251).

    While a block is in flight its likely ends (k accepted, another token) each get a block of their own, all
    drafted together. If the verdict is one of them its block goes out at once, else a new one is drafted.
    """

    name = "saguaro"
    fill = False

    def __init__(
        self, block: int = 0, fan_out: int = 0, budget: int = 0, exponent: float = 1.0, backup: int = 0
    ) -> None:
        """Set what is fixed; 0 leaves it to the rules.

        `block`: tokens of a block; else those with the least expected time per token. `fan_out`: guesses at
        every place, the authors' default; else geometric. `budget`: ends foreseen in all; else as many as a
        verdict leaves time for. `exponent`: r of `fan_outs`. `backup`: most tokens copied after an unforeseen
        verdict, where that promises more than a new draft; 0 always drafts.
        """
        counts = (("block", block), ("fan_out", fan_out), ("budget", budget), ("backup", backup))
        for name, value in counts:
            if not 0 <= value <= MAX_NODES:
                raise UserError(f"{name} is {value}; it must lie in [0, {MAX_NODES}]")
        if fan_out and budget:
            raise UserError(f"fan_out {fan_out} sets the ends of every place; leave budget {budget} out")
        if not 0 < exponent <= 10:  # powers of it stay finite
            raise UserError(f"exponent is {exponent}; it must lie in (0, 10]")
        self._fixed_block, self._fan_out, self._budget = block, fan_out, budget
        self._exponent = exponent
        self._misses = RatioEstimator(FIRST_MISSES)  # of verdicts, as if with one guess at each place
        self._block = self._ends = 1  # tokens of the next blocks, and the ends foreseen
        self._awaits = False  # a verdict
        self.view: GrowthView | None = None  # of the session, once it has begun
        self._backup = backup

    def sources(self, text: Sequence[int], shared: SharedTexts, recall: bool) -> Sequence[ProposalSource]:
        """Return the backup of a session that begins with `text`, if it may copy."""
        copies = recall and self._backup
        return (Backup(self, PromptLookup(text, shared), self._backup),) if copies else ()

    def branch(self, view: GrowthView, node: Node, candidates: Offered) -> Offered:
        place, block = min(self._place(view, node), self._block), self._block
        fan_out = self._fan_out
        if not fan_out:
            fan_out = round(fan_outs(block, view.acceptance.ratio, self._ends, self._exponent)[place])
        return candidates[: max(1, fan_out)] if place >= block else candidates[: 1 + fan_out]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        self._note_verdict(view)
        if not view.tree.num_speculative:
            self._plan(view)
        if view.num_sent:
            leaves = [node for node in self._cache_leaves(view) if can_expand(view, node)]
            return sorted(leaves, key=likeliest_first)[: 2 * self._ends]
        line = list(main_line(view, view.tree.tip))
        return line[-1:] if len(line) <= self._depth(view) and can_expand(view, line[-1]) else ()

    def send(self, view: GrowthView) -> Sequence[Node]:
        self._note_verdict(view)
        block = list(main_line(view, view.tree.tip))[1:]
        is_copied = bool(block) and not view.tree.tip.evaluated
        if view.num_sent or (len(block) < self._depth(view) and not is_copied):
            return ()
        sent, self._awaits = block[: self._depth(view)], True
        self._plan(view)  # for what is drafted in the meantime
        return sent

    def best_block(self, view: GrowthView) -> int:
        """Return the block with the least expected time per token.

        A foreseen verdict's block is drafted while the verdict travels, so a round takes the longer of the
        two. Only an unforeseen one adds the time of drafting.
        """
        if self._fixed_block:
            return self._fixed_block
        acceptance = min(1.0, view.acceptance.ratio)

        def time_per_token(block: int) -> float:
            away, ends = verdict_time(view, block), self.ends(view, block)
            miss = min(1.0, self._misses.ratio * math.pow((block + 1) / ends, self._exponent))
            cached = max(away, cache_time(view, block, ends))
            anew = away + block * view.pace.rows.predict(1)
            return (miss * anew + (1.0 - miss) * cached) / tokens_per_round(block, acceptance)

        return min(range(1, MAX_BLOCK + 1), key=time_per_token)

    def ends(self, view: GrowthView, block: int) -> int:
        """Return the number of ends foreseen: the most whose blocks are drafted while a verdict travels."""
        if self._fan_out or self._budget:
            return self._budget or self._fan_out * (block + 1)
        away = verdict_time(view, block)
        return 1 + bisect_right(range(2, MAX_ENDS + 1), away, key=lambda ends: cache_time(view, block, ends))

    def gains_by_copying(self, view: GrowthView, copied: float) -> bool:
        """Return whether `copied` tokens that hold, on average, are more a second than a block drafted anew.

        It is the paper's choice of the backup by batch size: a new block delays one text here and the whole
        batch there, so it pays while it takes little of a round.
        """
        away, block = verdict_time(view, self._block), self._block
        anew = tokens_per_round(block, min(1.0, view.acceptance.ratio))
        return (1.0 + copied) * (away + block * view.pace.rows.predict(1)) > anew * away

    def _plan(self, view: GrowthView) -> None:
        """Choose block and ends of the next round."""
        self.view = view
        self._block = self.best_block(view)
        self._ends = self.ends(view, self._block)

    def _note_verdict(self, view: GrowthView) -> None:
        """Count the verdict that has just come. It was foreseen if something is drafted below the tip."""
        if self._awaits and not view.num_sent:
            self._awaits = False
            guesses = self._ends / (self._block + 1)
            self._misses.add(float(not view.tree.tip.evaluated) * math.pow(guesses, self._exponent), 1.0)

    def _cache_leaves(self, view: GrowthView) -> Iterator[Node]:
        """Yield the block's last node, then the end of every foreseen block that is not complete."""
        live = view.tree.live
        known = [node for node in live.values() if node.wire_id or node is view.tree.tip]
        for node in known:
            if not node.children:
                yield node
            for child in node.children.values():
                if not live[child].wire_id:
                    line = list(main_line(view, live[child]))
                    if len(line) <= self._block:
                        yield line[-1]

    def _place(self, view: GrowthView, node: Node) -> int:
        """Tokens of its block that come before what follows the node."""
        above, place = node, 0
        while above is not view.tree.tip and above.parent is not None:
            parent = view.tree.live[above.parent]
            if view.num_sent and not above.wire_id and (parent.wire_id or parent is view.tree.tip):
                break  # a foreseen end: its block begins here
            above, place = parent, place + 1
        return place

    def _depth(self, view: GrowthView) -> int:
        room = view.last_position - view.tree.tip_position
        return max(1, min(self._block, room, view.credit))


class Backup(CopiedText, ProposalSource):
    """Copies what follows an unforeseen verdict from the text so far: the paper's fast backup speculator."""

    def __init__(self, policy: SaguaroPolicy, lookup: PromptLookup, most: int) -> None:
        """Args: most, tokens at a time."""
        super().__init__(lookup)
        self._policy, self._longest = policy, most

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        """Grow one chain below the tip if nothing was foreseen there and a new draft would take too long."""
        view, most = self._policy.view, min(self._longest, room, last - tree.tip_position)
        if view is None or view.num_sent or tree.tip.evaluated or tree.tip.children or most < 1:
            return
        line, end = list[tuple[int, float]](), -1
        for place, guess in enumerate(self._lookup.guess(most)):  # parents first, the likeliest first
            if guess.parent == end:
                line.append((guess.token, guess.logprob))
                end = place
        chances = accumulate(logprob for _, logprob in line)
        if line and self._policy.gains_by_copying(view, sum(map(math.exp, chances))):
            node = tree.tip
            for token, logprob in line:
                node = tree.grow(node, token, logprob)


def verdict_time(view: GrowthView, block: int) -> float:
    """Return the seconds from sending a block to its verdict: a round trip and a target step."""
    return view.rtt.smoothed_rtt + view.step_time.predict(block + 1)


def cache_time(view: GrowthView, block: int, ends: int) -> float:
    """Return the seconds of drafting the blocks of `ends` ends together; the last token's end needs a step of
    its own first."""
    return (block + 1) * view.pace.rows.predict(ends)
