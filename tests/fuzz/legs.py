"""The parts of the fuzz: what is sent, and by which way. A failing case is found again by its blob."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, Verbosity, given, reproduce_failure, seed, settings
from hypothesis import __version__ as hypothesis_version
from hypothesis import strategies as st
from hypothesis.errors import DidNotReproduce, HypothesisWarning

from tests.fuzz import framed, garbled, machine, meaningless, mutated, strangers, wire
from tests.fuzz.cases import Case

KINDS: dict[str, st.SearchStrategy[Case]] = {
    "garbled": garbled.CASES,
    "meaningless": meaningless.CASES,
    "mutated": mutated.CASES,
    "framed": framed.CASES,
    "strangers": strangers.CASES,
}
WAYS = ("machine", "wire")
LEGS = tuple(f"{kind}-{way}" for kind in KINDS for way in WAYS if (kind, way) != ("strangers", "machine"))
"""Garbled bytes, meaningless messages, mutated conversations and messages in parts, to the machine and over
the wire; and strangers over the wire alone, since the machine is told whose a call is."""

PHASES = {"machine": (Phase.generate, Phase.shrink), "wire": (Phase.generate,)}
"""A server that has been harmed tells nothing of smaller cases."""

BLOB = re.compile(r"reproduce_failure\([^,]*, b['\"]([^'\"]+)['\"]\)")
MOST_WORDS = 4000  # of a failure: a case may hold kilobytes


@dataclass
class Tally:
    """What a run of one leg came to."""

    cases: int = 0
    answers: Counter[str] = field(
        default_factory=Counter
    )  # how streams ended: a status, a reason, or nothing
    failure: str | None = None
    blob: str = ""

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.answers += other.answers
        self.failure, self.blob = self.failure or other.failure, self.blob or other.blob


Play = Callable[[Case], list[str]]


def run(leg: str, first_seed: int, count: int, again: str = "") -> Tally:
    """So many cases of a leg, or the one of the blob `again`. On the wire all of them meet one server."""
    kind, way = leg.split("-")
    tally = Tally()
    try:
        with _player(leg) as play, warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", HypothesisWarning)  # a case may be long
            _search(KINDS[kind], play, tally, first_seed, count, again, PHASES[way])
    except DidNotReproduce:
        pass  # the case of the blob is well now
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the finding, also as the server stops
        tally.failure, tally.blob = _told(error)
    return tally


def _search(
    cases: st.SearchStrategy[Case],
    play: Play,
    tally: Tally,
    first_seed: int,
    count: int,
    again: str,
    phases: tuple[Phase, ...],
) -> None:
    def one(case: Case) -> None:
        tally.cases += 1
        tally.answers.update(play(case))

    search = given(case=cases)(one)
    search = settings(
        max_examples=count,
        derandomize=False,
        deadline=None,
        database=None,
        print_blob=True,
        verbosity=Verbosity.quiet,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )(search)
    search = (
        reproduce_failure(hypothesis_version, again.encode())(search) if again else seed(first_seed)(search)
    )
    search()


def _player(leg: str) -> AbstractContextManager[Play]:
    kind, way = leg.split("-")
    if way == "machine":
        return nullcontext(_on_machine)
    return _Wire(wire.GuardedSite() if kind == "strangers" else wire.Site())


def _on_machine(case: Case) -> list[str]:
    desk = machine.play(case)
    return [desk.outcome(machine.HONEST + 1 + number) for number in range(len(case.streams))]


class _Wire:
    """A site for as long as it is entered."""

    def __init__(self, site: wire.Site) -> None:
        self._site = site

    def __enter__(self) -> Play:
        self._site.__enter__()
        return self._play

    def __exit__(self, *error: object) -> None:
        self._site.__exit__(None, None, None)

    def _play(self, case: Case) -> list[str]:
        ends = self._site.play(case)
        return ["(not heard)" if end == wire.UNHEARD else end.code.name for end in ends]


def _told(error: BaseException) -> tuple[str, str]:
    """The failure in words, and the blob by which Hypothesis finds it again."""
    while isinstance(error, BaseExceptionGroup):  # several failures: one at a time is enough
        error = error.exceptions[0]
    notes = "\n".join(getattr(error, "__notes__", ()))
    blob = BLOB.search(notes)
    return f"{type(error).__name__}: {error}\n{notes}"[:MOST_WORDS], blob[1] if blob else ""
