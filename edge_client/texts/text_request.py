"""A client's request for a text, checked and in tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from common.acceptance import COUPLED, Acceptance, AcceptanceRule
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.effects import Fallback
from edge_client.texts.resume import NOTHING, Begun


class Writer(Enum):
    SPLIT = "split"  # the target's, drafted here
    TARGET = "target"  # the target's, nothing drafted
    DRAFT = "draft"  # the draft model's own, no verifier asked


LISTS = ("prompt", "stops")
PLAIN = (*LISTS, "references", "id", "logprobs", "revises", "policy", "recall")
"""Fields of a `TextRequest` that JSON represents directly."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Requests one text. The constructor raises `UserError` for bad values."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    id: str = ""  # names it in logs, in status pages, and to the verifier
    writer: Writer = Writer.SPLIT
    stops: tuple[str, ...] = ()  # strings before which the text ends
    logprobs: int | None = None  # alternatives shown with each token; None: no log-probabilities
    fallback: Fallback = Fallback.WAIT
    revises: bool = False  # show guesses, because the client can take them back
    policy: str = "adaptive"
    recall: bool = True  # also propose repetitions of the text
    references: tuple[tuple[int, ...], ...] = ()  # texts in tokens that this one may repeat
    drafting: bool = True  # run the draft model; without it repeats alone are proposed
    acceptance: Acceptance = COUPLED
    advised: tuple[tuple[str, float], ...] = ()  # sampling values that the target's makers chose, by name
    begun: Begun = NOTHING
    target: str = ""  # name of the target that writes; empty: the one that its first verifier serves

    @property
    def drafts(self) -> bool:
        """Tell whether the draft model takes part."""
        return self.drafting and self.writer is not Writer.TARGET and self.policy != "off"

    @property
    def repeats(self) -> bool:
        """Tell whether repeats are proposed without the draft model."""
        return self.recall and not self.drafting and self.writer is Writer.SPLIT

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError("the prompt is empty; at least one token is needed")
        if len(self.begun.tokens) != len(self.begun.origins):
            raise UserError("a text that goes on needs an origin for each of its tokens")

    def to_json(self) -> dict[str, Any]:
        """Return all data needed to continue the text."""
        return {
            **{name: getattr(self, name) for name in PLAIN},
            "writer": self.writer.value,
            "fallback": self.fallback.value,
            "advised": dict(self.advised),
            "target": self.target,
            "sampling": asdict(self.sampling),
            "acceptance": {**asdict(self.acceptance), "rule": self.acceptance.rule.value},
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> TextRequest:
        """Return the request of `to_json`. Raises as the constructor does, or `ValueError`, `KeyError` or
        `TypeError` for another version's JSON."""
        sampling, acceptance = given["sampling"], given["acceptance"]
        bias = tuple((int(token), float(value)) for token, value in sampling["logit_bias"])
        stop_ids = tuple(sampling["stop_token_ids"])
        return cls(
            **{name: given[name] for name in PLAIN}
            | {name: tuple(given[name]) for name in LISTS}
            | {"references": tuple(map(tuple, given["references"]))},
            sampling=SamplingParams(**{**sampling, "logit_bias": bias, "stop_token_ids": stop_ids}),
            writer=Writer(given["writer"]),
            fallback=Fallback(given["fallback"]),
            acceptance=Acceptance(**{**acceptance, "rule": AcceptanceRule(acceptance["rule"])}),
            advised=tuple(given["advised"].items()),
            target=given["target"],
        )
