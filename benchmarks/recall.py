"""What drafts without a model are worth: on the verifier, on the device, on both, and with no draft model.

    forerun record --out demo.jsonl --ignore-eos --max-tokens 160
    python -m benchmarks.recall simulated demo.jsonl       # a real pair's texts in virtual time
    python -m benchmarks.recall simulated                  # a drawn text, where guesses can only cost
    python -m benchmarks.recall real                       # the whole system on this machine

`real` has several rigs side by side: one whose verifier guesses, one whose verifier does not, and one for
each device that remembers its earlier texts, which it must have written in its own way only. Every text is
written in all ways one after the other. Greedy, the small bundled target repeats itself a lot, as small
models do; at a temperature of 0.8 it hardly does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import demo_models
from common.figures import Figures, as_json, figures
from common.sampling import SamplingParams
from forerun.prompts import add_prompts, prompts_from
from forerun.rig import Rig, RigSettings
from simulator.drafts import BetaDraft, Draft, recorded_draft
from simulator.link import LinkSpec
from simulator.recordings import read_recording
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World


class Way(NamedTuple):
    """How a text is written: who guesses, and whether the device drafts."""

    verifier: bool
    device: bool
    policy: str
    drafting: bool = True
    remembers: bool = False  # the device has a table of its texts before, by this way


WAYS = {
    "server streaming": Way(False, False, "off"),
    "server streaming, verifier guesses": Way(True, False, "off"),
    "no draft model, device guesses": Way(False, True, "adaptive", drafting=False),
    "no draft model, device remembers": Way(False, True, "adaptive", drafting=False, remembers=True),
    "forerun": Way(False, False, "adaptive"),
    "forerun, device guesses": Way(False, True, "adaptive"),
    "forerun, device remembers": Way(False, True, "adaptive", remembers=True),
    "forerun, verifier guesses": Way(True, False, "adaptive"),
    "forerun, both guess": Way(True, True, "adaptive"),
}
REMEMBERED = 65_536  # entries of a table, as `forerun edge` has by default
SHOWN = (
    "ms_per_token",
    "target_steps_per_token",
    "evaluated_nodes_per_token",
    "draft_tokens_per_token",
    "draft_evaluations_per_token",
    "identical",
)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    simulated = kinds.add_parser("simulated", help="in virtual time")
    simulated.add_argument("recording", nargs="?", type=Path, help="by forerun record; else a drawn text")
    simulated.add_argument("--seeds", type=int, default=8, metavar="N", help="texts, drawn or recorded (8)")
    simulated.add_argument("--row", type=float, default=0.05, metavar="MS", help="a further row (0.05)")
    real = kinds.add_parser("real", help="on this machine")
    option = real.add_argument
    option("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    add_prompts(real, 8)
    option("--max-tokens", type=int, default=96, metavar="N", help="of each text (%(default)s)")
    option("--seeds", type=int, nargs="+", default=[1], metavar="N", help="each prompt once for each")
    for each in (simulated, real):
        each.add_argument("--rtt", type=float, default=60.0, metavar="MS")
        each.add_argument(
            "--step", type=float, default=30.0, metavar="MS", help="a target step, or its floor"
        )
        each.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def simulate(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every way with a draft model, and server streaming; as the product's limits are."""
    draft: Draft = BetaDraft(0.8)
    tokens, name = 600, "drawn"
    if options.recording is not None:
        recording = read_recording(options.recording)
        draft, name = recorded_draft(options.recording.name, recording), options.recording.name
        tokens = min(len(text.tokens) for text in recording.texts)
    found = {}
    for title, way in WAYS.items():
        if way.drafting and not way.remembers:
            worlds = (_world(options, way, draft, tokens, seed + 1) for seed in range(options.seeds))
            results = [run_scheme(way.policy, world)[0] for world in worlds]
            found[title] = figures([each.as_run() for each in results], [each.truth for each in results])
    return [{"texts": name, "ways": found}]


def _world(options: argparse.Namespace, way: Way, draft: Draft, tokens: int, seed: int) -> World:
    verifier = VerifierSpec(options.step / 1e3, options.row / 1e3, recall=way.verifier)
    device = DeviceSpec(recall=way.device)
    return World(
        LinkSpec(rtt=options.rtt / 1e3),
        device,
        verifier.with_product_limits(),
        draft,
        tokens=tokens,
        seed=seed,
    )


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """On this machine; all temperatures, one after the other."""
    prompts = prompts_from(options)
    results = []
    for temperature in options.temperature:
        runs = await _runs(options, prompts, temperature)
        references = [run["tokens"] for run in runs["server streaming"]]
        found = {name: figures(each, references) for name, each in runs.items()}
        results.append({"texts": f"temperature {temperature:g}", "ways": found})
    return results


async def _runs(
    options: argparse.Namespace, prompts: Sequence[str], temperature: float
) -> dict[str, list[dict[str, Any]]]:
    """The `done` events by way."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    async with AsyncExitStack() as stack:
        rigs = {place: await stack.enter_async_context(_rig(options, place)) for place in _places()}
        for rig in rigs.values():  # connections and caches are warm then
            await rig.complete(prompts[0], "adaptive", asdict(SamplingParams(max_tokens=8)))
        seeds = options.seeds if temperature else options.seeds[:1]  # greedy, all seeds give one text
        for number, prompt in enumerate(prompts, 1):
            for seed in seeds:
                params = SamplingParams(
                    temperature, max_tokens=options.max_tokens, seed=seed, ignore_eos=True
                )
                for name, way in WAYS.items():
                    where = f"temperature {temperature:g}, prompt {number} of {len(prompts)}"
                    print(f"… {where}, {name}", file=sys.stderr, flush=True)
                    switches = {"recall": way.device, "drafting": way.drafting}
                    rig = rigs[_place(way)]
                    runs[name].append(await rig.complete(prompt, way.policy, asdict(params), **switches))
    return runs


def _place(way: Way) -> tuple[bool, Way | None]:
    """Which rig writes so: one whose verifier guesses or not; what a device remembers is its way's alone."""
    return way.verifier, way if way.remembers else None


def _places() -> list[tuple[bool, Way | None]]:
    return list(dict.fromkeys(map(_place, WAYS.values())))


def _rig(options: argparse.Namespace, place: tuple[bool, Way | None]) -> Rig:
    verifier_guesses, remembering = place
    return Rig(
        RigSettings(
            str(demo_models.TARGET_DIR),
            str(demo_models.DRAFT_GGUF),
            rtt_ms=options.rtt,
            step_floor_ms=options.step,
            recall=verifier_guesses,
            ngrams=REMEMBERED if remembering else 0,
        )
    )


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """One line a way, for people."""
    for result in results:
        print(f"\n{result['texts']:36}" + "".join(f"{key.removesuffix('_per_token'):>20}" for key in SHOWN))
        for name, found in result["ways"].items():
            print(f"{name:36}" + "".join(f"{_cell(found, key):>20}" for key in SHOWN))


def _cell(found: Figures, key: str) -> str:
    value = getattr(found, key)
    return ("yes" if value else "NO") if isinstance(value, bool) else f"{value:.2f}"


def main() -> int:
    options = make_parser().parse_args()
    results = simulate(options) if options.kind == "simulated" else asyncio.run(measure(options))
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items() if key != "json"}
        for result in results:
            result["ways"] = {name: as_json(found) for name, found in result["ways"].items()}
        print(json.dumps({"settings": settings, "results": results}, indent=2))
    else:
        print_table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
