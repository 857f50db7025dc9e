"""Acceptance rules by name: how the verifier decides a node, and what a session may set about it.

docs/acceptance.md explains them; `cloud_verifier.core.rules` carries them out. A lossless rule leaves the
target's law as it is. A lossy one does not, and is allowed only where an operator has named it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from common.errors import UserError


class AcceptanceRule(Enum):
    """The rules, by their numbers on the wire."""

    COUPLED = 1  # the argmax under shared noise; the default, in which no draft has a say
    REJECTION = 2  # Leviathan et al. 2023, alg. 1, over each node's first child
    BLOCK = 3  # Sun et al. 2024, alg. 2, over the chain of first children
    SPECINFER = 4  # Miao et al. 2024, multi-step speculative sampling, over all children
    LENIENCE = 5  # Leviathan et al. 2023, A.5
    TYPICAL = 6  # Cai et al. 2024 (Medusa)
    TOPK_GAP = 7  # Xia et al. 2023 (SpecDec)
    BILD = 8  # Kim et al. 2023 (BiLD), the rollback

    @property
    def title(self) -> str:
        """As a person writes it."""
        return self.name.lower().replace("_", "-")

    @property
    def lossless(self) -> bool:
        return self in LOSSLESS

    @property
    def drawn(self) -> bool:
        """Whether it needs drafts that were drawn at random, and the distributions they were drawn from."""
        return self in DRAWN


LOSSLESS = (
    AcceptanceRule.COUPLED,
    AcceptanceRule.REJECTION,
    AcceptanceRule.BLOCK,
    AcceptanceRule.SPECINFER,
)
DRAWN = (
    AcceptanceRule.REJECTION,
    AcceptanceRule.BLOCK,
    AcceptanceRule.SPECINFER,
    AcceptanceRule.LENIENCE,
)
GREEDY_TOO = (AcceptanceRule.TOPK_GAP, AcceptanceRule.BILD)
"""Rules that change greedy decoding; at temperature 0 every other one is the greedy match."""

PARAMETERS = {
    AcceptanceRule.LENIENCE: ("lenience",),
    AcceptanceRule.TYPICAL: ("epsilon", "delta"),
    AcceptanceRule.TOPK_GAP: ("top", "gap"),
    AcceptanceRule.BILD: ("rollback",),
}
"""What can be set about a rule; about the others nothing."""

NUM_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The rule of a session, with its parameters; those of other rules count for nothing.

    Checked in the constructor. Raises `UserError` that names the field, its value and the range allowed.
    """

    rule: AcceptanceRule = AcceptanceRule.COUPLED
    lenience: float = 0.5  # lenience: no token gets likelier than its own chance over this; 1 is `rejection`
    epsilon: float = 0.3  # typical: chance that always suffices (Medusa's code)
    delta: float = (
        0.09  # typical: factor of exp(-entropy), what suffices where the target is unsure (as above)
    )
    top: int = 3  # topk-gap: among so many best tokens
    gap: float = 1.0  # topk-gap: and within so many nats of the best
    rollback: float = 5.0  # bild: nats of surprise that are let pass (BiLD's code)

    def __post_init__(self) -> None:
        if not 0.0 < self.lenience <= 1.0:
            raise UserError(f"lenience is {self.lenience}; it must lie in (0, 1]")
        if not 0.0 < self.epsilon <= 1.0:
            raise UserError(f"epsilon is {self.epsilon}; it must lie in (0, 1]")
        if not 1 <= self.top <= NUM_MOST:
            raise UserError(f"top is {self.top}; it must lie in [1, {NUM_MOST}]")
        for name in ("delta", "gap", "rollback"):
            value = getattr(self, name)
            if not (value >= 0.0 and math.isfinite(value)):
                raise UserError(f"{name} is {value}; it must be finite and 0 or more")

    @property
    def title(self) -> str:
        """As `make_acceptance` reads it."""
        settings = [f"{name}={getattr(self, name):g}" for name in PARAMETERS.get(self.rule, ())]
        return f"{self.rule.title}:{','.join(settings)}" if settings else self.rule.title

    def decides(self, greedy: bool) -> bool:
        """Whether a choice is another one than the coupled rule's; greedy ones mostly are not."""
        if greedy:
            return self.rule in GREEDY_TOO
        return self.rule is not AcceptanceRule.COUPLED

    def draws(self, greedy: bool) -> bool:
        """Whether the edge draws its drafts and tells what from."""
        return self.rule.drawn and not greedy


COUPLED = Acceptance()

RULES = {rule.title: rule for rule in AcceptanceRule}


def make_acceptance(text: str) -> Acceptance:
    """From a name, with settings if wanted: `rejection`, `lenience:0.3`, `typical:epsilon=0.3,delta=0.09`.

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
            "lenience:0.3 or typical:epsilon=0.3,delta=0.09"
        ) from error
    return Acceptance(rule, **settings)


def rule_named(name: str) -> AcceptanceRule:
    """The rule that a person means. Raises `UserError`."""
    rule = RULES.get(name.strip())
    if rule is None:
        raise UserError(f"acceptance rule {name!r} is unknown; choose one of {', '.join(RULES)}")
    return rule


def _setting(part: str, allowed: tuple[str, ...]) -> tuple[str, int | float]:
    """`name=value`, or the value alone where there is only one that it could be of."""
    left, equals, right = (piece.strip() for piece in part.partition("="))
    name, value = (left, right) if equals else (allowed[0] if len(allowed) == 1 else "", left)
    if name not in allowed:
        raise KeyError(name)
    return name, int(value) if name == "top" else float(value)
