"""`forerun bench cache`: the second turn of a chat."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from forerun.bench import cache
from forerun.bench.cache import CachePlan
from forerun.bench.reporting import (
    SCHEMA,
    Machine,
    add_report,
    add_target,
    check_out,
    finish,
    settings_of,
)
from forerun.bench.tokens import prompt_tokens
from forerun.progress import ProgressBar
from forerun.prompts import bundled, read_prompts

DESCRIPTION = """\
Runs chats of two turns on one verifier, and the second turn alone on another one, which
has not seen the history. Compared is the time to the first token; the texts must be the same.

  forerun bench cache --history 1920 --chats 5"""

DEFAULT = CachePlan(target="")


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "cache",
        help="time to the first token of a chat's second turn",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--history", type=int, default=DEFAULT.history, metavar="N", help="tokens (%(default)s)")
    option("--answer", type=int, default=DEFAULT.answer, metavar="N", help="tokens (%(default)s)")
    option("--question", type=int, default=DEFAULT.question, metavar="N", help="tokens (%(default)s)")
    option("--chats", type=int, default=DEFAULT.chats, metavar="N", help="(%(default)s)")
    option("--prompts", type=Path, metavar="FILE", help="what histories are made of (the bundled prompts)")
    option("--step-floor", type=float, default=0.0, metavar="MS", help="least time of a target step")
    add_target(parser)
    add_report(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    plan = CachePlan(
        target=options.target,
        history=options.history,
        answer=options.answer,
        question=options.question,
        chats=options.chats,
        step_floor_ms=options.step_floor,
        threads=options.threads,
        device=options.device,
        pin=options.pin,
        verifier=options.verifier,
    )
    check_out(options)
    machine = Machine()
    texts = read_prompts(options.prompts) if options.prompts else bundled()
    with ProgressBar(sys.stderr) as bar:

        def progress(done: int, total: int, text: str) -> None:
            bar.show(done, total, text)
            bar.note(text)

        found = asyncio.run(cache.measure(plan, prompt_tokens(plan.target, texts), progress))
    report = {
        "schema": SCHEMA,
        "benchmark": "cache",
        "settings": settings_of(options),
        "machine": machine.told(),
        **found,
    }
    finish(options, report, table(report))
    return 0 if not report["texts_different"] else 1


def table(report: dict[str, Any]) -> list[str]:
    """For people."""
    times = report["ttft_ms"]
    return [
        f"time to the first token of a second turn behind {report['history_tokens']} tokens: "
        f"{times['second_turn_unseen']['p50']:.0f} ms unseen, {times['second_turn']['p50']:.0f} ms seen: "
        f"{report['ttft_ratio']:.2f} times shorter",
        f"{report['texts']} texts, {report['texts_different']} of them differ between the two",
    ]
