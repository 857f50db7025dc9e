"""Decides whether a newer draft model stays: a part of the texts has it, and the others are compared to them.

A text's acceptance is one number in [0, 1], and texts, not tokens, are independent. Two bets run on the
differences, one against each hypothesis: "the newer draft is as good" and "it is `MARGIN` worse". Under its
hypothesis a difference is as often above 0 as below, by every amount, so no bet on its clipped value has an
expected gain. The wealth of such bets exceeds 1 / `ERROR` with a chance of `ERROR` at most, however long it
goes on (Ville 1939; Waudby-Smith and Ramdas 2024, arXiv 2010.09686). So an equally good draft is rolled back,
and one that is `MARGIN` worse is kept, with that chance at most. A test of two hypotheses ends (Wald 1945).
"""

from __future__ import annotations

import contextlib
import math
from enum import Enum
from itertools import product
from pathlib import Path

from common.errors import UserError
from common.llama.files import hash_of
from common.llama.load_trial import KeptTable

SHARE = 0.1
"""Share of the texts that have the newer draft."""

ERROR = 0.05
"""Chance of each of the two wrong verdicts."""

MARGIN = 0.05
"""Loss of acceptance that must not stay."""

RANGE = 0.25
"""Larger differences between two texts count as this one: they come from the texts' kinds."""

VERDICTS = ".verdicts.json"
"""Name of the table of verdicts in a folder that a verifier serves."""

LARGEST_STAKE = 0.9  # of the wealth; all of it could be lost at once
PRIOR_BETS = 4  # of an outcome of 1/2, before the first: the spread is unknown


class Verdict(Enum):
    OPEN = "open"
    KEPT = "kept"
    WORSE = "rolled back"


class Wealth:
    """Holds the logarithm of the wealth of bets that outcomes in [-1, 1] are above 0 on average."""

    def __init__(self) -> None:
        self.log = 0.0
        self._count, self._squares = PRIOR_BETS, PRIOR_BETS / 4

    def bet(self, outcome: float) -> None:
        """Stake half of the share that grows the wealth fastest if outcomes average MARGIN / RANGE (Kelly
        1956). Where texts differ much, clipping makes their average smaller."""
        stake = min(LARGEST_STAKE, 0.5 * MARGIN / RANGE * self._count / self._squares)
        self.log += math.log1p(stake * outcome)
        self._count, self._squares = self._count + 1, self._squares + outcome * outcome


class Canary:
    """Compares the texts of two draft models, which are assigned to texts at random."""

    def __init__(self) -> None:
        self.num_texts = [0, 0]  # with the draft in force, and with the newer
        self.sums = [0.0, 0.0]  # of their acceptances
        self._latest: tuple[list[float], list[float]] = ([], [])  # not compared yet
        self._worse, self._good = Wealth(), Wealth()

    def serves(self, chance: float) -> bool:
        """Return whether a text has the newer draft. `chance` is drawn from [0, 1)."""
        return chance < SHARE

    def add(self, acceptance: float, *, is_new: bool) -> Verdict:
        """Take the acceptance of a text that has ended. Return the verdict; an open one needs more texts."""
        self.num_texts[is_new] += 1
        self.sums[is_new] += acceptance
        self._latest[is_new].append(acceptance)
        before, new = self._latest
        if before and new:
            self._worse.bet(_mean_clipped(before, new))
            self._good.bet(_mean_clipped(new, before, MARGIN))
            self._latest = ([], [])
        enough = -math.log(ERROR)
        if self._worse.log >= enough:
            return Verdict.WORSE
        return Verdict.KEPT if self._good.log >= enough else Verdict.OPEN

    @property
    def means(self) -> tuple[float, float]:
        """Return the mean acceptance with the draft in force and with the newer; 0 without texts."""
        before, new = (total / max(1, count) for total, count in zip(self.sums, self.num_texts, strict=True))
        return before, new


class Verdicts:
    """Keeps which files stayed and which were rolled back, by the SHA-256 of their content.

    Args: table; about: what else a verdict depends on, by name.
    """

    def __init__(self, table: KeptTable, **about: str) -> None:
        self._table, self._about = table, about

    def keep(self, path: str, verdict: Verdict) -> None:
        """Make this verdict the newest. Raises `UserError` if the file is gone."""
        entry = {"file": path, "about": self._said(verdict)}
        self._table.keep(_content(path), entry, f"{path} is tried again after a restart")

    def of(self, path: str) -> Verdict | None:
        """Return the verdict on a file's content, if there is one. Raises `UserError` if the file is gone."""
        said = self._table.load().get(_content(path), {}).get("about")
        return next((verdict for verdict in Verdict if said == self._said(verdict)), None)

    def last_kept(self) -> str:
        """Return the file that was kept last; empty if there is none or it has changed."""
        kept, entries = self._said(Verdict.KEPT), reversed(self._table.load().items())
        for name, each in entries:
            with contextlib.suppress(UserError):  # gone, or not to be read
                if each.get("about") == kept and _content(each["file"]) == name:
                    return str(each["file"])
        return ""

    def _said(self, verdict: Verdict) -> dict[str, str]:
        return {"verdict": verdict.value, **self._about}


def _content(path: str) -> str:
    """Return a file's SHA-256. Raises `UserError`."""
    try:
        return hash_of(Path(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def _mean_clipped(above: list[float], below: list[float], plus: float = 0.0) -> float:
    """Return the mean difference of all pairs, in units of `RANGE`, each clipped to [-1, 1]."""
    clipped = [max(-1.0, min(1.0, (a - b + plus) / RANGE)) for a, b in product(above, below)]
    return sum(clipped) / len(clipped)
