"""The papers' own loops on one machine: what a policy in the simulator must come to, written without it.

Each loop meets the text and the draft of the first session of a world, and returns seconds per token after
the first. Verify and draft steps take the world's times; a message takes none.
"""

import math
from typing import NamedTuple

from simulator.system import knowledge_of
from simulator.world import World


class Branch(NamedTuple):
    """A node of a drafted tree: the ranks down to it, whether all are the text's, and their chance (nats)."""

    path: tuple[int, ...]
    right: bool
    logprob: float


class Text:
    """What the draft of a world's first session knows of its text. Places count from the first token."""

    def __init__(self, world: World) -> None:
        self.length = world.tokens
        self._knowledge, self._prompt = knowledge_of(world, 0), world.prompt_tokens

    def rank(self, place: int) -> int | None:
        """The target's token among the draft's candidates, from 1; None if it is not one of them."""
        tokens = self._knowledge.candidates(self._prompt + place)[0]
        token = self._knowledge.truth(self._prompt + place)
        return tokens.index(token) + 1 if token in tokens else None

    @property
    def acceptance(self) -> float:
        """The share of places at which the draft's best token is the target's."""
        return sum(self.rank(place) == 1 for place in range(self.length)) / self.length

    def run(self, place: int, most: int) -> int:
        """Tokens from `place` on that the draft has right, at most `most`."""
        most = min(most, self.length - place)
        return next((count for count in range(most) if self.rank(place + count) != 1), most)

    def tree(self, place: int, depth: int, beam: int, children: int) -> list[Branch]:
        """Branches from `place` on, the likeliest first, of a tree with the `beam` likeliest of each level
        expanded. Off the text a node has the candidates of another place."""
        grown, level = list[Branch](), [Branch((), True, 0.0)]
        for below in range(min(depth, self.length - place)):
            fresh = list[Branch]()
            for number, (path, right, logprob) in enumerate(level):
                truth = self.rank(place + below) if right else None
                elsewhere = 1 + (place * 31 + number * 7 + below) % (self.length - 1)
                scores = self._scores(place + below if right else elsewhere)
                for rank, score in enumerate(scores[:children]):
                    fresh.append(Branch((*path, rank), rank + 1 == truth, logprob + score))
            fresh.sort(key=lambda branch: -branch.logprob)
            grown += fresh
            level = fresh[:beam]
        return sorted(grown, key=lambda branch: (-branch.logprob, len(branch.path)))

    def _scores(self, place: int) -> tuple[float, ...]:
        return self._knowledge.candidates(self._prompt + place)[1]


def pearl(world: World, gamma: int) -> float:
    """PEARL, algorithm 2: both processes meet at a barrier. Pre-verify scores the first drafted token;
    post-verify scores a whole window, the first token of the next one included, so no bonus is left."""
    text, verify = Text(world), world.verifier.time
    drafted = gamma * world.device.draft_step_time(1)
    time, place, post = 0.0, 1, False
    while place < text.length:
        scored = gamma if post else 1
        time += max(verify(scored, 0), drafted)
        found = text.run(place, scored)
        post = found == scored
        place += found if post else found + 1
    return time / (place - 1)


def amusd(world: World) -> float:
    """AMUSD: the draft never stops; the verifier takes what there is, or makes a plain step."""
    text, verify, step = Text(world), world.verifier.time, world.device.draft_step_time(1)
    time, place, began = 0.0, 1, 0.0  # `began`: when the draft began at `base`
    base = place
    while place < text.length:
        ahead = max(0, math.floor((time - began) / step + 1e-9) - (place - base))
        time += verify(ahead + 1, 0)
        found = text.run(place, ahead)
        place += found
        agrees = found == ahead and place < text.length and text.rank(place) == 1
        place += 1  # the target's own token
        if not agrees:
            began += math.ceil((time - began) / step - 1e-9) * step  # the draft ends its step first
            base = place
    return time / (place - 1)


def ssd(world: World, block: int, fan_out: int) -> tuple[float, float]:
    """SSD with a uniform fan-out and a draft made on the spot after a miss; also the share of hits.

    An outcome is (tokens accepted, the token after them), which is foreseen if that token is among the
    draft's next `fan_out`, the drafted one left out where it was refused.
    """
    text, device = Text(world), world.device
    verify, anew = world.verifier.time(block + 1, 0), block * device.draft_step_time(1)
    cache = (block + 1) * device.draft_step_time(fan_out * (block + 1))
    time, place, hit, hits, rounds = 0.0, 1, False, 0, 0
    while place < text.length:
        time += max(verify, cache) if hit else verify + anew
        found = text.run(place, block)
        place += found
        if place < text.length:
            rank = text.rank(place)
            hit = rank is not None and (rank <= fan_out if found == block else rank <= 1 + fan_out)
            hits, rounds = hits + hit, rounds + 1
        place += 1
    return time / (place - 1), hits / max(1, rounds)


def specedge(world: World, budget: int, depth: int, beam: int, children: int) -> float:
    """SpecEdge for one client: a tree each round trip, and one ahead below the likeliest leaf's successor.

    A tree is grown level by level from the likeliest `beam` nodes; the likeliest `budget` of it are sent.
    """
    text, step = Text(world), world.device.draft_step_time(beam)
    away = world.link.rtt + world.verifier.time(budget + 1, 0)
    time, place, hit = 0.0, 1, False
    while place < text.length:
        time += max(away, (1 + depth) * step) if hit else away + depth * step
        sent = text.tree(place, depth, beam, children)[:budget]
        # Parents are as likely as their children or likelier, so the sent nodes are a tree again.
        found = max((len(path) for path, right, _ in sent if right), default=0)
        paths = {path for path, _, _ in sent}
        leaf, right, _ = next(
            node for node in sent if not any((*node[0], rank) in paths for rank in range(children))
        )
        place += found
        hit = right and len(leaf) == found and place < text.length and text.rank(place) == 1
        place += 1  # the target's own token
    return time / (place - 1)
