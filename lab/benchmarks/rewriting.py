"""Measures the rewriting of a file with few changes: what a reference saves.

    python -m lab.benchmarks.rewriting simulate --json
    python -m lab.benchmarks.rewriting serve --json

The text is a file of 2,000 tokens in which every tenth line is changed: renamed, rewritten, left out or
followed by a new one. The prompt holds the file as it was, unless `--without-file`. `simulate` runs the
real machines in virtual time with a draft model of known acceptance. `serve` runs a daemon over an emulated
link, in front of a verifier whose steps take a known time and that writes this text
(`lab.benchmarks.clocked_verifier`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.prompt_lookup import SharedTexts
from common.suffix_index import GrowingIndex
from edge_client.core.nouns import SessionConfig
from edge_client.core.policies import make_policy
from forerun.rig import START_TIMEOUT, Processes
from lab.bench.report import finish
from lab.benchmarks.daemon import DaemonProcess
from lab.benchmarks.reports import parser_of
from simulator.drafts import BetaDraft, ReplayedDraft, ReplayedTexts
from simulator.events import Draws
from simulator.figures import SessionResult, rounded
from simulator.knowledge import BEST, VOCAB_SIZE, Candidates
from simulator.link import LinkSpec
from simulator.proxy import Link, rtt
from simulator.system import SimulatedDevice, simulate
from simulator.world import DeviceSpec, VerifierSpec, World

# The file and its new version.

NAMES = (
    *("count", "total", "order", "price", "client", "owner", "region"),
    *("status", "amount", "index", "buffer", "label", "parent", "limit"),
)
VERBS = (
    *("load", "store", "check", "parse", "merge", "split", "count", "fetch"),
    *("send", "close", "open", "read", "write", "update", "remove"),
)
NUM_LINES, EVERY = 240, 10


def _line(draw: random.Random) -> str:
    one, two, three = draw.sample(NAMES, 3)
    verb, number = draw.choice(VERBS), draw.randrange(1000)
    return draw.choice(
        [
            f"    {one} = {verb}_{two}({three}, {number})",
            f"    if {one} > {number}:",
            f"        return {one} + self.{two}",
            f"    for {one} in {two}.{verb}():",
            f"        {two}.{verb}({one}, key={three})",
            f"    # {verb} the {one} of each {two}",
        ]
    )


def written_file(draw: random.Random, num_lines: int = NUM_LINES) -> list[str]:
    """Return the lines of a program."""
    lines = list[str]()
    while len(lines) < num_lines:
        verb, name = draw.choice(VERBS), draw.choice(NAMES)
        lines += ["", f"def {verb}_{name}_{len(lines)}(self, {draw.choice(NAMES)}):"]
        lines += [_line(draw) for _ in range(draw.randint(4, 9))]
    return lines[:num_lines]


def changed(lines: Sequence[str], draw: random.Random, every: int = EVERY) -> list[str]:
    """Return the lines with one of `every` changed."""
    found = list[str]()
    chosen = set(draw.sample(range(len(lines)), len(lines) // every))
    for at, line in enumerate(lines):
        kind = draw.choice(("rename", "rewrite", "insert", "leave out")) if at in chosen else ""
        words = re.findall(r"[a-z]{4,}", line)
        match kind:
            case "rename" if words:
                found.append(line.replace(draw.choice(words), draw.choice(NAMES) + "_new", 1))
            case "insert":
                found += [line, _line(draw)]
            case "leave out":
                pass
            case "":
                found.append(line)
            case _:
                found.append(_line(draw))
    return found


@dataclass(frozen=True, slots=True)
class Task:
    """A file and its new version."""

    old: str
    new: str

    @classmethod
    def of(cls, seed: int, every: int = EVERY) -> Task:
        """Return the task of a seed, with one of `every` lines changed."""
        draw = random.Random(seed)
        old = written_file(draw)
        return cls("\n".join(old) + "\n", "\n".join(changed(old, draw, every)) + "\n")


# In virtual time.


def word_ids(*texts: str) -> list[tuple[int, ...]]:
    """Return the texts as ids of their words, spaces and signs, about as a model's tokens."""
    ids = dict[str, int]()
    words = [re.findall(r"\n? *[A-Za-z]+|\d|\n|[^\sA-Za-z\d]", text) for text in texts]
    return [tuple(ids.setdefault(each, len(ids)) for each in found) for found in words]


