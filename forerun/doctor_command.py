"""`forerun doctor`: what stands in the way of a fast text on this device, and what to expect."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from common.errors import UserError
from edge_client.config.flags import add_flags
from forerun.edge_places import add_config, add_json, add_place, as_the_daemon, places
from forerun.paint import GREEN, RESET, Painter
from forerun.progress import ProgressBar

DESCRIPTION = """\
Looks at everything that the daemon needs: this machine, the draft model (loaded in a process of its own),
every verifier, the link, the fleet's broker; and says what to expect of it all. It needs no running daemon,
and harms none. Without options it looks at the settings of the daemon that runs, or at the configuration.

  forerun doctor
  forerun doctor --verifier verifier.example:50051 --draft draft.gguf

Exit code 1 if anything fails, else 0."""

COLOURS = {"ok": GREEN, "warn": "\x1b[33m", "fail": "\x1b[31m", "skip": "\x1b[2m"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="look for what is wrong with this device, its link and its verifiers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = parser.add_argument_group("known already, and not to be measured")
    option = known.add_argument
    option("--rtt", type=float, metavar="MS", help="round trip to the verifier")
    option("--step", type=float, metavar="MS", help="a step of the target model")
    option("--draft-step", type=float, metavar="MS", help="a step of the draft model")
    option("--acceptance", type=float, metavar="A", help="how often the draft's best token is right")
    add_place(parser)
    add_json(parser)
    add_config(parser)
    add_flags(parser, ("verifier", "draft"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from forerun.doctor.examine import examine
    from forerun.doctor.finding import Finding, Level

    given, paths = _given(options), places(options)
    config = as_the_daemon(options, paths).config
    painter, found = Painter(sys.stdout), list[Finding]()
    for finding in examine(config, paths, given, _progress()):
        found.append(finding)
        if not options.json:
            colour = COLOURS[finding.level.value]
            line = finding.line
            print(f"{colour}{line[:4]}{RESET}{line[4:]}" if painter.colour else line, flush=True)
    failed = sum(each.level is Level.FAIL for each in found)
    if options.json:
        told = [
            {"name": each.name, "level": each.level.value, "words": each.words, "advice": each.advice}
            for each in found
        ]
        print(json.dumps({"ok": not failed, "findings": told}, indent=1))
    return 1 if failed else 0


def _progress() -> Any:
    """Lines on a terminal's standard error alone: in a log they would only repeat the findings."""
    bar = ProgressBar(sys.stderr)
    return (lambda text: print(Painter(sys.stderr).dim(f"… {text}"), file=sys.stderr)) if bar.is_live else _no


def _no(text: str) -> None:
    """Nobody watches."""


def _given(options: argparse.Namespace) -> Any:
    from forerun.doctor.examine import Given

    for name in ("rtt", "step", "draft_step"):
        value = getattr(options, name)
        if value is not None and not 0 <= value < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be 0 or more")
    if options.acceptance is not None and not 0 <= options.acceptance <= 1:
        raise UserError(f"--acceptance is {options.acceptance}; it must lie in [0, 1]")
    times = (None if each is None else each / 1e3 for each in (options.rtt, options.step, options.draft_step))
    rtt, step, draft = times
    return Given(rtt, step, draft, options.acceptance)
