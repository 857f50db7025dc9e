"""`forerun simulate advise`: whether drafting pays, in words."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common.figures import as_json as figures_as_json
from forerun.options import add_workers
from forerun.paint import note
from simulator.advice import Advice, advise, in_words, map_lines
from simulator.drafts import BetaDraft, Draft, recorded_draft
from simulator.link import LinkSpec
from simulator.recordings import read_recording
from simulator.world import DeviceSpec, VerifierSpec, World

TOKENS = 200  # of each simulated text: advice should come in seconds


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "advise",
        help="whether drafting pays for your network and models",
        description="Tell in words which mode to use, where drafting stops to pay, and what it costs.",
    )
    option = parser.add_argument
    option("--rtt", type=float, required=True, metavar="MS", help="round trip to the server")
    option("--step", type=float, required=True, metavar="MS", help="a step of the target model")
    option("--draft", type=float, required=True, metavar="MS", help="a step of the draft model")
    option("--draft-per-node", type=float, default=0.3, metavar="MS", help="each further node (%(default)s)")
    draft = parser.add_mutually_exclusive_group(required=True)
    draft.add_argument("--acceptance", type=float, metavar="A", help="how often the draft's best is right")
    draft.add_argument(
        "--recording",
        type=Path,
        metavar="FILE",
        help="of `forerun record`: a real draft's candidates instead",
    )
    option("--repeats", type=int, default=3, metavar="N", help="seeds (%(default)s)")
    add_workers(parser)
    option("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    world = World(
        link=LinkSpec(rtt=options.rtt / 1e3),
        device=DeviceSpec(options.draft / 1e3, options.draft_per_node / 1e3),
        verifier=VerifierSpec(step_time=options.step / 1e3),
        draft=_draft(options),
        tokens=TOKENS,
    )
    advice = advise(world, options.repeats, options.workers, note)
    if options.json:
        print(json.dumps(_as_json(world, advice), indent=2))
        return 0
    if options.recording is not None:
        right = 100 * world.draft.mean
        print(f"The draft's best token is right {right:.0f} % of the time in {options.recording}.")
    print("\n".join(in_words(world, advice)))
    print("\nForerun against server streaming:")
    print("\n".join(map_lines(advice)))
    return 0


def _draft(options: argparse.Namespace) -> Draft:
    if options.recording is None:
        return BetaDraft(mean=options.acceptance)
    return recorded_draft(options.recording.name, read_recording(options.recording))


def _as_json(world: World, advice: Advice) -> dict[str, Any]:
    return {
        "acceptance": round(world.draft.mean, 4),
        "best": advice.best,
        "break_even_rtt_ms": None if advice.break_even_rtt is None else round(advice.break_even_rtt * 1e3, 1),
        "pays_at_any_rtt": advice.is_beyond,
        "speedup": {mode: round(advice.speedup(mode), 3) for mode in advice.figures},
        "schemes": {mode: figures_as_json(found) for mode, found in advice.figures.items()},
        "speedup_map_across": advice.across,
        "speedup_map": {
            f"{rtt * 1e3:g}": {f"{column:g}": round(found, 3) for column, found in row.items()}
            for rtt, row in advice.speedup_map.items()
        },
    }
