"""What HTTP, server-sent events, session and gRPC add to a token, and what the daemon costs beside.

Run `python -m benchmarks.api_overhead --json`. A verifier whose steps take a known time tells of each token
when its step ended (`benchmarks.clocked_verifier`); a client streams one text from a daemon. Per token the
overhead is the arrival of its event minus the end of its step, on the clock that all processes of a machine
share. Then: fairness between concurrent texts, what the daemon takes while nobody asks, its memory, and its
time from start to the first answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.faults.reading import Reading
from benchmarks.faults.recovery import percentile
from benchmarks.http_stream import BrokenError, HttpClient
from benchmarks.ports import free_port
from benchmarks.programs import Program, attempts, own_places
from demo_models import DRAFT_GGUF
from forerun.prompts import bundled
from forerun.rig import START_TIMEOUT, Child

SHARES = (0.5, 0.95, 0.99)
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
TIMED = ("overhead", "fairness", "idle", "memory", "start")


class Daemon:
    """A daemon of its own places, behind which is the verifier at `verifier`."""

    def __init__(self, folder: Path, verifier: str, *more: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        arguments = ["edge", "--verifier", verifier, "--draft", str(DRAFT_GGUF), "--threads", "1"]
        arguments += ["--listen", self.address, "--no-api-auth", "--draft-seats", "8", *more]
        self.program = Program("daemon", folder / "daemon.log", own_places(folder), *arguments)

    async def __aenter__(self) -> Daemon:
        try:
            await self.start()
            async for _ in attempts():
                self.program.check()
                if (await self.ask("/v1/status"))["verifiers"][0]["health"] == "ready":
                    break
        except BaseException:
            await self.program.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.program.close()

    async def start(self) -> float:
        """Start it; seconds until it answers."""
        began = time.monotonic()
        await self.program.start()
        async for _ in attempts(0.002):
            self.program.check()
            try:
                async with HttpClient(self.address) as http:
                    await http.ask("GET", "/healthz")
                break
            except BrokenError:
                continue
        return time.monotonic() - began

    async def ask(self, path: str) -> Any:
        """The JSON there."""
        async with HttpClient(self.address) as http:
            await http.ask("GET", path)
            return await http.json()

    async def text(self, body: dict[str, Any]) -> tuple[Reading, list[tuple[float, int]]]:
        """One streamed completion, and for each event with tokens when it came and how many it has."""
        reading, arrivals = Reading("text"), list[tuple[float, int]]()
        asked = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        async with HttpClient(self.address) as http:
            await http.ask("POST", "/v1/completions", {**asked, "forerun": {"origins": True}, **body})
            async for chunk in http.chunks():
                now = time.monotonic()
                known = len(reading.events)
                reading.feed(chunk)
                arrivals += [(now, count) for count in map(_num_tokens, reading.events[known:]) if count]
        return reading, arrivals

    def cpu(self) -> float:
        """Seconds of processor that it has used."""
        words = Path(f"/proc/{self.program.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / CLOCK_TICKS

    def memory(self) -> float:
        """MiB resident."""
        status = Path(f"/proc/{self.program.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None, "Linux tells"
        return round(int(found[1]) / 1024, 1)


def _num_tokens(event: dict[str, Any]) -> int:
    return sum(count for _, _, count in event.get("forerun", {}).get("origins", ()))


# Measurements ---------------------------------------------------------------------------------------------


async def overhead(daemon: Daemon, verifier: Child, texts: int, tokens: int) -> dict[str, Any]:
    """Per committed token of texts that are written one after the other, without drafts and with: since its
    step has `ended`, and since its commit was `told` to be sent, which leaves out the verifier's bookkeeping
    and its plan of the next step."""
    found, prompt = dict[str, Any](), bundled()[0]
    for name, ours in (("server_only", {"speculate": False}), ("drafting", {})):
        late: dict[str, list[float]] = {"ended": [], "told": []}
        for _ in range(texts):
            await _token_times(verifier)
            body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
            _, arrivals = await daemon.text({**body, "forerun": {"origins": True, **ours}})
            for since, times in (await _token_times(verifier)).items():
                late[since] += paired(arrivals, times)
        found[name] = {"tokens": len(late["ended"])}
        found[name] |= {f"since_{since}": _shares(each) for since, each in late.items()}
    return found


def paired(arrivals: Sequence[tuple[float, int]], times: Sequence[float]) -> list[float]:
    """Seconds from each token's time to the arrival of its event. An event may hold the tokens of several
    steps: the verifier sends what waits together as one message."""
    came = [at for at, count in arrivals for _ in range(count)]
    return [at - then for at, then in zip(came, times, strict=True)]


def _shares(late: list[float]) -> dict[str, float | None]:
    late.sort()
    values = {share: percentile(late, share) for share in SHARES}
    return {
        f"p{share * 100:.0f}_ms": None if value is None else round(value * 1e3, 3)
        for share, value in values.items()
    }


async def fairness(daemon: Daemon, chats: int = 8, tokens: int = 200) -> dict[str, Any]:
    """Jain's index (R. Jain et al. 1984) over texts that are written at once: of tokens per second, and of
    tokens that were drafted and sent."""
    prompt = bundled()[0]

    async def one(number: int) -> tuple[float, float]:
        began = time.monotonic()
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "user": f"{number}",
        }
        reading, arrivals = await daemon.text(body)
        figures = next(
            event["forerun"] for event in reversed(reading.events) if "proposed" in event.get("forerun", {})
        )
        return tokens / (arrivals[-1][0] - began), float(figures["proposed"])

    found = await asyncio.gather(*(one(number) for number in range(chats)))
    rates, drafted = zip(*found, strict=True)
    return {
        "chats": chats,
        "tokens_each": tokens,
        "jain_tokens_per_second": round(jain(rates), 4),
        "jain_drafted": round(jain(drafted), 4),
        "tokens_per_second": [round(rate, 2) for rate in rates],
        "drafted": list(drafted),
    }


def jain(values: Sequence[float]) -> float:
    """1 if all are equal, 1 / n if one has everything."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 1.0


