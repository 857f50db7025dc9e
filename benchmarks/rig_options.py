"""Options of benchmarks that run the demo pair over a link of their own."""

from __future__ import annotations

import argparse
from pathlib import Path

from demo_models import DRAFT_GGUF, TARGET_DIR


def add_rig(parser: argparse.ArgumentParser) -> None:
    """`--target`, `--draft`, `--rtt` and `--step-floor`, both in milliseconds."""
    option = parser.add_argument
    option("--target", type=Path, default=TARGET_DIR, metavar="PATH", help="(%(default)s)")
    option("--draft", type=Path, default=DRAFT_GGUF, metavar="PATH", help="(%(default)s)")
    option("--rtt", type=float, default=60.0, metavar="MS", help="(%(default)s)")
    option("--step-floor", type=float, default=30.0, metavar="MS", help="of the target (%(default)s)")
