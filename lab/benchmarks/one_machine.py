"""Measures Forerun on one machine, without a network, beside the usual alternatives.

    python -m lab.benchmarks.one_machine --json > one_machine.json

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
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from forerun.rig import Rig, RigSettings, check_models
from forerun.terminal import note
from lab.bench.report import Machine, finish, settings_of, table
from lab.benchmarks.reports import add_prompts, carry_out, parser_of, prompts_from
from lab.benchmarks.rivals import (
    Generate,
    LookupDecoding,
    MachineJob,
    MachineSetting,
    Written,
    load_llama,
    load_transformers,
    tokenize,
)
from lab.demo_models import DRAFT_GGUF, TARGET_DIR
from simulator.figures import as_json, figures, pace, rounded

BASELINE = "transformers"
SERVER_STREAMING, FORERUN = "forerun_without_draft", "forerun"
ALONE = {"llama": "llama_cpp", "forerun": SERVER_STREAMING}

SHOWN = (
    "lookahead", "ms_per_token", "times_the_baseline", "ttft_ms", "target_steps_per_token",
    "acceptance_length", "texts_identical", "texts_compared",
)  # fmt: skip

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contestant:
    """Holds one way to write a text. `write` gives a record with the keys of a rig's `done` event."""

    name: str
    variant: str  # its draft length, if one is tried
    write: Callable[[MachineJob], Awaitable[Run]]


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("one_machine", __doc__)
    option = parser.add_argument
    option("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option("--step-floor", type=float, default=30.0, metavar="MS", help="target step floor (%(default)s)")
    add_prompts(parser, 4)
    option("--max-tokens", type=int, default=64, metavar="N", help="tokens of each text (%(default)s)")
    option(
        "--lookahead",
        nargs="+",
        default=["4", "8", "12", "20@0.4"],
        metavar="K[@P]",
        help="draft lengths; @0.4 stops below that confidence (4 8 12 20@0.4, transformers' own)",
    )
    option("--policy", default="adaptive", help="growth policy of Forerun (%(default)s)")
    option("--threads", type=int, default=1, metavar="N", help="threads of a rival's step (%(default)s)")
    option("--seed", type=int, default=1)
    parser.set_defaults(run=_run)
    return parser


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all temperatures, one after the other, on one rig and one set of loaded models."""
    texts = prompts_from(options)
    settings = RigSettings(str(TARGET_DIR), str(DRAFT_GGUF), rtt_ms=0.0, step_floor_ms=options.step_floor)
    machine = Machine()
    with ThreadPoolExecutor(1, "rivals") as thread, ExitStack() as stack:
        loop = asyncio.get_running_loop()
        jobs, rivals = await loop.run_in_executor(thread, load, options, texts, stack)
        async with Rig(settings) as rig:
            field = [*(_rival(thread, one) for one in rivals), *_forerun(rig, options.policy)]
            results = [await contest(field, jobs, each) for each in options.temperature]
    settled = {**settings_of(options), "prompts": len(texts)}
    return {"settings": settled, "machine": machine.told(), "results": results}


def load(
    options: argparse.Namespace, texts: Sequence[str], stack: ExitStack
) -> tuple[list[MachineJob], list[Generate | Written]]:
    """Load the greedy jobs and the rivals. Raises `UserError` for missing parts."""
    how = (options.max_tokens, 0.0, options.seed)
    jobs = [MachineJob(text, ids, *how) for text, ids in zip(texts, tokenize(texts), strict=True)]
    setting = MachineSetting(
        lookaheads=tuple(options.lookahead),
        floor_s=options.step_floor / 1e3,
        threads=options.threads,
        num_positions=room(jobs, options.lookahead),
    )
    return jobs, [*load_transformers(setting), *load_llama(setting, stack)]


def room(jobs: Sequence[MachineJob], lookaheads: Sequence[LookupDecoding]) -> int:
    """Return the positions of the longest text and a draft beyond it."""
    longest = max(len(job.token_ids) + job.max_tokens for job in jobs)
    return longest + max(one.num_tokens for one in lookaheads)


def _rival(thread: ThreadPoolExecutor, rival: Generate | Written) -> Contestant:
    """In a thread of its own, so that the link of the rig stays alive."""

    async def write(job: MachineJob) -> Run:
        return await asyncio.get_running_loop().run_in_executor(thread, rival.write, job)

    return Contestant(rival.name, rival.variant, write)


def _forerun(rig: Rig, policy: str) -> list[Contestant]:
    async def write(policy: str, job: MachineJob) -> Run:
        params = SamplingParams(
            temperature=job.temperature, max_tokens=job.max_tokens, seed=job.seed, ignore_eos=True
        )
        return await rig.complete(job.text, policy, asdict(params))

    choices = {SERVER_STREAMING: "off", FORERUN: policy}
    return [Contestant(name, "", partial(write, choice)) for name, choice in choices.items()]


# The contest ------------------------------------------------------------------------------------------------


async def contest(
    field: Sequence[Contestant], jobs: Sequence[MachineJob], temperature: float
) -> dict[str, Any]:
    """Let every contestant write every text at this temperature, in turns, so all see the same machine."""
    runs: dict[str, dict[str, list[Run]]] = {}
    for contestant in field:
        await contestant.write(replace(jobs[0], max_tokens=8))  # caches are warm now
    for number, job in enumerate(jobs, 1):
        for contestant in field:
            note(f"temperature {temperature:g}, prompt {number} of {len(jobs)}: {contestant.name}")
            run = await contestant.write(replace(job, temperature=temperature))
            runs.setdefault(contestant.name, {}).setdefault(contestant.variant, []).append(run)
    return {"temperature": temperature, "contestants": standings(runs, temperature)}


def standings(runs: dict[str, dict[str, list[Run]]], temperature: float) -> dict[str, dict[str, Any]]:
    """Return figures of each contestant's fastest variant; `runs` by name and variant, in text order."""
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
            "tried": {
                key: own_figures(each, "ms_per_token", "target_steps_per_token")
                for key, each in variants.items()
                if key
            },
        }
    return found


