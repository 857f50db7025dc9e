"""Forerun on one machine, without a network, beside what one would run there instead.

    python -m benchmarks.one_machine --json > one_machine.json

The same target and the same prompts by transformers alone (the baseline), its assisted generation and prompt
lookup; by llama.cpp alone, with prompt lookup and with a draft model (llama-cpp-python); and by Forerun,
verifier and edge as two processes over the loopback interface. All take turns, prompt by prompt. A rival that
drafts runs with each --lookahead, and its fastest counts.

A step of a model uses --threads threads in the rivals, which run draft and target in turns in one process.
Forerun runs them at the same time, one thread and one core each; with --threads 2 the rivals have two, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import demo_models
from benchmarks.rivals import Job, Lookahead, Rival, Setting
from common.errors import ForerunError, UserError
from common.figures import as_json, figures, pace, rounded
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from forerun.prompts import add_prompts, prompts_from
from forerun.rig import Rig, RigSettings

BASELINE = "transformers"
SERVER_STREAMING, FORERUN = "forerun_without_draft", "forerun"
ALONE = {"llama": "llama_cpp", "forerun": SERVER_STREAMING}

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to write a text. `write` gives a record with the keys of a rig's `done` event."""

    name: str
    variant: str  # its draft length, if one is tried
    write: Callable[[Job], Awaitable[Run]]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.one_machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option(
        "--step-floor",
        type=float,
        default=30.0,
        metavar="MS",
        help="least time of a target step (%(default)s)",
    )
    add_prompts(parser, 4)
    option("--max-tokens", type=int, default=64, metavar="N", help="of each text (%(default)s)")
    option(
        "--lookahead",
        type=Lookahead.parse,
        nargs="+",
        default=[Lookahead(4), Lookahead(8), Lookahead(12), Lookahead(20, 0.4)],
        metavar="K[@P]",
        help="draft lengths tried, @0.4: stop below that confidence (4 8 12 20@0.4, transformers' own)",
    )
    option("--policy", default="adaptive", help="growth policy of Forerun (%(default)s)")
    option(
        "--threads", type=int, default=1, metavar="N", help="of a model's step in the rivals (%(default)s)"
    )
    option("--seed", type=int, default=1)
    option("--target", default=str(demo_models.TARGET_DIR), metavar="PATH", help="Hugging Face folder")
    option("--draft", default=str(demo_models.DRAFT_GGUF), metavar="PATH", help="GGUF")
    option(
        "--target-gguf", default="", metavar="PATH", help="the target for llama.cpp, if not the bundled one"
    )
    option(
        "--draft-folder",
        default="",
        metavar="PATH",
        help="the draft for transformers, if not the bundled one",
    )
    option("--json", action="store_true", help="print one JSON object")
    return parser


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All temperatures, one after the other, on one rig and one set of loaded models."""
    texts = prompts_from(options)
    settings = RigSettings(options.target, options.draft, rtt_ms=0.0, step_floor_ms=options.step_floor)
    machine = Machine()
    with ThreadPoolExecutor(1, "rivals") as thread, ExitStack() as stack:
        loop = asyncio.get_running_loop()
        jobs, rivals = await loop.run_in_executor(thread, load, options, texts, stack)
        async with Rig(settings) as rig:
            field = [*(_rival(thread, one) for one in rivals), *_forerun(rig, options.policy)]
            results = [await contest(field, jobs, each) for each in options.temperature]
    hidden = ("json", "target", "draft", "target_gguf", "draft_folder", "prompts", "lookahead")
    shown = {key: value for key, value in vars(options).items() if key not in hidden}
    tried = [str(each) for each in options.lookahead]
    settled = {**shown, "prompts": len(texts), "lookahead": tried}
    return {"settings": settled, "machine": machine.told(), "results": results}


class Machine:
    """What the figures depend on beyond the settings. Other work on the machine shows in the load."""

    def __init__(self) -> None:
        self._load_before = _load_average()

    def told(self) -> dict[str, Any]:
        """JSON, with the load averages of the minute before the run and of its last minute."""
        return {
            "processors": os.cpu_count(),
            "load_average": [self._load_before, _load_average()],
            **{name: version(name) for name in ("torch", "transformers", "llama-cpp-python")},
        }


def _load_average() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None  # Windows has none


def load(
    options: argparse.Namespace, texts: Sequence[str], stack: ExitStack
) -> tuple[list[Job], list[Rival]]:
    """What to write, greedily for now, and who writes it. Raises `UserError` for what is missing."""
    try:
        return _load(options, texts, stack)
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed; `make setup` installs all that this needs"
        ) from error


def _load(
    options: argparse.Namespace, texts: Sequence[str], stack: ExitStack
) -> tuple[list[Job], list[Rival]]:
    from benchmarks import rivals_llama, rivals_transformers

    prompts = rivals_transformers.tokenize(options.target, texts)
    how = (options.max_tokens, 0.0, options.seed)
    jobs = [Job(text, ids, *how) for text, ids in zip(texts, prompts, strict=True)]
    setting = Setting(
        target=options.target,
        draft=options.draft,
        target_gguf=options.target_gguf,
        draft_folder=options.draft_folder,
        lookaheads=tuple(options.lookahead),
        floor_s=options.step_floor / 1e3,
        threads=options.threads,
        num_positions=room(jobs, options.lookahead),
    )
    return jobs, [*rivals_transformers.load_rivals(setting), *rivals_llama.load_rivals(setting, stack)]


def room(jobs: Sequence[Job], lookaheads: Sequence[Lookahead]) -> int:
    """Positions that the longest text and a draft beyond it take."""
    return max(len(job.token_ids) + job.max_tokens for job in jobs) + max(
        one.num_tokens for one in lookaheads
    )


def _rival(thread: ThreadPoolExecutor, rival: Rival) -> Contestant:
    """In a thread of its own, so that the link of the rig stays alive."""

    async def write(job: Job) -> Run:
        return await asyncio.get_running_loop().run_in_executor(thread, rival.write, job)

    return Contestant(rival.name, rival.variant, write)


def _forerun(rig: Rig, policy: str) -> list[Contestant]:
    async def write(policy: str, job: Job) -> Run:
        params = SamplingParams(
            temperature=job.temperature, max_tokens=job.max_tokens, seed=job.seed, ignore_eos=True
        )
        return await rig.complete(job.text, policy, asdict(params))

    choices = {SERVER_STREAMING: "off", FORERUN: policy}
    return [Contestant(name, "", partial(write, choice)) for name, choice in choices.items()]


# The contest ------------------------------------------------------------------------------------------------


async def contest(field: Sequence[Contestant], jobs: Sequence[Job], temperature: float) -> dict[str, Any]:
    """Everyone writes every text at this temperature, in turns, so that all see the same machine."""
    runs: dict[str, dict[str, list[Run]]] = {}
    for contestant in field:
        await contestant.write(replace(jobs[0], max_tokens=8))  # caches are warm now
    for number, job in enumerate(jobs, 1):
        for contestant in field:
            _note(f"temperature {temperature:g}, prompt {number} of {len(jobs)}: {contestant.name}")
            run = await contestant.write(replace(job, temperature=temperature))
            runs.setdefault(contestant.name, {}).setdefault(contestant.variant, []).append(run)
    return {"temperature": temperature, "contestants": standings(runs, temperature)}


def _note(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def standings(runs: dict[str, dict[str, list[Run]]], temperature: float) -> dict[str, dict[str, Any]]:
    """Figures of each contestant's fastest variant; `runs` by name and variant, in the order of the texts."""
    best = {name: min(found, key=lambda variant: pace(found[variant])) for name, found in runs.items()}
    baseline = pace(runs[BASELINE][""])
    found: dict[str, dict[str, Any]] = {}
    for name, variants in runs.items():
        chosen = variants[best[name]]
        found[name] = {
            "lookahead": best[name] or None,
            "times_the_baseline": rounded(baseline / pace(chosen)),
            **own_figures(chosen),
            **agreement(runs, name, temperature),
            "tried": {key: brief_figures(each) for key, each in variants.items() if key},
        }
    return found


