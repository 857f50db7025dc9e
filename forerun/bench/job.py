"""What a process of clients is told to do, and what it tells of each text. All of it travels as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from common.errors import UserError
from common.sampling import SamplingParams

OFF, ORACLE, RECORDED, LIVE = "off", "oracle", "recorded", "live"

KINDS_IN_WORDS = (
    "off (plain streaming), oracle=0.8 (right with this chance), recorded (what the draft model said along "
    "the text) or live (a draft model for each client)"
)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Where the drafts of a load come from."""

    kind: str
    acceptance: float = 0.0  # an oracle's

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `off`, `oracle=0.8`, `recorded` or `live`. Raises `UserError` for anything else."""
        kind, _, number = text.partition("=")
        try:
            found = cls(kind, float(number)) if kind == ORACLE else cls(kind)
        except ValueError:
            found = None
        if found is None or kind not in (OFF, ORACLE, RECORDED, LIVE) or (number and kind != ORACLE):
            raise UserError(f"drafts {text!r} are not understood; they may be {KINDS_IN_WORDS}")
        if not 0.0 <= found.acceptance <= 1.0:
            raise UserError(f"an oracle's acceptance is {found.acceptance}; it must lie in [0, 1]")
        return found

    def __str__(self) -> str:
        return f"{self.kind}={self.acceptance:g}" if self.kind == ORACLE else self.kind


@dataclass(frozen=True, slots=True)
class Job:
    """One load on one verifier.

    Closed: `clients` devices, each opening the next text when one ends, until all of `numbers` are written,
    or over and over until `duration` seconds have passed. Open, if `times` are given: text `numbers[i]` is
    opened `times[i]` seconds after the beginning, whether others have ended or not.
    """

    address: str
    numbers: tuple[int, ...]  # of the texts, in order
    drafts: Drafts
    policy: str
    sampling: SamplingParams
    clients: int = 1
    times: tuple[float, ...] = ()
    duration: float | None = None
    idle: int = 0  # further sessions that are open all the time and ask for a token now and then
    think: float = 20.0  # seconds between two tokens of an idle session
    draft_time: float = 0.0  # seconds that a draft step takes on a device; takes no processor here
    seed: int = 0  # of oracles
    sample: float = 0.0  # seconds between two reports while it runs; 0 = none
    keep: bool = True  # tell of each text at the end
    tell_tokens: bool = False  # what was written, too

    @property
    def is_open(self) -> bool:
        return bool(self.times)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        given = dict(found)
        sampling = dict(given.pop("sampling"))
        sampling["stop_token_ids"] = tuple(sampling["stop_token_ids"])
        sampling["logit_bias"] = tuple((token, bias) for token, bias in sampling["logit_bias"])
        return cls(
            **{
                **given,
                "numbers": tuple(given["numbers"]),
                "times": tuple(given["times"]),
                "drafts": Drafts(**given["drafts"]),
                "sampling": SamplingParams(**sampling),
            }
        )


@dataclass(slots=True)
class TextRun:
    """One text as its client saw it. Times in seconds; `opened_at` is monotonic and the same for all
    processes of a machine."""

    number: int
    opened_at: float
    arrivals: list[float] = field(default_factory=list)  # of each token, since `opened_at`
    difference: int | None = None  # first token that is not the reference's; None if all are
    finished: bool = False
    refused: bool = False  # for want of room, before the first token
    error: str = ""  # why it ended early
    stats: dict[str, Any] = field(default_factory=dict)  # `SessionStats`
    bytes_up: int = 0  # serialised messages
    bytes_down: int = 0
    asked: int = 0  # tokens of the text whose candidates the session asked for
    right: int = 0  # of those, the first candidate was right
    tokens: list[int] = field(default_factory=list)  # if the job wants them told

    @property
    def ended_at(self) -> float:
        return self.opened_at + (self.arrivals[-1] if self.arrivals else 0.0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def runs_from_json(found: Sequence[Mapping[str, Any]]) -> list[TextRun]:
    return [TextRun(**each) for each in found]
