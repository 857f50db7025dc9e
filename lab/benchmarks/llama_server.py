"""Compares Forerun with llama.cpp's own server: the same files, cores, prompts, link and client.

    python -m lab.benchmarks.llama_server --llama-server llama.cpp/build/bin/llama-server \\
        --target target.gguf --draft draft.gguf --prompts FOLDER --json

Every server stands behind an emulated link of its own. llama-server streams plainly, with the draft model,
and with its n-gram drafter. Forerun's daemon streams undrafted, and drafts by each of --policies, without
lookups and with them (`+lookup`). Texts are greedy, and one HTTP client reads all of them. The contestants
take turns, text by text, so all of them see the same machine. Text caches are off, and the n-gram drafter,
which remembers texts, is started anew for each round.

With --out each finished row is kept, and not measured again. --threads are those of a target step. With 1,
servers share the last core, and the daemon, the links and the client share the first one. With more, nothing
is pinned. The draft model always has one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common.errors import LocalError, UserError
from common.llama.model import LlamaModel, LlamaSettings
from edge_client.core.policies import make_policy
from forerun.rig import START_TIMEOUT, Processes
from forerun.terminal import note
from lab.bench.report import Machine, finish, settings_of, table
from lab.benchmarks.daemon import DaemonProcess, num_tokens
from lab.benchmarks.http_stream import BrokenError, HttpClient
from lab.benchmarks.processes import LoggedProcess, attempts, free_port
from lab.benchmarks.real_sizes.kinds import KINDS, published_prompts
from lab.benchmarks.real_sizes.pair import Prompt
from lab.benchmarks.reports import Report, carry_out, parser_of
from simulator.figures import rounded
from simulator.proxy import Link, rtt

PLAIN, DRAFTED, NGRAM = "llama-server", "llama-server draft", "llama-server ngram"
UNDRAFTED, LOOKUP = "forerun", "+lookup"
DRAFT_THREAD = "1"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contestant:
    """Holds where one way of writing listens, and the fields of its requests beside the common ones."""

    name: str
    address: str
    link: Link
    fields: Json


def reference_of(name: str) -> str:
    """Return the name of the contestant that must write the same text."""
    return PLAIN if name.startswith(PLAIN) else UNDRAFTED


@dataclass(slots=True)
class TextRun:
    """Joins the events of one text. `clock` times are seconds since the request."""

    text: str = ""
    first: tuple[float, int] | None = None  # time, and tokens that came then
    last_at: float = 0.0
    num_tokens: int = 0
    figures: Json = field(default_factory=dict)  # the server's own

    def take(self, event: Json, at: float) -> None:
        """Take one event. Raises `LocalError` for an error of the server."""
        if "error" in event:
            raise LocalError(f"a server ended a text with {str(event['error'])[:300]}")
        added = "".join(choice["text"] for choice in event.get("choices", ()))
        if added:
            self.text += added
            self.first = self.first or (at, max(1, num_tokens(event)))
            self.last_at = at
        if event.get("usage"):
            self.num_tokens = event["usage"]["completion_tokens"]
        if "timings" in event:
            self.figures = event["timings"]
        elif "proposed" in event.get("forerun", {}):
            self.figures = event["forerun"]

    @property
    def ms_per_token(self) -> float:
        """Return the time after the first tokens, over the tokens after them."""
        if self.first is None or self.num_tokens <= self.first[1]:
            raise LocalError(f"a text of {self.num_tokens} tokens has no pace; give more --tokens")
        return 1e3 * (self.last_at - self.first[0]) / (self.num_tokens - self.first[1])


async def write(contestant: Contestant, body: Mapping[str, Any]) -> TextRun:
    """Stream one text."""
    run, data, began = TextRun(), b"", time.monotonic()
    async with HttpClient(contestant.address) as http:
        await http.ask("POST", "/v1/completions", {**body, **contestant.fields})
        async for chunk in http.chunks():
            at = time.monotonic() - began
            *frames, data = (data + chunk).split(b"\n\n")
            for line in b"\n".join(frames).split(b"\n"):
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    run.take(json.loads(line[6:]), at)
    return run


# The contestants --------------------------------------------------------------------------------------------


class LlamaServer(LoggedProcess):
    """Runs llama-server. An async context manager, ready when entered."""

    def __init__(self, program: Path, log: Path, *options: str) -> None:
        super().__init__("llama-server", log=log)
        self.address = f"127.0.0.1:{free_port()}"
        host, port = self.address.split(":")
        self._command = (str(program), "--host", host, "--port", port, *options)

    async def __aenter__(self) -> LlamaServer:
        try:
            await self.spawn()
            async for _ in attempts():
                self.check()
                with contextlib.suppress(BrokenError):
                    async with HttpClient(self.address) as http:
                        if (await http.ask("GET", "/health")).status == 200:
                            break
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Run this thread, and the processes that it starts, on some cores. None: everywhere."""
    before = os.sched_getaffinity(0) if cores else set[int]()
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if before:
            os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Stage:
    """Starts the contestants of one number of threads."""

    options: argparse.Namespace
    threads: int
    folder: Path
    front: Sequence[int]  # cores of daemon, links and client
    back: Sequence[int]  # cores of servers

    @classmethod
    def of(cls, options: argparse.Namespace, threads: int, folder: Path) -> Stage:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pins = threads == 1 and len(cores) > 1
        return cls(options, threads, folder, cores[:1] if pins else (), cores[-1:] if pins else ())

    @contextlib.asynccontextmanager
    async def plain_servers(self) -> AsyncIterator[list[Contestant]]:
        """Run llama-server without drafts and with the draft model."""
        draft = ["-md", str(self.options.draft), "--spec-type", "draft-simple", "-td", str(self.threads)]
        draft += ["--spec-draft-n-max", str(self.options.drafted)]
        async with contextlib.AsyncExitStack() as stack:
            yield [
                await self._llama_server(stack, PLAIN),
                await self._llama_server(stack, DRAFTED, *draft),
            ]

    @contextlib.asynccontextmanager
    async def ngram_server(self) -> AsyncIterator[Contestant]:
        """Run llama-server with its n-gram drafter."""
        async with contextlib.AsyncExitStack() as stack:
            yield await self._llama_server(stack, NGRAM, "--spec-type", "ngram-mod")

    async def _llama_server(self, stack: contextlib.AsyncExitStack, name: str, *options: str) -> Contestant:
        threads = str(self.threads)
        common = ["-m", str(self.options.target), "-t", threads, "-tb", threads, "-c", "4096", "-np", "1"]
        log = self.folder / f"{name}.log"
        with on_cores(self.back):
            server = await stack.enter_async_context(
                LlamaServer(self.options.llama_server, log, *common, *options)
            )
        link = await stack.enter_async_context(Link.to(server.address))
        return Contestant(name, str(link.address), link, {"cache_prompt": False})

    @contextlib.asynccontextmanager
    async def forerun(self) -> AsyncIterator[list[Contestant]]:
        """Run a verifier, and a daemon behind a link."""
        pair = ["--threads", str(self.threads), "--model", str(self.options.target)]
        verify = ["verify", *pair, "--listen", "127.0.0.1:0", "--json", "--grace", "0"]
        verify += ["--no-prefix-cache", "--no-recall", "--log-level", "warning"]
        edge = ["--draft", str(self.options.draft), "--threads", DRAFT_THREAD, "--remember", "0"]
        async with Processes() as processes, contextlib.AsyncExitStack() as stack:
            with on_cores(self.back):
                verifier = await processes.start("verifier", *verify)
                address = (await verifier.read(START_TIMEOUT))["listening"]
            link = await stack.enter_async_context(Link.to(address))
            with on_cores(self.front):
                daemon = DaemonProcess(self.folder, "--verifier", str(link.address), *edge)
                await stack.enter_async_context(daemon)
            ways: dict[str, Json] = {UNDRAFTED: {"speculate": False}}
            for policy in self.options.policies:
                ways[f"{UNDRAFTED} {policy}"] = {"policy": policy, "recall": False}
                ways[f"{UNDRAFTED} {policy}{LOOKUP}"] = {"policy": policy, "recall": True}
            yield [
                Contestant(name, daemon.address, link, {"forerun": {"origins": True, **ours}})
                for name, ours in ways.items()
            ]


