"""A cluster of verifier processes under one daemon: restarted one by one, one of them killed, one added.

Run `python -m benchmarks.cluster --json`. Verifiers listen on loopback and ask for a client certificate
(mTLS); the daemon chooses among them by hashing, as among the pods of a headless service. *Rolling*: each is
told to end (SIGTERM, which drains it) and started anew when the one before is ready, while clients read texts
one after the other. *Kill*: one of them is killed while every client reads a text; whose verifier changes?
*Scale*: the same prompts before and after another one has come; whose verifier is another one? Every text is
compared with the same request's when nothing happened. The verifiers run `--deterministic`, so no rounding
can turn a text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trustme

from benchmarks.faults.clients import Client
from benchmarks.faults.draws import Job, draw_job
from benchmarks.faults.reading import Told, Violation, compare
from benchmarks.http_stream import BrokenError, HttpClient
from benchmarks.ports import free_port
from benchmarks.programs import Program, attempts, own_places
from demo_models import DRAFT_GGUF, TARGET_DIR
from forerun.prompts import bundled

PARTS = ("rolling", "kill", "scale")
LONG = 700
"""Tokens of a text that is under way for as long as it takes to begin all of them and to kill a verifier."""

GRACE = 5
"""Seconds that a verifier which drains waits for its sessions."""


def say(words: str) -> None:
    """Progress, for whoever waits."""
    print(f"{time.strftime('%H:%M:%S')}  {words}", file=sys.stderr, flush=True)


class Certificates:
    """A CA, the verifiers' pair and the device's, as files."""

    def __init__(self, folder: Path) -> None:
        ca = trustme.CA()
        self.ca = folder / "ca.pem"
        ca.cert_pem.write_to_path(str(self.ca))
        self.verifier = self._pair(folder / "verifier", ca.issue_cert("127.0.0.1"))
        self.device = self._pair(folder / "device", ca.issue_cert("device.example"))

    @staticmethod
    def _pair(place: Path, issued: trustme.LeafCert) -> tuple[Path, Path]:
        cert, key = place.with_suffix(".pem"), place.with_suffix(".key")
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        return cert, key


class Verifier:
    """One process, which may come and go."""

    def __init__(self, number: int, folder: Path, certificates: Certificates, step_floor: float) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.up = False
        cert, key = certificates.verifier
        self.program = Program(
            f"verifier {number}", folder / f"verifier{number}.log", {},
            "verify", "--model", str(TARGET_DIR), "--listen", self.address, "--threads", "1",
            "--deterministic", "--step-floor", str(step_floor), "--grace", str(GRACE),
            "--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(certificates.ca),
        )  # fmt: skip

    async def start(self) -> None:
        await self.program.start()
        self.up = True

    async def end(self, number: signal.Signals) -> None:
        """By this signal; returns when it has gone."""
        self.up = False
        self.program.send(number)
        await self.program.gone()


class Cluster:
    """Three verifiers, a fourth that is named and not there yet, and a daemon. An async context manager."""

    def __init__(self, folder: Path, step_floor: float, seats: int) -> None:
        certificates = Certificates(folder)
        self.verifiers = [Verifier(number, folder, certificates, step_floor) for number in range(4)]
        self.address = f"127.0.0.1:{free_port()}"
        cert, key = certificates.device
        named = [word for each in self.verifiers for word in ("--verifier", each.address)]
        self.daemon = Program(
            "daemon", folder / "daemon.log", own_places(folder),
            "edge", *named, "--draft", str(DRAFT_GGUF), "--threads", "1", "--listen", self.address,
            "--no-api-auth", "--draft-seats", str(seats), "--context", "32768", "--log-level", "info",
            "--verifier-tls-ca", str(certificates.ca), "--verifier-tls-cert", str(cert),
            "--verifier-tls-key", str(key),
        )  # fmt: skip

    async def __aenter__(self) -> Cluster:
        try:
            for each in self.verifiers[:3]:
                await each.start()
            await self.daemon.start()
            await self.until_ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for program in (self.daemon, *(each.program for each in self.verifiers)):
            await program.close()

    async def until_ready(self) -> None:
        """The daemon finds every verifier ready that should be up. It asks seldom while nobody needs them,
        so it gets something to do."""
        async for _ in attempts(0.5):
            self.daemon.check()
            with contextlib.suppress(BrokenError, KeyError):
                async with HttpClient(self.address) as http:
                    await http.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
                told = await self.ask("/v1/status")
                health = {each["address"]: each["health"] for each in told["verifiers"]}
                if all(health[each.address] == "ready" for each in self.verifiers if each.up):
                    return

    async def ask(self, path: str) -> Any:
        """The daemon's JSON there."""
        async with HttpClient(self.address) as http:
            await http.ask("GET", path)
            return await http.json()

    async def places(self) -> dict[str, tuple[str, int]]:
        """Of each text under way its verifier and its tokens so far."""
        told = await self.ask("/v1/sessions")
        return {each["id"]: (each["verifier"], each["tokens"]) for each in told["sessions"]}


