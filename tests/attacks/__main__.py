"""The command line: play attacks and print how each went."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from common.errors import ForerunError
from tests.attacks.run import Run, Verdict
from tests.attacks.stages import raise_file_limit
from tests.attacks.table import ATTACKS, Attack


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if everything held, 1 if an attack broke something, 2 if there was no undisturbed text."""
    options = _options(arguments)
    chosen = _chosen(options)
    if options.list:
        for attack in chosen:
            skipped = f"  (skipped: {attack.skipped})" if attack.skipped else ""
            print(f"{attack.name:24} {attack.against:22} {attack.holds}{skipped}")
        return 0
    logging.getLogger("link").setLevel(logging.CRITICAL)  # it tells of every verifier that was killed
    logging.getLogger("asyncio").setLevel(
        logging.ERROR
    )  # it warns of every write to a connection that was cut
    raise_file_limit()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forerun-attacks-") as folder:
        try:
            found = asyncio.run(_play(options.keep or Path(folder), chosen))
        except ForerunError as error:
            print(error, file=sys.stderr)
            return 2
    broken = [each for each in found if each.why]
    if options.json:
        print(json.dumps([{**asdict(each), "ratio": each.ratio} for each in found], indent=1))
    else:
        _sum_up(found)
    print(f"{len(found)} rows in {time.monotonic() - began:.0f} s, {len(broken)} broken", file=sys.stderr)
    return 1 if broken else 0


async def _play(folder: Path, attacks: Sequence[Attack]) -> list[Verdict]:
    async with Run(folder) as run:
        return await run.play(attacks, lambda verdict: print(line(verdict), file=sys.stderr, flush=True))


def line(verdict: Verdict) -> str:
    """One verdict in words."""
    outcome = "skipped" if verdict.skipped else "BROKEN" if verdict.why else "held"
    ratio = "" if verdict.ratio is None else f"p95 {verdict.undisturbed_ms:g} to {verdict.p95_ms:g} ms"
    peak = "" if verdict.peak_mib is None else f"{verdict.peak_mib} MiB"
    words = verdict.skipped or verdict.why
    return f"{outcome:8} {verdict.name:24} {verdict.against:20} {ratio:24} {peak:9} {words}".rstrip()


def _sum_up(found: Sequence[Verdict]) -> None:
    print(f"{'':8} {'attack':24} {'against':20} {'honest text':24} {'memory':9}")
    for verdict in found:
        print(line(verdict))


def _chosen(options: argparse.Namespace) -> list[Attack]:
    if not options.only:
        return list(ATTACKS)
    return [attack for attack in ATTACKS if attack.name in options.only]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    names = [attack.name for attack in ATTACKS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help="play only this; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and play nothing")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the processes' logs there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
