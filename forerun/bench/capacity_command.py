"""`forerun bench capacity`: tokens per second and latencies over the number of sessions."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import demo_models
from common.errors import UserError
from common.sampling import SamplingParams
from forerun.bench import capacity
from forerun.bench.capacity import Plan
from forerun.bench.formula import FORMULA
from forerun.bench.job import Drafts
from forerun.bench.reporting import (
    SCHEMA,
    Machine,
    add_report,
    add_target,
    check_out,
    drafts_option,
    finish,
    settings_of,
)
from forerun.bench.schemes import RIVALS
from forerun.bench.tokens import prompt_tokens
from forerun.options import ms
from forerun.paint import note
from forerun.progress import ProgressBar
from forerun.prompts import bundled, read_prompts
from forerun.rig import check_models
from simulator.canvas import check_drawing

DESCRIPTION = """\
Loads a verifier with N sessions at a time, and compares: plain streaming of the same
engine; Forerun with drafts from an oracle of a chosen acceptance, or as the real draft model speaks; one
session after the other; and transformers' own continuous batching and padded `generate` of the same model on
the same prompts. All take turns. Every text is held against what the target writes alone.

  forerun bench capacity --sessions 1 8 32 --drafts off oracle=0.6 oracle=0.8 recorded --plot capacity.png

Ends with 1 if more than --tolerance of Forerun's texts differ: rounding in float32 depends on who else is in
a step, so two tokens that are equally good to six digits may change places."""


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "capacity",
        help="tokens per second over the number of sessions",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_who(parser)
    _add_texts(parser)
    _add_load(parser)
    add_target(parser)
    _add_verifier(parser)
    add_report(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")
    parser.set_defaults(run=run)


def _add_who(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("who takes part").add_argument
    option(
        "--drafts",
        type=drafts_option,
        nargs="+",
        default=[Drafts.parse(text) for text in ("off", "oracle=0.6", "oracle=0.8", "recorded")],
        metavar="KIND",
        help="off, oracle=ACCEPTANCE, recorded, live (off oracle=0.6 oracle=0.8 recorded)",
    )
    option("--policy", default="adaptive", help="growth policy of Forerun (%(default)s)")
    option(
        "--draft",
        default=str(demo_models.DRAFT_GGUF),
        metavar="PATH",
        help="GGUF file of recorded and live drafts (%(default)s)",
    )
    option(
        "--draft-ms",
        type=ms,
        default=5.0 / 1e3,
        metavar="MS",
        help="what a draft step takes on a device; of oracle and recorded drafts, which cost no processor "
        "here (5)",
    )
    option(
        "--rivals",
        nargs="*",
        choices=tuple(RIVALS),
        default=list(RIVALS),
        help="ways of transformers that take part; none after a bare --rivals (all)",
    )
    option(
        "--rival-sessions",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of sessions at which they and the sequential run take part (all)",
    )
    option(
        "--sequential",
        type=int,
        default=32,
        metavar="N",
        help="texts one after the other, at most (%(default)s)",
    )


def _add_texts(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("the texts").add_argument
    option("--prompts", type=Path, metavar="FILE", help="a JSON list of texts, or JSON lines (bundled)")
    option("--max-tokens", type=int, default=64, metavar="N", help="of each text (%(default)s)")
    option("--rounds", type=int, default=2, metavar="N", help="texts of each session (%(default)s)")
    option("--texts", type=int, default=8, metavar="N", help="at each point, at least (%(default)s)")
    option("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (%(default)s)")
    option("--seed", type=int, default=1, help="of sampling, oracles and arrivals (%(default)s)")
    option(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of Forerun's texts that may differ from the target's alone (%(default)s)",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("the load").add_argument
    option("--sessions", type=int, nargs="+", default=[1, 8, 32], metavar="N", help="at a time (1 8 32)")
    option("--repeats", type=int, default=3, metavar="N", help="of which the median counts (%(default)s)")
    option(
        "--rate",
        type=float,
        nargs="+",
        default=[],
        metavar="R",
        help="open loops: so many sessions begin per second, whoever else is served; the verifier takes the "
        "largest of --sessions at a time and refuses others",
    )
    option("--arrivals", type=Path, metavar="CSV", help="an open loop as it was recorded: a column time_s")


def _add_verifier(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--step-floor", type=float, default=0.0, metavar="MS", help="least time of a target step")
    option(
        "--recall",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let the verifier guess what texts repeat of themselves, also beside `off` (%(default)s)",
    )
    option(
        "--prefix-cache",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let the verifier keep prompts; every scheme after the first then finds them read (%(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    plan = plan_of(options)
    check_out(options)
    if options.plot is not None:
        check_drawing()
    if plan.target == str(demo_models.TARGET_DIR):
        check_models(Path(plan.target), Path(plan.draft))
    machine = Machine()
    texts = read_prompts(options.prompts) if options.prompts else bundled()
    with ProgressBar(sys.stderr) as bar:

        def progress(done: int, total: int, text: str) -> None:
            bar.show(done, total, text)
            bar.note(f"{done} of {total} runs: {text}")

        measured = asyncio.run(capacity.measure(plan, prompt_tokens(plan.target, texts), note, progress))
    report = {
        "schema": SCHEMA,
        "benchmark": "capacity",
        "settings": settings_of(options),
        "machine": machine.told(),
        **measured,
        "texts": text_counts(measured["points"]),
    }
    finish(options, report, table(report))
    if options.plot is not None:
        from forerun.bench.plots import plot_capacity

        plot_capacity(report, options.plot)
    texts_told = report["texts"]
    return 0 if texts_told["different_share"] <= options.tolerance and not texts_told["failed"] else 1


def plan_of(options: argparse.Namespace) -> Plan:
    """Checked. Raises `UserError`."""
    if not 0.0 <= options.tolerance <= 1.0:
        raise UserError(f"--tolerance is {options.tolerance}; a share in [0, 1] was expected")
    sampling = SamplingParams(
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        seed=options.seed,
        ignore_eos=True,
    )
    return Plan(
        target=options.target,
        draft=options.draft,
        sessions=tuple(sorted(set(options.sessions))),
        drafts=tuple(dict.fromkeys(options.drafts)),
        rivals=() if options.target == FORMULA else tuple(options.rivals),
        rival_sessions=tuple(options.rival_sessions or options.sessions),
        policy=options.policy,
        sampling=sampling,
        repeats=options.repeats,
        rounds=options.rounds,
        least_texts=options.texts,
        sequential=options.sequential,
        draft_time=options.draft_ms,
        rates=tuple(options.rate),
        arrivals=options.arrivals,
        seed=options.seed,
        step_floor_ms=options.step_floor,
        client_processes=options.client_processes,
        threads=options.threads,
        device=options.device,
        pin=options.pin,
        recall=options.recall,
        prefix_cache=options.prefix_cache,
        verifier=options.verifier,
    )


def text_counts(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all Forerun's texts, how many were compared with what the target writes alone, and how many
    differ."""
    own = [
        figures
        for point in points
        for name, figures in point["schemes"].items()
        if name not in RIVALS.values()
    ]
    compared = sum(figures["texts_compared"] for figures in own)
    different = sum(figures["texts_different"] for figures in own)
    return {
        "compared": compared,
        "different": different,
        "different_share": different / compared if compared else 1.0,
        "failed": sum(figures["failed"] for figures in own),
    }


