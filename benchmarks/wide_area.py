"""Forerun beside server streaming and the best synchronous block, over links of several lengths.

    python -m benchmarks.wide_area --json > wide_area.json

One rig (verifier, link, edge) serves all settings, so they share models and machine; the link's round
trip is changed between them. After each comparison one more text is written while the link is cut in its
middle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

import demo_models
from common.figures import as_json
from common.sampling import SamplingParams
from forerun.options import bundled_texts
from forerun.rig import Rig, RigSettings
from forerun.schemes import BLOCKS, FORERUN, SERVER_STREAMING, SYNC_BEST, Comparison, compare


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wide_area", description=__doc__.splitlines()[0]
    )
    option = parser.add_argument
    option("--rtt", type=float, nargs="+", default=[0, 20, 60, 100, 200], metavar="MS")
    option("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option(
        "--step-floor",
        type=float,
        default=30.0,
        metavar="MS",
        help="least time of a target step (%(default)s)",
    )
    option("--num-prompts", type=int, default=8, metavar="N", help="bundled prompts (%(default)s)")
    option("--first-prompt", type=int, default=0, metavar="I", help="leave out the I before it (%(default)s)")
    option(
        "--blocks", type=int, nargs="+", default=list(BLOCKS), metavar="K", help="lengths searched for sync"
    )
    option("--max-tokens", type=int, default=96, metavar="N", help="of each text (%(default)s)")
    option("--policy", default="adaptive", help="growth policy of the forerun scheme (%(default)s)")
    option("--seed", type=int, default=1)
    option("--target", default=str(demo_models.TARGET_DIR), metavar="PATH")
    option("--draft", default=str(demo_models.DRAFT_GGUF), metavar="PATH")
    option("--json", action="store_true", help="print one JSON object")
    return parser


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All settings, one after the other on one rig."""
    last = options.first_prompt + options.num_prompts
    prompts = bundled_texts()[options.first_prompt : last]
    settings = RigSettings(options.target, options.draft, step_floor_ms=options.step_floor)
    results = []
    async with Rig(settings) as rig:
        for rtt_ms in options.rtt:
            rig.link.rtt(rtt_ms)
            for temperature in options.temperature:
                result = await _setting(rig, options, prompts, rtt_ms, temperature)
                results.append(result)
    shown = {key: value for key, value in vars(options).items() if key not in ("json", "target", "draft")}
    return {"settings": shown, "results": results}


async def _setting(
    rig: Rig, options: argparse.Namespace, prompts: list[str], rtt_ms: float, temperature: float
) -> dict[str, Any]:
    params = SamplingParams(
        temperature=temperature, max_tokens=options.max_tokens, seed=options.seed, ignore_eos=True
    )
    sampling = asdict(params)

    def progress(text: str) -> None:
        print(f"… RTT {rtt_ms:g} ms, temperature {temperature:g}, {text}", file=sys.stderr, flush=True)

    comparison = await compare(rig, prompts, sampling, options.policy, options.blocks, progress)
    return {
        "rtt_ms": rtt_ms,
        "temperature": temperature,
        "sync_best_block": comparison.best_block,
        "speedup_over_server_streaming": round(comparison.speedup(SERVER_STREAMING), 3),
        "speedup_over_sync_best": round(comparison.speedup(SYNC_BEST), 3),
        "identical_after_cut": await _survives_a_cut(rig, prompts[0], options, sampling, comparison),
        "schemes": {name: as_json(found) for name, found in comparison.schemes.items()},
        "sync_search_ms_per_token": {str(k): round(v, 3) for k, v in comparison.blocks.items()},
    }


async def _survives_a_cut(
    rig: Rig, prompt: str, options: argparse.Namespace, sampling: dict[str, Any], comparison: Comparison
) -> bool:
    """Whether a text whose link is reset in its middle is the same text, by a session that did resume."""
    pieces, cut, event = 0, False, dict[str, Any]()
    async for event in rig.events(prompt, options.policy, sampling):
        pieces += event["event"] == "text"
        if pieces >= options.max_tokens // 2 and not cut:
            rig.link.cut()
            cut = True
    reference = comparison.runs[SERVER_STREAMING][0]["tokens"]
    return bool(event["tokens"] == reference and event["stats"]["resumes"] >= 1)


def print_table(report: dict[str, Any]) -> None:
    """One line a setting, for people."""
    print("RTT ms   T    streaming  best sync (k)    forerun   x streaming  x sync   identical  after a cut")
    for row in report["results"]:
        ms = {name: row["schemes"][name]["ms_per_token"] for name in row["schemes"]}
        identical = all(found["identical"] for found in row["schemes"].values())
        sync = f"{ms[SYNC_BEST]:.1f} ({row['sync_best_block']})"
        print(
            f"{row['rtt_ms']:6g} {row['temperature']:4g} {ms[SERVER_STREAMING]:10.1f} {sync:>14}"
            f" {ms[FORERUN]:10.1f}"
            f" {row['speedup_over_server_streaming']:11.2f} {row['speedup_over_sync_best']:8.2f}"
            f" {identical!s:>10} {row['identical_after_cut']!s:>11}"
        )


def main() -> int:
    options = make_parser().parse_args()
    report = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print_table(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
