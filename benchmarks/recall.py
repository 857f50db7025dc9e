"""What drafts without a model are worth: on the verifier, on the device, on both, and with no draft model.

    python -m benchmarks.recall --json > recall.json

Two rigs run side by side, the one's verifier guesses and the other's does not; every text is written in all
ways one after the other. A temperature of 0 lets the small bundled target repeat itself, as greedy decoding
of small models does; at 0.8 its texts hardly do, and guesses can only cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import demo_models
from common.figures import Figures, as_json, figures
from common.sampling import SamplingParams
from forerun.options import bundled_texts
from forerun.rig import Rig, RigSettings


class Way(NamedTuple):
    """How a text is written: who guesses, and whether the device drafts."""

    verifier: bool
    device: bool
    policy: str
    drafting: bool = True


WAYS = {
    "server streaming": Way(False, False, "off"),
    "server streaming, verifier guesses": Way(True, False, "off"),
    "no draft model, device guesses": Way(False, True, "adaptive", drafting=False),
    "forerun": Way(False, False, "adaptive"),
    "forerun, device guesses": Way(False, True, "adaptive"),
    "forerun, verifier guesses": Way(True, False, "adaptive"),
    "forerun, both guess": Way(True, True, "adaptive"),
}
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
    option = parser.add_argument
    option("--rtt", type=float, default=60.0, metavar="MS")
    option("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option("--step-floor", type=float, default=30.0, metavar="MS", help="of a target step (%(default)s)")
    option("--num-prompts", type=int, default=8, metavar="N", help="bundled prompts (%(default)s)")
    option("--max-tokens", type=int, default=96, metavar="N", help="of each text (%(default)s)")
    option("--seeds", type=int, nargs="+", default=[1], metavar="N", help="each prompt once for each")
    option("--json", action="store_true", help="print one JSON object")
    return parser


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All temperatures, one after the other."""
    target, draft = str(demo_models.TARGET_DIR), str(demo_models.DRAFT_GGUF)
    settings = RigSettings(target, draft, rtt_ms=options.rtt, step_floor_ms=options.step_floor)
    results = []
    async with Rig(settings) as plain, Rig(RigSettings(**{**asdict(settings), "recall": True})) as guessing:
        for rig in (plain, guessing):  # connections and caches are warm then
            await rig.complete(bundled_texts()[0], "adaptive", asdict(SamplingParams(max_tokens=8)))
        for temperature in options.temperature:
            runs = await _runs((plain, guessing), options, temperature)
            references = [run["tokens"] for run in runs["server streaming"]]
            found = {name: figures(each, references) for name, each in runs.items()}
            results.append({"temperature": temperature, "ways": found})
    shown = {key: value for key, value in vars(options).items() if key != "json"}
    return {"settings": shown, "results": results}


async def _runs(
    rigs: Sequence[Rig], options: argparse.Namespace, temperature: float
) -> dict[str, list[dict[str, Any]]]:
    """The `done` events by way. The edges remember no text for another: it would be the same one."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for prompt in bundled_texts()[: options.num_prompts]:
        for seed in options.seeds:
            params = SamplingParams(temperature, max_tokens=options.max_tokens, seed=seed, ignore_eos=True)
            for name, way in WAYS.items():
                print(f"… temperature {temperature:g}, {name}", file=sys.stderr, flush=True)
                switches = {"recall": way.device, "drafting": way.drafting}
                rig = rigs[way.verifier]
                runs[name].append(await rig.complete(prompt, way.policy, asdict(params), **switches))
    return runs


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """One line a way, for people."""
    for result in results:
        print(f"\ntemperature {result['temperature']:g}")
        print(f"{'':36}" + "".join(f"{key.removesuffix('_per_token'):>20}" for key in SHOWN))
        for name, found in result["ways"].items():
            print(f"{name:36}" + "".join(f"{_cell(found, key):>20}" for key in SHOWN))


def _cell(found: Figures, key: str) -> str:
    value = getattr(found, key)
    return ("yes" if value else "NO") if isinstance(value, bool) else f"{value:.2f}"


def main() -> int:
    options = make_parser().parse_args()
    report = asyncio.run(measure(options))
    if options.json:
        for result in report["results"]:
            result["ways"] = {name: as_json(found) for name, found in result["ways"].items()}
        print(json.dumps(report, indent=2))
    else:
        print_table(report["results"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
