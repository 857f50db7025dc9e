"""`forerun bench soak`: many open sessions for a long time."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from forerun.bench import soak
from forerun.bench.reporting import (
    SCHEMA,
    Machine,
    add_report,
    add_target,
    check_out,
    drafts_option,
    finish,
    settings_of,
)
from forerun.bench.soak import SoakPlan
from forerun.bench.tokens import prompt_tokens
from forerun.options import ms
from forerun.progress import ProgressBar
from forerun.prompts import bundled, read_prompts

DESCRIPTION = """\
Keeps many sessions open for a long time. Some are active: one text after the other, drafts
from an oracle. The others are idle: open streams without fill whose device answers every --think seconds.
Sampled are the verifier's memory, its slots and what the clients see. Ends with 1 unless memory stays flat,
no active session waits longer than --stall for a token, every slot comes back, and every text is the target's
own.

  forerun bench soak --open 500 --active 50 --minutes 10"""

DEFAULT = SoakPlan(target="")


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "soak",
        help="many open sessions for a long time: memory, leaks, stalls",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--open", type=int, default=DEFAULT.open_sessions, metavar="N", help="sessions (%(default)s)")
    option("--active", type=int, default=DEFAULT.active, metavar="N", help="of them (%(default)s)")
    option("--minutes", type=float, default=DEFAULT.seconds / 60.0, metavar="M", help="(%(default)s)")
    option("--sample", type=float, default=DEFAULT.sample, metavar="S", help="between samples (%(default)s)")
    option("--think", type=float, default=DEFAULT.think, metavar="S", help="of idle devices (%(default)s)")
    option(
        "--drafts",
        type=drafts_option,
        default=DEFAULT.drafts,
        metavar="KIND",
        help="of active ones (%(default)s)",
    )
    option("--policy", default=DEFAULT.policy, help="growth policy of active ones (%(default)s)")
    option("--draft-ms", type=ms, default=5.0 / 1e3, metavar="MS", help="of a draft step on a device (5)")
    option("--prompts", type=Path, metavar="FILE", help="a JSON list of texts, or JSON lines (bundled)")
    option("--texts", type=int, default=DEFAULT.num_texts, metavar="N", help="different ones (%(default)s)")
    option("--max-tokens", type=int, default=DEFAULT.max_tokens, metavar="N", help="of each (%(default)s)")
    option("--stall", type=float, default=DEFAULT.stall, metavar="S", help="the longest wait (%(default)s)")
    option(
        "--growth",
        type=float,
        default=DEFAULT.growth,
        metavar="SHARE",
        help="of memory still flat (%(default)s)",
    )
    option("--step-floor", type=float, default=0.0, metavar="MS", help="least time of a target step")
    option("--seed", type=int, default=DEFAULT.seed)
    add_target(parser)
    add_report(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    plan = SoakPlan(
        target=options.target,
        open_sessions=options.open,
        active=options.active,
        seconds=60.0 * options.minutes,
        sample=options.sample,
        think=options.think,
        drafts=options.drafts,
        policy=options.policy,
        draft_time=options.draft_ms,
        max_tokens=options.max_tokens,
        num_texts=options.texts,
        stall=options.stall,
        growth=options.growth,
        seed=options.seed,
        step_floor_ms=options.step_floor,
        client_processes=options.client_processes,
        threads=options.threads,
        device=options.device,
        pin=options.pin,
        verifier=options.verifier,
    )
    check_out(options)
    machine = Machine()
    texts = read_prompts(options.prompts) if options.prompts else bundled()
    with ProgressBar(sys.stderr) as bar:

        def progress(done: float, total: float, text: str) -> None:
            bar.show(done, total, text)
            bar.note(f"{done:.0f} of {total:.0f} s: {text}")

        found = asyncio.run(soak.measure(plan, prompt_tokens(plan.target, texts), progress))
    report = {
        "schema": SCHEMA,
        "benchmark": "soak",
        "settings": settings_of(options),
        "machine": machine.told(),
        **found,
    }
    finish(options, report, table(report))
    return 0 if all(report["kept"].values()) else 1


def table(report: dict[str, Any]) -> list[str]:
    """For people."""
    memory, start, end = report["memory"], report["at_the_start"], report["at_the_end"]
    kept = ", ".join(f"{name.replace('_', ' ')}: {_yes(value)}" for name, value in report["kept"].items())
    return [
        f"memory {memory['first_mb']:.1f} to {memory['last_mb']:.1f} MB ({memory['growth']:+.1%}, "
        f"{memory['mb_per_minute']:+.2f} MB per minute), at most {memory['most_mb']:.1f}",
        f"{report['most_sessions']} sessions open at most; {report['texts']} texts, "
        f"{report['tokens']} tokens",
        f"between two arrivals {_ms(start['gap_ms_p50'])} (95 % {_ms(start['gap_ms_p95'])}) at the start, "
        f"{_ms(end['gap_ms_p50'])} ({_ms(end['gap_ms_p95'])}) at the end; longest wait "
        f"{_ms(report['longest_wait_ms'])}",
        f"slots not returned: {report['slots_leaked']}; refused {report['refused']}, failed "
        f"{report['failed']}, not the target's text {report['different']}",
        kept,
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
