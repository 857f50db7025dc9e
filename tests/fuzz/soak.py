"""A hundred thousand hostile clients: `python -m tests.fuzz.soak --cases 100000`.

Each case is one client; what it may send, and what must hold, is told in `tests/fuzz`. Parts run side by
side, each with its own seed. On the wire a part is one server that lives through all of its cases.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import NamedTuple

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
"""Garbled bytes, meaningless messages, mutated conversations and padded messages, to the machine and over
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


SHARES = {"machine": 0.15, "wire": 0.08}
"""Of all cases, by way: three fifths go to the machine, in four kinds, two fifths over sockets, in five."""

PART = 500  # cases of one search: Hypothesis keeps in memory what it has tried, and progress is told by parts


class Part(NamedTuple):
    """Cases that one process plays with one seed."""

    leg: str
    seed: int
    num_cases: int

    def run(self) -> Tally:
        return run(*self)


def parts(cases: int, first_seed: int, legs: tuple[str, ...]) -> Iterator[Part]:
    """All cases, by their shares."""
    shares = {leg: SHARES[leg.split("-")[1]] for leg in legs}
    total = sum(shares.values())
    number = first_seed
    for leg, share in shares.items():
        left = -(-round(cases * share / total * 1000) // 1000)
        while left > 0:
            yield Part(leg, number, min(PART, left))
            number, left = number + 1, left - PART


def main() -> int:
    """Play all parts side by side. Return 0 if every law held in every case, else 1."""
    options = _options()
    if options.again:
        tally = run(options.leg[0], 0, 1, options.again)
        print(tally.failure or "every law held this time")
        return 1 if tally.failure else 0
    began_at, legs = time.monotonic(), tuple(options.leg or LEGS)
    tallies, failed = {leg: Tally() for leg in legs}, 0
    todo = sorted(parts(options.cases, options.seed, legs), key=lambda part: part.leg.endswith("machine"))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for part, tally in zip(todo, pool.map(Part.run, todo), strict=True):
            tallies[part.leg].add(tally)
            if tally.failure is not None:
                failed += 1
                again = (
                    f"--again {tally.blob}" if tally.blob else f"--seed {part.seed} --cases {part.num_cases}"
                )
                print(f"{part.leg}, seed {part.seed}: {tally.failure}", flush=True)
                print(f"  again: python -m tests.fuzz.soak --leg {part.leg} {again}", flush=True)
    for leg, tally in tallies.items():
        answers = ", ".join(f"{name} {count}" for name, count in tally.answers.most_common())
        print(f"{leg:20} {tally.cases:6} cases; {answers}")
    total = sum(tally.cases for tally in tallies.values())
    outcome = "every law held" if not failed else f"{failed} parts found a broken law"
    print(f"{total} hostile clients in {time.monotonic() - began_at:.0f} s: {outcome}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000, help="how many at least (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first part (%(default)s)")
    parser.add_argument("--leg", action="append", choices=LEGS, help="only this part of it; may be repeated")
    parser.add_argument("--again", metavar="BLOB", help="repeat the one case of a --leg that failed")
    options = parser.parse_args()
    if options.again and len(options.leg or ()) != 1:
        parser.error("--again repeats a case of one --leg: name it")
    return options


if __name__ == "__main__":
    sys.exit(main())