# The comparison ---------------------------------------------------------------------------------------------


class ServerReport(Report[tuple[int, float]]):
    """Holds a row for each number of threads and round trip."""

    @staticmethod
    def key_of(row: Mapping[str, Any]) -> tuple[int, float]:
        return row["threads"], row["rtt_ms"]


async def measure(options: argparse.Namespace, prompts: Sequence[Prompt], report: ServerReport) -> None:
    """Add the rows that are missing, and write the report after each."""
    for threads in options.threads:
        left = [rtt_ms for rtt_ms in options.rtt if (threads, rtt_ms) not in report.rows]
        if not left:
            continue
        with tempfile.TemporaryDirectory(prefix="forerun-servers-") as folder:
            stage = Stage.of(options, threads, Path(folder))
            async with stage.plain_servers() as plain, stage.forerun() as ours:
                with on_cores(stage.front):
                    for rtt_ms in left:
                        runs, load = await _setting(options, stage, [*plain, *ours], prompts, rtt_ms)
                        row = {"threads": threads, "rtt_ms": rtt_ms, "load": load}
                        report.rows[threads, rtt_ms] = {**row, "contestants": summary(runs, prompts)}
                        if options.out is not None:
                            report.write(options.out)


async def _setting(
    options: argparse.Namespace,
    stage: Stage,
    contestants: Sequence[Contestant],
    prompts: Sequence[Prompt],
    rtt_ms: float,
) -> tuple[dict[str, list[list[TextRun]]], list[float]]:
    """Return the runs of each contestant, by text and round, and the load averages of each round."""
    runs = dict[str, list[list[TextRun]]]()
    load = list[float]()
    for number in range(1, options.rounds + 1):
        async with stage.ngram_server() as ngram:
            field = [*contestants, ngram]
            for each in field:
                each.link.set_toxic(*rtt(rtt_ms))
            load.append(round(os.getloadavg()[0], 2))
            for place, prompt in enumerate(prompts):
                for each in field[place % len(field) :] + field[: place % len(field)]:
                    note(f"RTT {rtt_ms:g} ms, round {number}, {prompt.name}: {each.name}")
                    run = await write(each, body_of(options, prompt))
                    texts = runs.setdefault(each.name, [[] for _ in prompts])
                    texts[place].append(run)
    return runs, load


