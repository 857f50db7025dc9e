"""A frozen verifier, and no verifier at all: how long a text stands still, ten times each.

Run `python -m benchmarks.faults.outages --json`. *Frozen*: the verifier that writes a text is stopped
(SIGSTOP), which leaves its connections open and says nothing; the time until the text goes on at the other
one. *Cut*: both links are reset and refuse; with the fallback `draft` the time until the device's first own
token, and what the stream says when the links are back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.reading import Reading
from benchmarks.faults.recovery import percentile
from benchmarks.faults.stage import Processes, Side, StageSettings
from benchmarks.http_stream import HttpClient
from forerun.prompts import bundled

IN_FLIGHT = 0.2
"""Seconds in which text may still come that had been on its way."""

BEFORE = 20
"""Events with text before anything happens."""

MAX_TOKENS = 700
"""Of a text: more than it has when it is broken off."""


class Watched:
    """One text, event by event as it comes."""

    def __init__(self, stage: Processes, seed: int, fallback: str) -> None:
        self._stage, self._seed, self._fallback = stage, seed, fallback
        self._reading = Reading("text")

    async def events(self) -> AsyncIterator[tuple[float, dict[str, Any]]]:
        """When each came (seconds, monotonic), and what it says."""
        prompts = bundled()
        body = {
            "prompt": prompts[self._seed % len(prompts)],
            "max_tokens": MAX_TOKENS,
            "temperature": 0.8,
            "seed": self._seed,
            "ignore_eos": True,
            "stream": True,
            "forerun": {"origins": True, "fallback": self._fallback},
        }
        async with HttpClient(self._stage.address) as http:
            answer = await http.ask("POST", "/v1/completions", body)
            assert answer.status == 200, await http.body()
            async for chunk in http.chunks():
                known = len(self._reading.events)
                self._reading.feed(chunk)
                for event in self._reading.events[known:]:
                    yield time.monotonic(), event


def origins(event: dict[str, Any]) -> set[str]:
    """Who wrote the tokens that it brings."""
    return {origin for _, origin, _ in event.get("forerun", {}).get("origins", ())}


async def frozen(stage: Processes, seed: int) -> float:
    """Seconds from the stop of the verifier that writes to the next text."""
    texts, struck_at, side = 0, 0.0, stage.sides[0]
    async for at, event in Watched(stage, seed, "wait").events():
        texts += bool(origins(event))
        if not struck_at and texts >= BEFORE:
            side = await _writer(stage)
            side.program.send(signal.SIGSTOP)
            struck_at = time.monotonic()
        elif struck_at and at > struck_at + IN_FLIGHT and origins(event):
            side.program.send(signal.SIGCONT)
            return at - struck_at
    raise AssertionError("the text ended before anything happened")


async def cut(stage: Processes, seed: int) -> dict[str, Any]:
    """Seconds from the cut of both links to the device's first token, and how the text went on when they
    were back: with a difference that was told, or as the target has it."""
    texts, struck_at, back_at, found, alone = 0, 0.0, 0.0, dict[str, Any](), 0
    async for at, event in Watched(stage, seed, "draft").events():
        texts += bool(origins(event))
        if not struck_at and texts >= BEFORE:
            await _links(stage, down=True)
            struck_at = time.monotonic()
        elif struck_at and "device" in origins(event):
            found.setdefault("first_device_token_s", round(at - struck_at, 3))
            alone += 1
            if alone == BEFORE:
                await _links(stage, down=False)
                back_at = time.monotonic()
        elif "first_device_token_s" in found and alone >= BEFORE:
            if "difference" in event.get("forerun", {}):
                found["difference"] = True
            elif origins(event):
                return {"difference": False, **found, "back_after_s": round(at - back_at, 3)}
    raise AssertionError("the text ended before anything happened")


async def _links(stage: Processes, *, down: bool) -> None:
    for side in stage.sides:
        if down:
            await side.link.disable()
        else:
            await side.link.enable()
    for side in stage.sides if down else ():
        side.link.cut()


async def _writer(stage: Processes) -> Side:
    """The side that has the one stream there is."""
    async with HttpClient(stage.address) as http:
        await http.ask("GET", "/v1/status")
        status = await http.json()
    busy = [each["address"] for each in status["verifiers"] if each["streams"]]
    return next(side for side in stage.sides if str(side.link.address) in busy)


async def _repeated(stage: Processes, times: int, once: Callable[[Processes, int], Any]) -> list[Any]:
    found = []
    for seed in range(times):
        await stage.until_ready()
        found.append(await once(stage, seed))
        print(once.__name__, found[-1], file=sys.stderr, flush=True)
    return found


def _spread(times: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(round(each, 3) for each in times)
    return {"p50_s": percentile(ordered, 0.5), "longest_s": ordered[-1]}


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both, on one set of processes."""
    settings = StageSettings(
        folder,
        options.step_floor,
        options.deterministic,
        more=("--verifier-patience", str(options.patience)),
    )
    async with Processes(settings) as stage:
        froze = await _repeated(stage, options.times, frozen)
        cuts = await _repeated(stage, options.times, cut)
    return {
        "times": options.times,
        "patience_s": options.patience,
        "frozen": {**_spread(froze), "all_s": [round(each, 3) for each in froze]},
        "cut": {
            **_spread([each["first_device_token_s"] for each in cuts]),
            "told_a_difference": sum(each["difference"] for each in cuts),
            "all": cuts,
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.faults.outages", description=__doc__)
    parser.add_argument("--times", type=int, default=10, metavar="N")
    parser.add_argument("--step-floor", type=float, default=15.0, metavar="MS")
    parser.add_argument("--patience", type=float, default=0.8, metavar="S", help="verifier.patience")
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forerun-outages-") as folder:
        report = asyncio.run(measure(options, Path(folder)))
    print(json.dumps(report, indent=None if options.json else 1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