class Readers:
    """Clients that read the same jobs again and again, and hold them against what they were at first."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], count: int) -> None:
        self.texts = self.tokens = 0
        self.ids: dict[int, str] = {}  # of each job's newest text
        self.failures: list[str] = []
        self._jobs = jobs
        self._clients = [Client(cluster.address, "", lambda name: None) for _ in range(count)]
        self._references: dict[int, Told] = {}
        self._names = itertools.count(1)

    async def each_once(self) -> None:
        """Every job once; the first time that is what it should be."""
        jobs = iter(self._jobs)
        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(self._all_of(client, jobs))

    async def until(self, over: asyncio.Event) -> None:
        """One text after the other."""
        async with asyncio.TaskGroup() as group:
            for place, client in enumerate(self._clients):
                jobs = itertools.cycle([*self._jobs[place:], *self._jobs[:place]])
                stopped = itertools.takewhile(lambda _: not over.is_set(), jobs)
                group.create_task(self._all_of(client, stopped))

    async def _all_of(self, client: Client, jobs: Any) -> None:
        for job in jobs:
            try:
                await self._read(client, job)
            except Violation as error:
                self.failures.append(str(error))

    async def _read(self, client: Client, job: Job) -> None:
        name = f"text-{next(self._names)}"
        reading = await client.stream(name, job)
        told = reading.told()
        self.ids[job.number] = reading.events[0]["id"]
        compare(reading, await client.again(name), self._references.setdefault(job.number, told))
        self.texts += 1
        self.tokens += told.num_tokens


# Measurements ---------------------------------------------------------------------------------------------


async def rolling(cluster: Cluster, sessions: int) -> dict[str, Any]:
    """Every verifier is replaced while so many texts are read at any time."""
    readers = Readers(cluster, _jobs(sessions, 60), sessions)
    await readers.each_once()
    texts, over = readers.texts, asyncio.Event()
    reading = asyncio.create_task(readers.until(over))
    began, took = time.monotonic(), list[float]()
    for each in cluster.verifiers[:3]:
        stopping = time.monotonic()
        await each.end(signal.SIGTERM)
        took.append(round(time.monotonic() - stopping, 2))
        await each.start()
        await cluster.until_ready()
        read, failed = readers.texts - texts, len(readers.failures)
        say(f"{each.program.name} was replaced; {read} texts, {failed} failures")
    over.set()
    await reading
    return {
        "sessions": sessions,
        "seconds": round(time.monotonic() - began, 1),
        "drained_after_s": took,
        "texts": readers.texts - texts,
        "tokens": readers.tokens,
        "failed": len(readers.failures),
        "failures": readers.failures[:5],
    }


async def kill(cluster: Cluster, sessions: int) -> dict[str, Any]:
    """One verifier is killed while every client reads a long text: who moves?"""
    readers = Readers(cluster, _jobs(sessions, LONG), sessions)
    await readers.each_once()
    reading = asyncio.create_task(readers.each_once())
    before = await _until(cluster, lambda now: len(now) == sessions and all(v and n for v, n in now.values()))
    victim = max(cluster.verifiers[:3], key=lambda each: _count(before, each.address))
    await victim.end(signal.SIGKILL)
    say(f"{victim.program.name} was killed")
    struck_at, moved, others = time.monotonic(), dict[str, float](), set[str]()
    while not reading.done():
        now = await cluster.places()
        for name, (address, _) in now.items():
            if name in before and address != before[name][0]:
                moved.setdefault(name, time.monotonic() - struck_at)
                if before[name][0] != victim.address:
                    others.add(name)
        await asyncio.sleep(0.05)
    await reading
    await victim.start()
    await cluster.until_ready()
    return {
        "sessions": sessions,
        "on_the_killed": _count(before, victim.address),
        "moved": len(moved),
        "moved_of_others": len(others),
        "longest_until_moved_s": round(max(moved.values(), default=0.0), 3),
        "failed": len(readers.failures),
        "failures": readers.failures[:5],
    }


async def scale(cluster: Cluster, sessions: int, prompts: int) -> dict[str, Any]:
    """The same prompts with three verifiers and with four."""
    readers = Readers(cluster, _jobs(prompts, 40, different=True), sessions)
    homes = list[dict[int, str]]()
    for number in range(2):
        homes.append(await _homes(cluster, readers))
        if not number:
            await cluster.verifiers[3].start()
            await cluster.until_ready()
            say("a fourth verifier has come")
    first, second = homes
    both = first.keys() & second.keys()
    moved = [job for job in both if first[job] != second[job]]
    return {
        "prompts": len(both),
        "moved": len(moved),
        "share_moved": round(len(moved) / len(both), 4),
        "moved_elsewhere_than_to_the_new": sum(second[job] != cluster.verifiers[3].address for job in moved),
        "prompts_by_verifier": [sorted(Counter(each.values()).values()) for each in homes],
        "failed": len(readers.failures),
        "failures": readers.failures[:5],
    }


async def _homes(cluster: Cluster, readers: Readers) -> dict[int, str]:
    """Which verifier each job was first sent to."""
    seen = dict[str, str]()
    reading = asyncio.create_task(readers.each_once())
    while not reading.done():
        for name, (address, _) in (await cluster.places()).items():
            if address:
                seen.setdefault(name, address)
        await asyncio.sleep(0.05)
    await reading
    return {job: seen[name] for job, name in readers.ids.items() if name in seen}


async def _until(
    cluster: Cluster, holds: Callable[[dict[str, tuple[str, int]]], bool]
) -> dict[str, tuple[str, int]]:
    async for _ in attempts(0.05):
        if holds(now := await cluster.places()):
            return now
    raise AssertionError("attempts end by an error")


def _count(places: dict[str, tuple[str, int]], address: str) -> int:
    return sum(each == address for each, _ in places.values())


def _jobs(count: int, tokens: int, *, different: bool = False) -> tuple[Job, ...]:
    """Completions of the bundled prompts, drawn by number; `different` ones all begin in another way."""
    prompts = tuple(bundled())
    jobs = []
    for number in range(count):
        body = {**draw_job(7, number, prompts).body, "max_tokens": tokens, "ignore_eos": True}
        for name in ("messages", "prompt", "stop", "logprobs"):
            body.pop(name, None)
        text = prompts[number % len(prompts)]
        body["prompt"] = f"# {number}\n{text}" if different else text
        jobs.append(Job(number, "/v1/completions", body))
    return tuple(jobs)


# The command line -----------------------------------------------------------------------------------------


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The parts that were asked for, on one cluster."""
    report: dict[str, Any] = {"step_floor_ms": options.step_floor}
    async with Cluster(folder, options.step_floor, options.sessions) as cluster:
        say("three verifiers and a daemon serve")
        if "rolling" in options.parts:
            report["rolling"] = await rolling(cluster, options.sessions)
        if "kill" in options.parts:
            report["kill"] = await kill(cluster, options.sessions)
        if "scale" in options.parts:
            report["scale"] = await scale(cluster, options.sessions, options.prompts)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns 1 if a text failed, or a session moved that need not."""
    parser = argparse.ArgumentParser(prog="benchmarks.cluster", description=__doc__)
    option = parser.add_argument
    option("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    option("--sessions", type=int, default=24, metavar="N", help="texts at any time (%(default)s)")
    option("--prompts", type=int, default=96, metavar="N", help="of the part `scale` (%(default)s)")
    option("--step-floor", type=float, default=60.0, metavar="MS", help="of the targets (%(default)s)")
    option("--keep", type=Path, metavar="FOLDER", help="keep the processes' logs there")
    option("--json", action="store_true", help="on one line")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forerun-cluster-") as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(measure(options, place))
    print(json.dumps(report, indent=None if options.json else 1))
    parts = [report[name] for name in PARTS if name in report]
    return int(any(each["failed"] or each.get("moved_of_others") for each in parts))


if __name__ == "__main__":
    raise SystemExit(main())
