"""A hundred thousand hostile clients: `python -m tests.fuzz.soak --cases 100000`.

Each case is one client; what it may send, and what must hold, is told in `tests/fuzz`. Parts run side by
side, each with its own seed. On the wire a part is one server that lives through all of its cases.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

from tests.fuzz.legs import LEGS, Tally, run

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
    """0 if every law held in every case, else 1."""
    options = _options()
    if options.again:
        return _tell_again(run(options.leg[0], 0, 1, options.again))
    began_at = time.monotonic()
    legs = tuple(options.leg or LEGS)
    tallies, failed = {leg: Tally() for leg in legs}, 0
    todo = list(parts(options.cases, options.seed, legs))
    todo.sort(key=lambda part: part.leg.endswith("machine"))  # the slow ones first
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(part.run): part for part in todo}
        for future in as_completed(running):
            part, tally = running[future], future.result()
            tallies[part.leg].add(tally)
            if tally.failure is not None:
                failed += 1
                _tell(part, tally)
            done = sum(each.cases for each in tallies.values())
            print(f"… {done} cases, {failed} parts of {len(todo)} failed", file=sys.stderr, flush=True)
    _sum_up(tallies, failed, time.monotonic() - began_at)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000, help="how many at least (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first part (%(default)s)")
    parser.add_argument("--leg", action="append", choices=LEGS, help="only this part of it; may be repeated")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--again", metavar="BLOB", help="repeat the one case of a --leg that failed")
    options = parser.parse_args()
    if options.again and len(options.leg or ()) != 1:
        parser.error("--again repeats a case of one --leg: name it")
    return options


def _tell(part: Part, tally: Tally) -> None:
    print(f"{part.leg}, seed {part.seed}: {tally.failure}")
    if tally.blob:
        print(f"  again: python -m tests.fuzz.soak --leg {part.leg} --again {tally.blob}", flush=True)
    else:
        rest = f"--seed {part.seed} --cases {part.num_cases}"
        print(f"  again: python -m tests.fuzz.soak --leg {part.leg} {rest}", flush=True)


def _tell_again(tally: Tally) -> int:
    print(tally.failure or "every law held this time")
    return 1 if tally.failure else 0


def _sum_up(tallies: dict[str, Tally], failed: int, seconds: float) -> None:
    for leg, tally in tallies.items():
        print(f"{leg:20} {tally.cases:6} cases; {_listed(tally.answers)}")
    total = sum(tally.cases for tally in tallies.values())
    outcome = "every law held" if not failed else f"{failed} parts found a broken law"
    print(f"{total} hostile clients in {seconds:.0f} s: {outcome}")


def _listed(answers: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in answers.most_common())


if __name__ == "__main__":
    sys.exit(main())