def body_of(options: argparse.Namespace, prompt: Prompt) -> Json:
    """Return the fields that all contestants understand."""
    how = {"temperature": 0, "seed": options.seed, "ignore_eos": True, "max_tokens": options.tokens}
    return {"prompt": list(prompt.tokens), "stream": True, "stream_options": {"include_usage": True}, **how}


def summary(runs: Mapping[str, list[list[TextRun]]], prompts: Sequence[Prompt]) -> dict[str, Json]:
    """Return each contestant's figures. The pace of a text is the median of its rounds."""
    found, kinds = dict[str, Json](), dict.fromkeys(prompt.kind for prompt in prompts)
    for name, texts in runs.items():
        paces = [median(run.ms_per_token for run in rounds) for rounds in texts]
        by_kind = {kind: list[float]() for kind in kinds}
        for pace, prompt in zip(paces, prompts, strict=True):
            by_kind[prompt.kind].append(pace)
        wanted = [rounds[0].text for rounds in runs[reference_of(name)]]
        same = [run.text == text for rounds, text in zip(texts, wanted, strict=True) for run in rounds]
        found[name] = {
            "ms_per_token": rounded(fmean(paces)),
            "by_kind": {kind: rounded(fmean(own)) for kind, own in by_kind.items()},
            "ttft_ms": rounded(median(1e3 * run.first[0] for rounds in texts for run in rounds if run.first)),
            **_server_figures([run for rounds in texts for run in rounds]),
            "reference": reference_of(name),
            "identical": sum(same),
            "texts": len(same),
            "rounds_ms_per_token": [[rounded(run.ms_per_token) for run in rounds] for rounds in texts],
        }
    return found


