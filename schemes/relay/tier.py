"""Models a middle tier: a model near the edge, between device and target (HSD, arXiv 2510.19705).

The three are a chain. At each position the middle model's choice is drawn from what the device's draft says,
and the target's from what the middle model says. So the device is right either with the middle model, or by
luck where that is wrong, as a smaller model of the same kind is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from common.errors import UserError
from simulator.drafts import BetaDraft
from simulator.events import Draws, DrawStream
from simulator.files import MS, Field, read_fields, refuse_unknown
from simulator.knowledge import (
    CANDIDATES,
    NUM_CANDIDATES,
    NUM_QUANTILES,
    OUTSIDE,
    Candidates,
    Knowledge,
    beta_scores,
    drawn_rank,
)
from simulator.world import DeviceSpec, World


@dataclass(frozen=True, slots=True)
class TierSpec:
    """Describes the middle model and its place. Times in seconds.

    `rtt` is the part of the world's round trip that lies between the device and the near edge. In a world
    with a tier the mean of its draft is the share of positions at which the device's best token is the
    middle model's; `mean` is the share at which that is the target's. At a share `likeness` of the positions
    the middle model is as sure as the draft, since what is easy is easy for both.
    """

    rtt: float = 0.010
    draft_time: float = 0.015  # of a step of the middle model
    draft_time_per_node: float = 0.0003  # for each node beyond the first
    mean: float = 0.9
    k: float = 2.0  # as of `BetaDraft`
    likeness: float = 0.7

    def __post_init__(self) -> None:
        for name in ("rtt", "draft_time", "draft_time_per_node"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"tier {name} is {getattr(self, name)}; it must be finite and 0 or more")
        for name in ("mean", "likeness"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"tier {name} is {getattr(self, name)}; it must lie in [0, 1]")
        if not 0 < self.k < math.inf:
            raise UserError(f"tier k is {self.k}; it must be finite and above 0")


@dataclass(frozen=True, slots=True)
class TieredDraft(BetaDraft):
    """Describes a device's draft beside a middle model, whose choices its `mean` and `k` foretell."""

    tier: TierSpec = field(default_factory=TierSpec)

    def session(self, draws: Draws, place: int = 0, first: int = 0) -> Knowledge:
        """Return what the device's draft knows."""
        return self.both(draws)[0]

    def read(self, draws: Draws, place: int = 0, first: int = 0) -> Knowledge:
        """Raise `UserError`: nothing is looked up in such a text."""
        raise UserError("a tier does not go with recall")

    def both(self, draws: Draws) -> tuple[TieredKnowledge, MiddleKnowledge]:
        """Return what the device's draft and the middle model know."""
        draft = BetaDraft(self.mean, self.k).session(draws)
        middle = MiddleKnowledge(self.tier, draft, draws)
        return TieredKnowledge(draft, middle), middle


TIER: dict[str, Field] = {
    "rtt_ms": ("rtt", float, MS),
    "draft_ms": ("draft_time", float, MS),
    "draft_ms_per_node": ("draft_time_per_node", float, MS),
    "mean": ("mean", float, 1.0),
    "k": ("k", float, 1.0),
    "likeness": ("likeness", float, 1.0),
}


def with_tier(world: World, table: Any) -> World:
    """Return the world with the middle model of a document's [tier]. Raises `UserError`."""
    if not isinstance(table, dict):
        raise UserError(f"tier is {table!r}; a table [tier] was expected")
    refuse_unknown("[tier]", table, list(TIER))
    draft = world.draft
    if not isinstance(draft, BetaDraft) or world.looks_up or world.sites:
        raise UserError(
            "a tier needs one verifier and a draft with a mean, and neither recall nor a recording"
        )
    tier = TierSpec(**read_fields("tier.", table, TIER))
    tiered = replace(world, draft=TieredDraft(draft.mean, draft.k, tier))
    beyond(tiered)
    return tiered


def tier_of(world: World) -> TierSpec:
    """Return the world's middle model. Raises `UserError` if there is none."""
    if not isinstance(world.draft, TieredDraft):
        raise UserError("this scheme drafts near the edge too, and the world has no [tier]")
    return world.draft.tier


def beyond(world: World) -> World:
    """Return the world of the middle model: its step times, and the link from the near edge on. Raises
    `UserError`."""
    tier, rtt = tier_of(world), world.link.rtt
    if not tier.rtt <= rtt:
        raise UserError(
            f"tier rtt is {1e3 * tier.rtt:g} ms and link rtt {1e3 * rtt:g} ms; the first is a part of the "
            "second"
        )
    steps = DeviceSpec(tier.draft_time, tier.draft_time_per_node)
    return replace(world, device=steps, link=replace(world.link, rtt=rtt - tier.rtt))


def both_knowledges(world: World, key: int) -> tuple[TieredKnowledge, MiddleKnowledge]:
    """Return what the device's draft and the middle model know of session `key`."""
    tier_of(world)
    assert isinstance(world.draft, TieredDraft), "it has a tier"
    return world.draft.both(Draws(world.seed, key))


class TieredKnowledge:
    """Holds what the device's draft says of a text that the target writes.

    Args: draft, what it says of the middle model's choices, which are the truth there.
    """

    def __init__(self, draft: Knowledge, middle: MiddleKnowledge) -> None:
        self._draft, self._middle = draft, middle

    def truth(self, position: int) -> int:
        return self._middle.truth(position)

    def candidates(self, position: int) -> Candidates:
        return self._draft.candidates(position)

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        return self._draft.candidates_off_path(node, position)


class MiddleKnowledge:
    """Holds what the middle model says of the same text. Everything is a function of (draws, position)."""

    def __init__(self, spec: TierSpec, draft: Knowledge, draws: Draws) -> None:
        self._likeness, self._draft, self._draws = spec.likeness, draft, draws
        self._table = beta_scores(spec.mean, spec.k)

    def truth(self, position: int) -> int:
        confidence, _ = self._sure(position)
        rank = drawn_rank(self._draws.uniform(DrawStream.MIDDLE_RANK, position), confidence)
        return self._ranked(position)[NUM_CANDIDATES if rank is None else rank - 1]

    def candidates(self, position: int) -> Candidates:
        return self._ranked(position)[:NUM_CANDIDATES], self._sure(position)[1]

    def candidates_off_path(self, node: int, position: int) -> Candidates:
        quantile = self._draws.bits(DrawStream.MIDDLE_OFF_PATH, node) % NUM_QUANTILES
        return CANDIDATES, self._table[quantile][1]

    def _sure(self, position: int) -> tuple[float, tuple[float, ...]]:
        """Return the confidence at a position, and the scores of the candidates."""
        alike = self._draws.uniform(DrawStream.MIDDLE_LIKENESS, position) < self._likeness
        stream = DrawStream.CONFIDENCE if alike else DrawStream.MIDDLE_CONFIDENCE
        return self._table[self._draws.bits(stream, position) % NUM_QUANTILES]

    def _ranked(self, position: int) -> tuple[int, ...]:
        """Return all tokens, the middle model's choice first and the others as the draft ranks them."""
        choice = self._draft.truth(position)
        return choice, *(token for token in (*CANDIDATES, OUTSIDE) if token != choice)