def own_figures(runs: Sequence[Run], *names: str) -> dict[str, Any]:
    """Return the shared keys, or those named, without a link's; `agreement` reports whether texts agree."""
    found = as_json(figures(runs, [run["tokens"] for run in runs]))
    hidden = ("identical", "bytes_up_per_token", "bytes_down_per_token")
    return {key: value for key, value in found.items() if key in names or not (names or key in hidden)}


def agreement(runs: dict[str, dict[str, list[Run]]], name: str, temperature: float) -> dict[str, Any]:
    """Count its texts, over all variants, that equal those of its `reference_of`."""
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
    """Name the contestant that must write the same text, if there is one.

    Greedy text is everyone's. Sampled text is each library's own: llama.cpp and Forerun promise the same text
    for a seed with and without drafts, assisted generation the same distribution only.
    """
    family = name.split("_", maxsplit=1)[0]
    reference = BASELINE if temperature == 0.0 else ALONE.get(family)
    return None if reference == name else reference


# The command ------------------------------------------------------------------------------------------------


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    """Format a table for each temperature, a line per contestant."""
    for result in report["results"]:
        yield f"temperature {result['temperature']:g}, step floor {report['settings']['step_floor']:g} ms"
        rows = [{"": name, **row} for name, row in result["contestants"].items()]
        yield from table(rows, ("", *SHOWN))


def _run(options: argparse.Namespace) -> None:
    check(options)
    report = asyncio.run(measure(options))
    finish(options, report, list(lines_of(report)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    return carry_out("one_machine", make_parser().parse_args(arguments))


def check(options: argparse.Namespace) -> None:
    """Check options before loading takes seconds; read the draft lengths. Raises `UserError`."""
    options.lookahead = [LookupDecoding.parse(each) for each in options.lookahead]
    make_policy(options.policy)
    for temperature in options.temperature:
        SamplingParams(temperature=temperature, max_tokens=options.max_tokens, seed=options.seed)
    if options.max_tokens < 2:
        raise UserError(f"--max-tokens is {options.max_tokens}; a pace needs 2 tokens at least")
    if not 0.0 <= options.step_floor < 60_000.0:
        raise UserError(f"--step-floor is {options.step_floor}; it must lie in [0, 60000)")
    if not 1 <= options.threads <= 512:
        raise UserError(f"--threads is {options.threads}; it must lie in [1, 512]")
    check_models(TARGET_DIR, DRAFT_GGUF)


if __name__ == "__main__":
    sys.exit(main())
