"""`forerun bench overhead`: what scheduler, codec and gRPC add to a step."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from forerun.bench import overhead
from forerun.bench.job import Drafts
from forerun.bench.overhead import OverheadPlan
from forerun.bench.reporting import (
    SCHEMA,
    Machine,
    add_load,
    add_report,
    check_out,
    drafts_option,
    finish,
    settings_of,
)
from forerun.options import ms
from forerun.progress import ProgressBar

DESCRIPTION = """\
Puts N plain sessions, and N that draft, on a target that answers at once and whose steps
are made to take --step-ms. What a step's cycle takes beyond that is the verifier's own: scheduler, codec,
gRPC, and threads that wait for each other. The clients must not be the bottleneck: look at how busy they
were.

  forerun bench overhead --sessions 64 --step-ms 8 --drafts off oracle=0.8"""


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "overhead",
        help="what scheduler, codec and gRPC add to a step",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    default = OverheadPlan()
    option("--sessions", type=int, default=default.sessions, metavar="N", help="(%(default)s)")
    option(
        "--step-ms", type=float, default=default.step_ms, metavar="MS", help="of a target step (%(default)s)"
    )
    option("--seconds", type=float, default=default.seconds, metavar="S", help="of each run (%(default)s)")
    option("--sample", type=float, default=default.sample, metavar="S", help="between samples (%(default)s)")
    option(
        "--drafts",
        type=drafts_option,
        nargs="+",
        default=[Drafts.parse("off"), Drafts.parse("oracle=0.8")],
        metavar="KIND",
        help="off or oracle=ACCEPTANCE (off oracle=0.8)",
    )
    option("--policy", default=default.policy, help="growth policy (%(default)s)")
    option("--draft-ms", type=ms, default=5.0 / 1e3, metavar="MS", help="of a draft step on a device (5)")
    option("--seed", type=int, default=default.seed)
    option("--profile", type=Path, metavar="FILE", help="profile the verifier's event loop; slows it")
    add_load(parser)
    add_report(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    plan = OverheadPlan(
        sessions=options.sessions,
        step_ms=options.step_ms,
        seconds=options.seconds,
        sample=options.sample,
        drafts=tuple(dict.fromkeys(options.drafts)),
        policy=options.policy,
        draft_time=options.draft_ms,
        seed=options.seed,
        client_processes=options.client_processes,
        pin=options.pin,
        verifier=options.verifier,
        profile=options.profile,
    )
    check_out(options)
    machine = Machine()
    with ProgressBar(sys.stderr) as bar:

        def progress(done: int, total: int, text: str) -> None:
            bar.show(done, total, text)
            bar.note(text)

        found = asyncio.run(overhead.measure(plan, progress))
    report = {
        "schema": SCHEMA,
        "benchmark": "overhead",
        "settings": settings_of(options),
        "machine": machine.told(),
        "drafts": found,
    }
    finish(options, report, table(report))
    failed = sum(figures["failed"] + figures["texts_different"] for figures in found.values())
    return 0 if not failed else 1


def table(report: dict[str, Any]) -> list[str]:
    """For people: a line for each kind of drafts."""
    settings = report["settings"]
    lines = [
        f"{settings['sessions']} sessions, a step of {settings['step_ms']:g} ms",
        f"{'drafts':14}{'overhead':>10}{'cycle ms':>10}{'gap ms':>9}"
        f"{'next_step':>11}{'look_ahead':>12}{'step_done':>11}"
        f"{'outside cpu':>13}{'rows':>7}{'tokens/s':>10}{'clients':>9}   texts",
    ]
    for name, row in report["drafts"].items():
        parts = row["scheduler_ms"]
        lines.append(
            f"{name:14}{row['overhead_share']:>10.1%}{row['cycle_ms']:>10.2f}{row['gap_ms']:>9.2f}"
            f"{parts['next_step']:>11.2f}{parts['look_ahead']:>12.2f}{parts['on_step_done']:>11.2f}"
            f"{row['outside_cpu_ms']:>13.2f}{row['rows_per_step']:>7.1f}{row['tokens_per_second']:>10.0f}{row['client_cpu']:>9.2f}"
            f"   {row['texts']} written, {row['texts_different']} differ, {row['failed']} failed"
        )
    return lines
