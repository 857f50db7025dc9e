"""Measures what HTTP, server-sent events, session and gRPC add to a token.

    python -m lab.benchmarks.api_overhead --json

A verifier whose steps take a known time reports for each token when its step ended
(`lab.benchmarks.clocked_verifier`); a client streams one text from a daemon. Per token the overhead is the
arrival of its event minus the end of its step, on the clock that all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.bench.report import finish, parser_of
from lab.benchmarks.daemon import DaemonProcess
from lab.rig import START_TIMEOUT, Processes, RigProcess
from simulator.figures import percentile, rounded
from training.prompts import bundled


async def overhead(daemon: DaemonProcess, verifier: RigProcess, texts: int, tokens: int) -> dict[str, Any]:
    """Return the overhead per committed token of texts written one after the other, without drafts and with:
    since its step has `ended`, and since its commit was `told` to be sent, which leaves out the verifier's
    bookkeeping and its plan of the next step."""
    report, prompt = dict[str, Any](), bundled()[0]
    for name, ours in (("server_only", {"speculate": False}), ("drafting", {})):
        late: dict[str, list[float]] = {"ended": [], "told": []}
        for _ in range(texts):
            await _token_times(verifier)
            body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
            _, arrivals = await daemon.text({**body, "forerun": {"origins": True, **ours}})
            for since, times in (await _token_times(verifier)).items():
                late[since] += paired(arrivals, times)
        report[name] = {"tokens": len(late["ended"])}
        for since, each in late.items():
            shares = {
                f"p{share}_ms": percentile([1e3 * one for one in each], share) for share in (50, 95, 99)
            }
            report[name][f"since_{since}"] = {key: value and rounded(value) for key, value in shares.items()}
    return report


def paired(arrivals: Sequence[tuple[float, int]], times: Sequence[float]) -> list[float]:
    """Return seconds from each token's time to the arrival of its event. An event may hold the tokens of
    several steps: the verifier sends waiting tokens together as one message."""
    came = [at for at, count in arrivals for _ in range(count)]
    return [at - then for at, then in zip(came, times, strict=True)]


async def _token_times(verifier: RigProcess) -> dict[str, list[float]]:
    """Of the tokens since the last call."""
    await verifier.write({})
    times: Any = await verifier.read(START_TIMEOUT)
    return dict(times)


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure one verifier and one daemon, text after text."""
    report: dict[str, Any] = {"step_ms": options.step, "load_before": os.getloadavg()[0]}
    async with Processes() as processes:
        step = ["--step", str(options.step), *(["--live"] if options.live else [])]
        verifier = await processes.start("verifier", *step, module="lab.benchmarks.clocked_verifier")
        address = (await verifier.read(START_TIMEOUT))["listening"]
        async with DaemonProcess(folder, "--verifier", address, "--draft-seats", "8") as daemon:
            report["overhead"] = await overhead(daemon, verifier, options.texts, options.tokens)
    return {**report, "load_after": os.getloadavg()[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of("api_overhead", __doc__)
    option = parser.add_argument
    option("--step", type=float, default=30.0, metavar="MS", help="target step time (%(default)s)")
    option("--live", action="store_true", help="run the demo target in every step")
    option("--texts", type=int, default=4, metavar="N", help="texts without drafts, and with (%(default)s)")
    option("--tokens", type=int, default=150, metavar="N", help="tokens of each text (%(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forerun-api-") as folder:
        report = asyncio.run(measure(options, Path(folder)))
    finish(options, report, [json.dumps(report, indent=1)])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