def own_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """The shared keys, without a link's; whether texts agree is told by `agreement`."""
    found = as_json(figures(runs, [run["tokens"] for run in runs]))
    return {key: value for key, value in found.items() if key != "identical" and not key.startswith("bytes")}


def brief_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """What tells one draft length from another. The steps depend on no clock."""
    return {key: own_figures(runs)[key] for key in ("ms_per_token", "target_steps_per_token")}


def agreement(runs: dict[str, dict[str, list[Run]]], name: str, temperature: float) -> dict[str, Any]:
    """How many of its texts, over all its variants, are those of who should write the same."""
    reference = reference_of(name, temperature)
    if reference is None:
        return {"reference": None, "identical": None}
    wanted = [run["tokens"] for run in runs[reference][""]]
    pairs = [
        (run["tokens"], text)
        for found in runs[name].values()
        for run, text in zip(found, wanted, strict=True)
    ]
    same = sum(tokens == text for tokens, text in pairs)
    return {
        "reference": reference,
        "identical": same == len(pairs),
        "texts_identical": same,
        "texts_compared": len(pairs),
    }


def reference_of(name: str, temperature: float) -> str | None:
    """Who must write the same text, if anyone.

    Greedy text is everyone's. Sampled text is each library's own: llama.cpp and Forerun promise the same text
    for a seed with and without drafts, assisted generation the same distribution only.
    """
    family = name.split("_", maxsplit=1)[0]
    reference = BASELINE if temperature == 0.0 else ALONE.get(family)
    return None if reference == name else reference


