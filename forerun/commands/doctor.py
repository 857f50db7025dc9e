"""Implements `forerun doctor`: finds what is wrong on this device and predicts the speed-up."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from common.config.command_line import add_command, add_flags, add_options, read_options
from edge_client.settings import SCHEMA
from forerun.options import ConfigOption, JsonOption, as_the_daemon
from forerun.terminal import GREEN, RESET, Painter, ProgressBar, note

DESCRIPTION = """\
Check everything that the daemon needs: this machine, the draft model, every verifier and the link; then
predict the speed-up. A running daemon is neither needed nor disturbed. Without options, check the settings of
the running daemon, else those of the configuration.

  forerun doctor
  forerun doctor --verifier verifier.example:50051 --draft draft.gguf

Exit code 1 if a check fails, else 0."""

COLOURS = {"ok": GREEN, "warn": "\x1b[33m", "fail": "\x1b[31m", "skip": "\x1b[2m"}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(ConfigOption, JsonOption):
    """Declares which configuration is checked."""


def add_parser(commands: Any) -> None:
    words = "find what is wrong with this device, its link and its verifiers"
    parser = add_command(commands, "doctor", words, run, description=DESCRIPTION)
    add_options(parser, DoctorOptions)
    add_flags(parser, SCHEMA, ("verifier", "draft"))


def run(parsed: argparse.Namespace) -> int:
    options = read_options(parsed, DoctorOptions)
    from forerun.doctor.device import Finding, Level
    from forerun.doctor.examine import examine

    config = as_the_daemon(parsed, options.paths).config
    painter, findings = Painter(sys.stdout), list[Finding]()
    # In a log, lines of progress would only repeat the findings.
    progress = note if ProgressBar(sys.stderr).is_live else lambda text: None
    for finding in examine(config, options.paths, progress):
        findings.append(finding)
        if not options.json:
            colour = COLOURS[finding.level.value]
            line = finding.line
            print(f"{colour}{line[:4]}{RESET}{line[4:]}" if painter.colour else line, flush=True)
    failed = any(each.level is Level.FAIL for each in findings)
    if options.json:
        told = [{**asdict(each), "level": each.level.value} for each in findings]
        print(json.dumps({"ok": not failed, "findings": told}, indent=1))
    return 1 if failed else 0
