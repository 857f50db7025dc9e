"""Define the acceptance rules by name, with the parameters that a session may set.

docs/schemes.md explains the rules; `schemes.rules` implements all but `coupled`. A lossless rule keeps the
target's law. A lossy rule does not, and needs an operator's permission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from common.errors import UserError


class AcceptanceRule(Enum):
    """Lists the acceptance rules; the values are their numbers on the wire."""

    COUPLED = 1  # the argmax under shared noise; the default, in which no draft has a say
    REJECTION = 2  # Leviathan et al. 2023, alg. 1, over each node's first child
    BLOCK = 3  # Sun et al. 2024, alg. 2, over the chain of first children
    SPECINFER = 4  # Miao et al. 2024, multi-step speculative sampling, over all children
    LENIENCE = 5  # Leviathan et al. 2023, A.5
    TYPICAL = 6  # Cai et al. 2024 (Medusa)
    TOPK_GAP = 7  # Xia et al. 2023 (SpecDec)
    BILD = 8  # Kim et al. 2023 (BiLD), the rollback
    SPECTR = 9  # Sun et al. 2023 (SpecTr), k-sequential selection, over all draws
    SPECTR_OT = 10  # the same drafts, decided by the optimal transport
    JUDGE = 11  # Garipov et al. 2025 (AutoJudge), a trained judge of mismatches
    REFLECTIVE = 12  # arXiv 2505.18629, fused with a second look at the draft
    CONTRASTIVE = 13  # Li et al. 2023, contrastive decoding; Yuan et al. 2024, with rejection sampling

    @property
    def title(self) -> str:
        """Return the name that options and settings use."""
        return self.name.lower().replace("_", "-")

    @property
    def lossless(self) -> bool:
        return self in LOSSLESS

    @property
    def drawn(self) -> bool:
        """Tell whether the rule needs drafts drawn at random, with the distributions that they were drawn
        from."""
        return self in DRAWN

    @property
    def replaces(self) -> bool:
        """Tell whether the drafts of a node are drawn with replacement, so that tokens may repeat."""
        return self in (AcceptanceRule.SPECTR, AcceptanceRule.SPECTR_OT)


LOSSLESS = (
    AcceptanceRule.COUPLED,
    AcceptanceRule.REJECTION,
    AcceptanceRule.BLOCK,
    AcceptanceRule.SPECINFER,
    AcceptanceRule.SPECTR,
    AcceptanceRule.SPECTR_OT,
)
DRAWN = (
    AcceptanceRule.REJECTION,
    AcceptanceRule.BLOCK,
    AcceptanceRule.SPECINFER,
    AcceptanceRule.LENIENCE,
    AcceptanceRule.SPECTR,
    AcceptanceRule.SPECTR_OT,
    AcceptanceRule.CONTRASTIVE,
)
GREEDY_TOO = (
    AcceptanceRule.TOPK_GAP,
    AcceptanceRule.BILD,
    AcceptanceRule.JUDGE,
    AcceptanceRule.REFLECTIVE,
    AcceptanceRule.CONTRASTIVE,
)
"""Rules that change greedy decoding. At temperature 0 every other rule is the greedy match."""

PARAMETERS = {
    AcceptanceRule.LENIENCE: ("lenience",),
    AcceptanceRule.TYPICAL: ("epsilon", "delta"),
    AcceptanceRule.TOPK_GAP: ("top", "gap"),
    AcceptanceRule.BILD: ("rollback",),
    AcceptanceRule.REFLECTIVE: ("fusion",),
    AcceptanceRule.CONTRASTIVE: ("alpha", "beta"),
}
"""Parameters by rule; other rules have none."""

NUM_MOST = 2**31 - 1

MOST_BETA = 16.0
"""The least chance of a draft token, 1 / 512, to this power is still far above the least float64."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """An acceptance holds a session's rule and its parameters; parameters of other rules have no effect.

    Checked in the constructor. Raises `UserError` that names the field, its value and the range allowed.
    """

    rule: AcceptanceRule = AcceptanceRule.COUPLED
    lenience: float = 0.5  # lenience: a token's chance grows by at most 1 / lenience; 1 is `rejection`
    epsilon: float = 0.09  # typical: chance that always suffices (Medusa's programs, posterior_threshold)
    delta: float = 0.3  # typical: factor of exp(-entropy), a chance that suffices too (posterior_alpha)
    top: int = 3  # topk-gap: rank within which a token is accepted
    gap: float = 1.0  # topk-gap: most nats behind the best token
    rollback: float = 5.0  # bild: most nats of surprise of an accepted token (BiLD's code)
    alpha: float = 0.1  # contrastive: least chance, as a share of the likeliest token's
    beta: float = 0.5  # contrastive: how far from the draft (both as O'Brien and Lewis 2023)
    fusion: float = 0.3  # reflective: weight of the second look's logits; 0 is `coupled`

    def __post_init__(self) -> None:
        if not 0.0 < self.lenience <= 1.0:
            raise UserError(f"lenience is {self.lenience}; it must lie in (0, 1]")
        for name in ("epsilon", "alpha"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise UserError(f"{name} is {value}; it must lie in (0, 1]")
        if not 0.0 <= self.fusion <= 1.0:
            raise UserError(f"fusion is {self.fusion}; it must lie in [0, 1]")
        if not 1 <= self.top <= NUM_MOST:
            raise UserError(f"top is {self.top}; it must lie in [1, {NUM_MOST}]")
        if not 0.0 <= self.beta <= MOST_BETA:
            raise UserError(f"beta is {self.beta}; it must lie in [0, {MOST_BETA:g}]")
        for name in ("delta", "gap", "rollback"):
            value = getattr(self, name)
            if not (value >= 0.0 and math.isfinite(value)):
                raise UserError(f"{name} is {value}; it must be finite and 0 or more")

    @property
    def title(self) -> str:
        """Return the text that `make_acceptance` reads."""
        settings = [f"{name}={getattr(self, name):g}" for name in PARAMETERS.get(self.rule, ())]
        return f"{self.rule.title}:{','.join(settings)}" if settings else self.rule.title

    def decides(self, greedy: bool) -> bool:
        """Tell whether a choice may differ from the coupled rule's choice."""
        if greedy:
            return self.rule in GREEDY_TOO
        return self.rule is not AcceptanceRule.COUPLED

    def draws(self, greedy: bool) -> bool:
        """Tell whether the edge draws its drafts and sends their distributions."""
        return self.rule.drawn and self.decides(greedy)


