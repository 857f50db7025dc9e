"""The five laws over many seeds: `python -m tests.worlds.soak --count 20000`."""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.worlds.seeds import check_seed, replay_command

SHOWN = 10  # failures told in full


def main() -> int:
    """0 if every law held on every seed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.soak", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--count", type=int, default=20_000, help="how many seeds (%(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    failures: list[tuple[int, str]] = []
    with ProcessPoolExecutor(max(1, min(options.workers, len(seeds)))) as pool:
        for done, (seed, wrong) in enumerate(
            zip(seeds, pool.map(check_seed, seeds, chunksize=20), strict=True), 1
        ):
            if wrong is not None:
                failures.append((seed, wrong))
                if len(failures) <= SHOWN:
                    print(f"seed {seed}: {wrong}\n  again: {replay_command(seed)}", flush=True)
            if done % 1000 == 0:
                print(f"… {done} of {len(seeds)} seeds, {len(failures)} failed", file=sys.stderr, flush=True)
    print(f"{len(seeds) - len(failures)} of {len(seeds)} seeds hold the five laws")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
