"""Runs all parts in turn from the command line, with a table on the way and a report after each."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import lab.benchmarks.gpu_step
from lab.bench.report import plain_parser_of
from simulator.documents import write_whole

PARTS = (
    "checks",
    "bandwidth",
    "host",
    "attention",
    "steps",
    "profile",
    "rates",
    "guesses",
    "serving",
    "vllm",
)
BUDGET = 560.0
"""Seconds for all parts: a command on a rented machine may have ten minutes."""

logger = logging.getLogger(__name__)


@dataclass
class GpuReport:
    """Holds the findings so far, written whole after each line."""

    path: Path
    parts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    begun_at: float = field(default_factory=time.perf_counter)

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Add a line of a part, printed and written."""
        self.parts.setdefault(part, []).append(row)
        print(f"{time.perf_counter() - self.begun_at:6.1f} s  {part:9}  {_words(row)}", flush=True)
        self.write()

    def write(self) -> None:
        write_whole(self.path, json.dumps({"seconds": self.seconds, **self.parts}, indent=1) + "\n")

    @property
    def wrong(self) -> list[str]:
        """Return the wrong findings, as lines."""
        rows = [(part, row) for part, part_rows in self.parts.items() for row in part_rows]
        return [f"{part}: {_words(row)}" for part, row in rows if row.get("right") is False or "error" in row]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts. Return 1 if something was wrong, 2 if nothing can run here."""
    options = _parse(arguments)
    if options.tiny:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"gpu_step: {_missing(error)}", file=sys.stderr)
        return 2
    if not options.tiny and not torch.cuda.is_available():
        print("gpu_step: torch sees no CUDA device here; --tiny runs on a CPU.", file=sys.stderr)
        return 2
    from lab.benchmarks.gpu_step.parts import Parts
    from lab.benchmarks.gpu_step.settings import FULL, TINY

    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    report = GpuReport(out / "gpu_step.json")
    settings = TINY if options.tiny else FULL
    if options.layers:
        settings = replace(settings, shape=replace(settings.shape, num_layers=options.layers))
    device = torch.device("cpu" if options.tiny else "cuda")
    report.parts["environment"] = [
        {**_environment(torch, transformers, device), "settings": asdict(settings)}
    ]
    parts = Parts(settings, device, options.budget, out, options.scratch)
    for name in options.parts:
        _run(name, getattr(parts, name), report)
    print(f"\n{len(report.wrong)} findings are wrong" if report.wrong else "\nnothing is wrong", flush=True)
    for line in report.wrong:
        print(f"  {line}")
    return 1 if report.wrong else 0


def _run(name: str, part: Callable[[], Iterable[dict[str, Any]]], report: GpuReport) -> None:
    """One part; whatever it raises costs no other."""
    begun_at = time.perf_counter()
    try:
        for row in part():
            report.add(name, row)
    except Exception as error:  # a part may fail in a library in any way; the others still tell something
        logger.exception("part %s failed", name)
        report.add(name, {"error": f"{type(error).__name__}: {error}"[:500]})
    report.seconds[name] = round(time.perf_counter() - begun_at, 2)
    report.write()


def _missing(error: ImportError) -> str:
    """An import error in words. One of a clash of versions names no module."""
    return f"{error.name} is not installed." if error.name else f"an import failed: {error}"


def _environment(torch: Any, transformers: Any, device: Any) -> dict[str, Any]:
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
    }
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        versions["triton"] = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        versions |= {"gpu": properties.name, "memory": properties.total_memory, "cuda": torch.version.cuda}
    return versions


def _words(row: dict[str, Any]) -> str:
    short = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
    return "  ".join(f"{name} {value}" for name, value in short.items())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = plain_parser_of("gpu_step", lab.benchmarks.gpu_step.__doc__)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for gpu_step.json")
    parser.add_argument("--tiny", action="store_true", help="every part in seconds on a CPU, for tests")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to run (all)")
    parser.add_argument("--layers", type=int, metavar="N", help="layers of the model, instead of 32")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="where `serving` writes the model, 16 GB with 32 layers"
    )
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="S", help="seconds (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