# Telling ----------------------------------------------------------------------------------------------------


def print_table(report: dict[str, Any]) -> None:
    """One line a contestant, for people."""
    for result in report["results"]:
        print(f"\ntemperature {result['temperature']:g}, step floor {report['settings']['step_floor']:g} ms")
        print(
            f"{'':28} draft length  ms/token  x baseline  ttft ms  steps/token  tokens/step  identical texts"
        )
        for name, row in result["contestants"].items():
            print(_line(name, row))


def _line(name: str, row: dict[str, Any]) -> str:
    same = f"{row['texts_identical']} of {row['texts_compared']}" if row["reference"] else "-"
    cells = (row["ms_per_token"], row["times_the_baseline"], row["ttft_ms"])
    steps = (row["target_steps_per_token"], row["acceptance_length"])
    return (
        f"{name:28} {row['lookahead'] or '-':>12} "
        + "{:9.2f} {:11.2f} {:8.1f}".format(*cells)
        + " {:12.3f} {:12.2f}".format(*steps)
        + f" {same:>16}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser()
    try:
        options = parser.parse_args(arguments)
        check(options)
        report = asyncio.run(measure(options))
    except ForerunError as error:
        parser.error(str(error))
    print(json.dumps(report, indent=2)) if options.json else print_table(report)
    return 0


def check(options: argparse.Namespace) -> None:
    """Before seconds are spent on loading. Raises `UserError`."""
    make_policy(options.policy)
    for temperature in options.temperature:
        SamplingParams(temperature=temperature, max_tokens=options.max_tokens, seed=options.seed)
    if options.max_tokens < 2:
        raise UserError(f"--max-tokens is {options.max_tokens}; a pace needs 2 tokens at least")
    if not 0.0 <= options.step_floor < 60_000.0:
        raise UserError(f"--step-floor is {options.step_floor}; it must lie in [0, 60000)")
    if not 1 <= options.threads <= 512:
        raise UserError(f"--threads is {options.threads}; it must lie in [1, 512]")
    for path in (options.target, options.draft):
        if not Path(path).exists():
            raise UserError(
                f"{path} does not exist; run from a clone, or name models with --target and --draft"
            )


if __name__ == "__main__":
    sys.exit(main())
