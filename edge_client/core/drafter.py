"""The words between the edge session and a drafter: which nodes to expand, and the candidates found there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.draft import Draft
from common.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A node to expand: evaluate the draft model on it and rank what may follow.

    `parent` is the id of the node above; None for the tip, whichever node that is by now. Its ancestors were
    expanded before, stand earlier in the same request, or (after a surprise) are evaluated on the way.
    """

    id: int
    parent: int | None
    token: int
    position: int


@dataclass(frozen=True, slots=True)
class Expansion:
    """What may follow a node: candidate tokens, best first.

    `scores` are the draft's processed logits plus the shared noise at position + 1 (nats; no noise when
    greedy), the very quantity whose argmax the target will choose by; equal length, decreasing. After a
    `start` for `plain` candidates they are the processed logits alone.
    """

    id: int
    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    draft: Draft | None = None  # set by the session where `tokens` were drawn from it; see `drawing`


@dataclass(frozen=True, slots=True)
class Reading:
    """Committed tokens that a draft step evaluated before its rows: the prompt, or what the verifier wrote.

    `seconds` is the time of the batches that held such tokens, the rows in those batches included. With
    `has_dear_masks` the step was held back for what its masks take (`MaskTime`): it tells no pace.
    """

    num_tokens: int = 0
    seconds: float = 0.0
    has_dear_masks: bool = False

    def __add__(self, other: Reading) -> Reading:
        return Reading(
            self.num_tokens + other.num_tokens,
            self.seconds + other.seconds,
            self.has_dear_masks or other.has_dear_masks,
        )


NOTHING_READ = Reading()
DEAR_MASKS = Reading(has_dear_masks=True)


@dataclass(frozen=True, slots=True)
class Reroot:
    """The tip moved. `committed` are (node id, token) from the old tip's child to the new tip, in order;
    `dead` are all other node ids that ended, expanded or not."""

    committed: tuple[tuple[int, int], ...]
    dead: tuple[int, ...]


class Drafter(Protocol):
    """Runs the draft model for one session at a time. One thread calls it."""

    @property
    def reading(self) -> Reading:
        """What the latest `expand` read of the committed text."""
        ...

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None:
        """Begin anew on a prompt's token ids; the last of them is the tip, node id `tip`. What `reroot` adds
        later is generated text, as the penalties count it. Above 0, `plain` asks for so many candidates after
        each node, ranked without the noise; 0 for the drafter's own number, ranked under it."""
        ...

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        """Evaluate the rows in one batch where it can; answers in the order of `rows`."""
        ...

    def reroot(self, change: Reroot) -> None:
        """Keep what hangs below the new tip, free the rest. Cheap: no model evaluation."""
        ...


def begin(
    drafter: Drafter,
    tokens: Sequence[int],
    tip: int,
    sampling: SamplingParams,
    plain: int = 0,
    generated: int = 0,
) -> None:
    """Start a drafter on a prompt and the last `generated` of `tokens`, which are text: what `reroot` adds
    counts as that. The ids on the way are the drafter's alone, and below all others."""
    num_prompt = len(tokens) - generated
    if not generated:
        drafter.start(tokens, tip, sampling, plain)
        return
    drafter.start(tokens[:num_prompt], tip - generated, sampling, plain)
    ids = range(tip - generated + 1, tip + 1)
    drafter.reroot(Reroot(tuple(zip(ids, tokens[num_prompt:], strict=True)), ()))