def _server_figures(runs: Sequence[TextRun]) -> Json:
    """Return the server's own figures per token: Forerun's steps and drafts, or llama-server's pace."""
    count = sum(run.num_tokens for run in runs)

    def per_token(name: str) -> float | None:
        return rounded(sum(run.figures.get(name, 0) for run in runs) / count)

    names: tuple[str, ...] = ("predicted_ms", "draft_n", "draft_n_accepted")
    if "target_steps" in runs[0].figures:
        names = ("target_steps", "proposed", "accepted", "step_ms", "queue_ms", "draft_ms")
    return {f"{name}_per_token": per_token(name) for name in names}


# The command ------------------------------------------------------------------------------------------------

SHOWN = ("ms_per_token", "ttft_ms", "identical", "texts")


def lines_of(rows: Sequence[Json]) -> Iterator[str]:
    """Format a table for each setting, a line per contestant."""
    for row in rows:
        yield f"{row['threads']} threads, RTT {row['rtt_ms']:g} ms, load {row['load']}"
        lines = [
            {"": name, **each["by_kind"], **{key: each[key] for key in SHOWN}}
            for name, each in row["contestants"].items()
        ]
        yield from table(lines)


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("llama_server", __doc__)
    option = parser.add_argument
    option("--llama-server", type=Path, required=True, metavar="FILE", help="llama.cpp's program")
    option("--target", type=Path, required=True, metavar="FILE", help="target model, GGUF")
    option("--draft", type=Path, required=True, metavar="FILE", help="draft model, GGUF")
    option("--prompts", type=Path, required=True, metavar="FOLDER", help="published files of prompts")
    option("--kinds", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="(%(default)s)")
    option("--texts", type=int, default=2, metavar="N", help="prompts of each kind (%(default)s)")
    option("--tokens", type=int, default=64, metavar="N", help="tokens of each text (%(default)s)")
    option("--rounds", type=int, default=1, metavar="N", help="times that each text is written (%(default)s)")
    option("--rtt", type=float, nargs="+", default=[0.0, 60.0, 150.0], metavar="MS", help="(%(default)s)")
    option("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="(%(default)s)")
    option("--policies", nargs="*", default=["adaptive", "chain"], metavar="NAME", help="(%(default)s)")
    option(
        "--drafted", type=int, default=3, metavar="N", help="tokens that llama-server drafts (%(default)s)"
    )
    option("--seed", type=int, default=1)
    parser.set_defaults(run=_run)
    return parser


def check(options: argparse.Namespace) -> None:
    """Check options before loading takes seconds. Raises `UserError`."""
    if not options.llama_server.is_file():
        raise UserError(f"there is no program {options.llama_server}; build llama.cpp's target llama-server")
    for name, least in (("tokens", 2), ("rounds", 1), ("drafted", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} is {getattr(options, name)}; it must be at least {least}")
    for threads, rtt_ms in product(options.threads, options.rtt):
        if threads < 1 or not 0.0 <= rtt_ms < 60_000.0:
            raise UserError(
                f"--threads is {threads} and --rtt {rtt_ms:g}; the first is at least 1, and "
                "an RTT lies in [0, 60000)"
            )
    for policy in options.policies:
        make_policy(policy)


def _run(options: argparse.Namespace) -> None:
    check(options)
    machine, settings = Machine(), settings_of(options)
    report = ServerReport.resumed(options.out, settings, machine.told())
    model = LlamaModel(LlamaSettings(str(options.target)), weights=False)
    prompts = published_prompts(model, options.prompts, options.texts, options.kinds)
    model.close()
    asyncio.run(measure(options, prompts, report))
    rows = list(report.rows.values())
    told = {"settings": report.settings, "machine": report.machine, "results": rows}
    finish(options, told, list(lines_of(rows)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    return carry_out("llama_server", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