def draft_of(truth: Sequence[int], mean: float, seed: int) -> ReplayedDraft:
    """Return a draft with the best token right at a share of `mean` of the positions."""
    known, draw = BetaDraft(mean).session(Draws(seed, 0)), random.Random(seed)
    ranked, candidates = [], list[Candidates]()
    for position, token in enumerate(truth):
        rank, (_, scores) = known.truth(position) - BEST, known.candidates(position)
        tokens = [VOCAB_SIZE // 2 + draw.randrange(10**5) for _ in scores]
        if rank < len(tokens):
            tokens[rank] = token
        ranked.append((scores, rank + 1))
        candidates.append((tuple(tokens), scores))
    replay = ReplayedTexts("rewriting", [ranked], (candidates, list(truth)))
    return ReplayedDraft(replay, BetaDraft(mean).prior)


def simulated(options: argparse.Namespace, seed: int) -> dict[str, list[SessionResult]]:
    """Return each scheme's result on one task."""
    task = Task.of(seed, options.every)
    old, new = word_ids(task.old, Task.of(seed + 1000).new if options.unlike else task.new)
    prompt = old[:16] if options.without_file else old
    world = World(
        link=LinkSpec(rtt=options.rtt / 1e3),
        device=DeviceSpec(recall=True, draft_time=options.draft_step / 1e3),
        verifier=VerifierSpec(step_time=options.step / 1e3, step_time_per_node=options.row / 1e3),
        draft=draft_of(new, options.mean, seed),
        tokens=len(new),
        prompt_tokens=len(prompt),
    )
    limits = world.verifier.with_product_limits()
    limits = replace(limits, recall=options.server_recall, max_nodes_per_session=options.max_nodes)
    world = replace(world, verifier=limits)
    silent = replace(world, verifier=replace(limits, recall=False))

    def run(
        world: World,
        policy: str,
        references: tuple[tuple[int, ...], ...] = (),
        files: tuple[GrowingIndex, ...] = (),
    ) -> list[SessionResult]:
        class Device(SimulatedDevice):
            def _config(self) -> SessionConfig:
                return replace(super()._config(), prompt=prompt, references=references)

            def _shared(self) -> SharedTexts:
                return SharedTexts(files=files)

        return simulate(world, lambda _: make_policy(policy), Device)

    return {
        "streaming": run(silent, "off"),
        "draft": run(replace(silent, device=replace(world.device, recall=False)), "adaptive"),
        "recall": run(world, "adaptive"),
        "index": run(world, "adaptive", files=(GrowingIndex(old),)),
        "reference": run(world, "adaptive", (old,)),
    }


def simulate_all(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all schemes."""
    found = dict[str, list[SessionResult]]()
    for seed in range(1, options.tasks + 1):
        for name, results in simulated(options, seed).items():
            found.setdefault(name, []).extend(results)
    return {name: _told(results) for name, results in found.items()}


def _told(results: Sequence[SessionResult]) -> dict[str, Any]:
    """Return a scheme's figures over all tasks. The first token's time is left out."""
    tokens = sum(len(each.tokens) for each in results)

    def per_token(name: str) -> float | None:
        return rounded(sum(getattr(each.stats, name) for each in results) / tokens)

    seconds = sum(each.arrivals[-1] - each.arrivals[0] for each in results)
    return {
        "tokens": tokens,
        "target_steps_per_token": per_token("target_steps"),
        "ms_per_token": rounded(1e3 * seconds / (tokens - len(results))),
        "evaluated_per_token": per_token("evaluated"),
        "proposed_per_token": per_token("proposed"),
        "draft_steps_per_token": per_token("draft_steps"),
    }


# Through a daemon, over a link.

SCHEMES: dict[str, dict[str, Any]] = {
    "streaming": {"speculate": False},
    "recall": {},
    "reference": {},
}


async def serve_all(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures of all schemes: each writes the text of every task through one daemon."""
    found = dict[str, list[dict[str, Any]]]()
    for seed in range(1, options.tasks + 1):
        for name, figures in (await served(options, seed, folder)).items():
            found.setdefault(name, []).append(figures)
    return {name: _summed(each) for name, each in found.items()}


def _write(folder: Path, prompt: str, text: str) -> Path:
    path = folder / "task.json"
    path.write_text(json.dumps({"prompt": prompt, "text": text}), encoding="utf-8")
    return path


async def served(options: argparse.Namespace, seed: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Return each scheme's figures on one task."""
    task = Task.of(seed, options.every)
    path = _write(folder, "Write the file.\n" if options.without_file else task.old, task.new)
    async with Processes() as processes, contextlib.AsyncExitStack() as stack:
        given = ["--step", str(options.step), "--text", str(path), *(["--recall"] * options.server_recall)]
        verifier = await processes.start("verifier", *given, module="lab.benchmarks.clocked_verifier")
        told = await verifier.read(START_TIMEOUT)
        link = await stack.enter_async_context(Link.to(told["listening"], *rtt(options.rtt), seed=seed))
        daemon = await stack.enter_async_context(DaemonProcess(folder, "--verifier", str(link.address)))
        figures = dict[str, dict[str, Any]]()
        for name, ours in SCHEMES.items():
            body: dict[str, Any] = {
                "prompt": told["prompt"],
                "max_tokens": told["num_tokens"],
                "temperature": 0,
            }
            if name == "reference":
                body["prediction"] = {"type": "content", "content": task.old}
            reading, arrivals = await daemon.text({**body, "forerun": {"origins": True, **ours}})
            seconds = arrivals[-1][0] - arrivals[0][0]
            is_right = reading.told().text == task.new
            figures[name] = {**reading.figures, "seconds": seconds, "identical": is_right}
    return figures


def _summed(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    tokens = sum(each["tokens"] for each in found)

    def per_token(name: str) -> float | None:
        return rounded(sum(each[name] for each in found) / tokens)

    return {
        "tokens": tokens,
        "target_steps_per_token": per_token("target_steps"),
        "ms_per_token": rounded(1e3 * sum(each["seconds"] for each in found) / (tokens - len(found))),
        "proposed_per_token": per_token("proposed"),
        "identical": all(each["identical"] for each in found),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of("rewriting", __doc__)
    option = parser.add_argument
    option("how", choices=("simulate", "serve"), help="in virtual time, or through a daemon and gRPC")
    option("--rtt", type=float, default=60.0, metavar="MS", help="round trip of the link (%(default)s)")
    option("--step", type=float, default=30.0, metavar="MS", help="target step time (%(default)s)")
    option("--tasks", type=int, default=3, metavar="N", help="files to rewrite (%(default)s)")
    option("--every", type=int, default=EVERY, metavar="N", help="one of N lines is changed (%(default)s)")
    option("--without-file", action="store_true", help="leave the file out of the prompt")
    option("--server-recall", action="store_true", help="let the verifier guess repeated text, too")
    option(
        "--row", type=float, default=0.05, metavar="MS", help="simulate: of each further row (%(default)s)"
    )
    option("--unlike", action="store_true", help="simulate: write another file than the given one")
    option(
        "--draft-step", type=float, default=5.0, metavar="MS", help="simulate: draft step time (%(default)s)"
    )
    option("--mean", type=float, default=0.7, help="simulate: the draft's acceptance (%(default)s)")
    option("--max-nodes", type=int, default=16, metavar="N", help="simulate: nodes of a step (%(default)s)")
    options = parser.parse_args(arguments)
    if options.how == "simulate":
        report = simulate_all(options)
    else:
        with tempfile.TemporaryDirectory(prefix="forerun-rewriting-") as folder:
            report = asyncio.run(serve_all(options, Path(folder)))
    finish(options, report, [json.dumps(report, indent=1)])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
