"""`forerun bench plot`: draw a capacity report again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common.errors import UserError
from forerun.bench.plots import plot_capacity
from simulator.documents import read_text


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "plot",
        help="draw a report of `capacity`",
        description="Draw a report that `forerun bench capacity --out` has written.",
    )
    parser.add_argument("report", type=Path, help="the report, JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        report = json.loads(read_text("the report", options.report))
    except ValueError as error:
        raise UserError(f"{options.report} is not JSON: {error}") from error
    if not isinstance(report, dict) or report.get("benchmark") != "capacity":
        raise UserError(f"{options.report} is no report of `forerun bench capacity`")
    plot_capacity(report, options.out)
    print(f"drawn: {options.out}")
    return 0