COUPLED = Acceptance()

RULES = {rule.title: rule for rule in AcceptanceRule}


def make_acceptance(text: str) -> Acceptance:
    """Read a rule with optional settings: `rejection`, `lenience:0.3`, `typical:epsilon=0.09,delta=0.3`.

    Raises `UserError` for an unknown name or setting.
    """
    rule, rest = rule_named(text.partition(":")[0]), text.partition(":")[2]
    allowed = PARAMETERS.get(rule, ())
    try:
        settings: dict[str, Any] = dict(_setting(part, allowed) for part in rest.split(",") if part)
    except (ValueError, KeyError) as error:
        known = f"it takes {', '.join(allowed)}" if allowed else "it takes no setting"
        raise UserError(
            f"acceptance rule {text!r} is not understood; {known}; write for example rejection, "
            "lenience:0.3 or typical:epsilon=0.09,delta=0.3"
        ) from error
    return Acceptance(rule, **settings)


def rule_named(name: str) -> AcceptanceRule:
    """Return the rule of this name. Raises `UserError`."""
    rule = RULES.get(name.strip())
    if rule is None:
        raise UserError(f"acceptance rule {name!r} is unknown; choose one of {', '.join(RULES)}")
    return rule


def _setting(part: str, allowed: tuple[str, ...]) -> tuple[str, int | float]:
    left, equals, right = (piece.strip() for piece in part.partition("="))
    name, value = (left, right) if equals else (allowed[0] if len(allowed) == 1 else "", left)
    if name not in allowed:
        raise KeyError(name)
    return name, int(value) if name == "top" else float(value)


# The distribution that drafts are drawn from is small enough to be sent: it has few tokens, in whole counts.

TOTAL = 256
"""Sum of a draft's counts. A byte holds a count, and tokens below 1/512 are hardly ever drawn. Rounding costs
at most 1/512 of acceptance a token, and usually half of that."""

MAX_TOKENS = 64
"""Most tokens of a draft. The demo pair, with long tails, uses 38 at temperature 0.8 and 48 at 1."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft gives each of its tokens the chance count / `TOTAL`; all other tokens have none."""

    tokens: tuple[int, ...]  # increasing
    counts: tuple[int, ...]  # one a token, above 0

    def problem(self) -> str | None:
        """Return what is wrong with the draft in words, or None."""
        if len(self.tokens) != len(self.counts):
            return f"has {len(self.tokens)} tokens and {len(self.counts)} counts"
        if not 1 <= len(self.tokens) <= MAX_TOKENS:
            return f"has {len(self.tokens)} tokens; there must be 1 to {MAX_TOKENS}"
        if any(one >= other for one, other in zip(self.tokens, self.tokens[1:], strict=False)):
            return "has tokens that do not increase"
        if min(self.counts) < 1 or sum(self.counts) != TOTAL:
            return f"has counts from {min(self.counts)} that sum to {sum(self.counts)}, not to {TOTAL}"
        return None