async def idle(daemon: Daemon, seconds: float) -> dict[str, Any]:
    """Processor that it takes while nobody asks."""
    before = daemon.cpu()
    await asyncio.sleep(seconds)
    return {"seconds": seconds, "cpu_percent": round(100 * (daemon.cpu() - before) / seconds, 3)}


async def memory(daemon: Daemon, texts: int) -> dict[str, Any]:
    """Resident before any text, after one (the draft is loaded), and after many."""
    found = {"idle_mib": daemon.memory()}
    prompts = bundled()
    for number in range(texts):
        await daemon.text({"prompt": prompts[number % len(prompts)], "max_tokens": 30, "seed": number})
        if number == 0:
            found["draft_loaded_mib"] = daemon.memory()
        if number == texts // 2:
            found["after_half_mib"] = daemon.memory()
    return {**found, "texts": texts, "after_all_mib": daemon.memory()}


async def start_times(folder: Path, verifier: str, starts: int) -> dict[str, Any]:
    """Seconds from the start of the process to its first answer, and of processor that it took for it."""
    walls, processor = list[float](), list[float]()
    for _ in range(starts):
        daemon = Daemon(folder, verifier)
        try:
            walls.append(await daemon.start())
            processor.append(daemon.cpu())
        finally:
            await daemon.program.close()
    return {
        "starts": starts,
        "median_s": round(median(walls), 3),
        "longest_s": round(max(walls), 3),
        "median_cpu_s": round(median(processor), 3),
    }


async def _token_times(verifier: Child) -> dict[str, list[float]]:
    """Of the tokens since the last call."""
    await verifier.write({})
    times: Any = await verifier.read(START_TIMEOUT)
    return dict(times)


# The command line -----------------------------------------------------------------------------------------


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The parts that were asked for."""
    verifier = await Child.start(
        "verifier",
        *("--step", str(options.step), *(["--live"] if options.live else [])),
        module="benchmarks.clocked_verifier",
    )
    report: dict[str, Any] = {"step_ms": options.step, "load_before": os.getloadavg()[0]}
    try:
        address = (await verifier.read(START_TIMEOUT))["listening"]
        if "start" in options.parts:
            report["start"] = await start_times(folder, address, options.starts)
        async with Daemon(folder, address) as daemon:
            if "idle" in options.parts:
                report["idle"] = await idle(daemon, options.idle)
            if "memory" in options.parts:
                report["memory"] = await memory(daemon, options.texts_for_memory)
            if "overhead" in options.parts:
                report["overhead"] = await overhead(daemon, verifier, options.texts, options.tokens)
            if "fairness" in options.parts:
                report["fairness"] = await fairness(daemon)
    finally:
        await verifier.stop()
    return {**report, "load_after": os.getloadavg()[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.api_overhead", description=__doc__)
    option = parser.add_argument
    option("--step", type=float, default=30.0, metavar="MS", help="of the target (%(default)s)")
    option("--live", action="store_true", help="the demo target runs in every step")
    option("--parts", nargs="+", choices=TIMED, default=list(TIMED))
    option("--texts", type=int, default=4, metavar="N", help="for the overhead (%(default)s)")
    option("--tokens", type=int, default=150, metavar="N", help="of each of them (%(default)s)")
    option("--idle", type=float, default=60.0, metavar="S")
    option("--starts", type=int, default=10, metavar="N")
    option("--texts-for-memory", type=int, default=100, metavar="N")
    option("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forerun-api-") as folder:
        report = asyncio.run(measure(options, Path(folder)))
    sys.stdout.write(json.dumps(report, indent=1 if not options.json else None) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