# A table ----------------------------------------------------------------------------------------------------

COLUMNS = (
    ("tokens/s", "tokens_per_second", 1),
    ("ms/token", "ms_per_token", 1),
    ("p95", "ms_per_token_p95", 1),
    ("ttft p50", "ttft_ms_p50", 0),
    ("p95", "ttft_ms_p95", 0),
    ("steps/token", "target_steps_per_token", 3),
    ("rows/token", "evaluated_nodes_per_token", 2),
    ("step ms", "step_ms", 1),
    ("outside", "gap_share", 3),
    ("clients", "client_cpu", 2),
)
"""Heading, figure, digits."""


def table(report: dict[str, Any]) -> list[str]:
    """For people: a block a point, a line a scheme."""
    lines = []
    for point in report["points"]:
        at = ", ".join(f"{name.replace('_', ' ')} {point[name]}" for name in POINT_NAMES if name in point)
        ratios = [name for name in RATIOS if name in point]
        heads = "".join(f"{head:>12}" for head, _, _ in COLUMNS) + "".join(f"{RATIOS[r]:>14}" for r in ratios)
        lines += ["", f"{at:26}{heads}   texts"]
        for name, figures in point["schemes"].items():
            cells = "".join(_cell(figures.get(key), digits) for _, key, digits in COLUMNS)
            cells += "".join(f"  {_cell(point[ratio].get(name), 2)}" for ratio in ratios)
            lines.append(f"{name:26}{cells}   {_texts(figures)}")
    texts = report["texts"]
    return [
        *lines,
        "",
        f"{texts['compared']} texts were held against what the target writes alone; "
        f"{texts['different']} differ.",
    ]


POINT_NAMES = ("sessions", "sessions_per_second", "arrivals")
RATIOS = {
    "times_sequential": "x sequential",
    "times_streaming": "x streaming",
    "times_transformers_continuous": "x continuous",
}


def _cell(value: float | None, digits: int) -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}':>12}"


def _texts(figures: dict[str, Any]) -> str:
    words = f"{figures['texts']:g} written"
    for key, word in (("texts_different", "differ"), ("refused", "refused"), ("failed", "failed")):
        words += f", {figures[key]:g} {word}" if figures.get(key) else ""
    return words
