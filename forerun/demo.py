"""`forerun demo`: verifier and edge as two processes, a distant link between them, and what it is worth."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import demo_models
from common.errors import UserError
from common.figures import Figures, as_json
from edge_client.core.policies import make_policy
from forerun.options import add_sampling, sampling_from
from forerun.paint import Painter, note
from forerun.prompts import bundled, some_of
from forerun.rig import Rig, RigSettings, check_models
from forerun.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST, Comparison, compare

DESCRIPTION = """\
Starts a verifier with the bundled target model and an edge with the bundled draft model as two processes,
puts an emulated wide-area link between them, completes a few prompts and shows the text as it comes. Then the
same prompts run over the same link in three ways, and a table compares them:

  server streaming   the plain cloud service: the target alone, token by token
  best sync block    classic split speculation: draft k tokens, wait for the verdict; the best k is searched
  forerun            the draft runs ahead of the network

The bundled target is tiny, so every target step is made to take --step-floor ms, as a large one would."""

YES = ("y", "yes")

MAX_MS = 600_000.0
"""Ten minutes: more than any link or step that is worth a demonstration."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="try everything on this machine with the bundled models",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--rtt", type=float, default=60.0, metavar="MS", help="round trip of the link (%(default)s)")
    option("--jitter", type=float, default=0.0, metavar="MS", help="of the round trip (%(default)s)")
    option(
        "--bandwidth",
        type=float,
        default=0.0,
        metavar="KBPS",
        help="kilobytes a second each way; 0 = no limit",
    )
    option(
        "--step-floor",
        type=float,
        default=30.0,
        metavar="MS",
        help="least time of a target step (%(default)s)",
    )
    option(
        "--prompt", action="append", metavar="TEXT", help="complete this instead; may be given several times"
    )
    option("--num-prompts", type=int, default=3, metavar="N", help="bundled prompts to use (%(default)s)")
    option("--policy", default="adaptive", help="growth policy of the forerun scheme (%(default)s)")
    option("--target", default=str(demo_models.TARGET_DIR), metavar="PATH", help="another target model")
    option("--draft", default=str(demo_models.DRAFT_GGUF), metavar="PATH", help="another draft model (GGUF)")
    option("--json", action="store_true", help="print one JSON object instead of text and table")
    option(
        "--page",
        action="store_true",
        help="serve the page for a browser instead: texts, and the tree growing",
    )
    option("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="of --page (%(default)s)")
    option("--open", action="store_true", help="with --page: open it in the browser of this machine")
    add_sampling(parser, max_tokens=96)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    code = asyncio.run(_demo(options))
    if not (options.page or options.json) and _wants_page():
        options.open = True
        return asyncio.run(_page(options))
    return code


async def _demo(options: argparse.Namespace) -> int:
    check_models(Path(options.target), Path(options.draft))
    make_policy(options.policy)
    _check_options(options)
    sampling = {**asdict(sampling_from(options)), "logit_bias": [], "stop_token_ids": []}
    if options.page:
        return await _page(options)
    prompts = _prompts(options)
    note("loading the target model and the draft model, each in a process of its own")
    async with Rig(_settings(options)) as rig:
        if not options.json:
            await _show_texts(rig, prompts, options.policy, sampling)
        comparison = await compare(rig, prompts, sampling, options.policy, progress=note)
    if options.json:
        print(json.dumps(_as_json(options, prompts, comparison), indent=2))
    else:
        print_table(options, comparison)
    return 0


def _wants_page() -> bool:
    """Offer the page. Where nobody is there to answer, say how to get it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("\nTo see it in a browser, with a slider for the delay: make demo ARGS='--page'")
        return False
    try:
        return input("\nSee it live in a browser, with a slider for the delay? [y/N] ").lower() in YES
    except (EOFError, KeyboardInterrupt):
        print()
        return False


async def _page(options: argparse.Namespace) -> int:
    try:
        from forerun.demo_page import show_page
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[edge]'") from error
    await show_page(_settings(options), options.listen, "draft", options.open)
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """Before seconds are spent on loading."""
    for name in ("rtt", "jitter", "bandwidth", "step_floor"):
        value = getattr(options, name)
        if not 0 <= value <= MAX_MS:
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must lie in [0, {MAX_MS}]")
    if options.max_tokens < 2:
        raise UserError(f"--max-tokens is {options.max_tokens}; a pace needs 2 tokens at least")
    if options.prompt and not all(options.prompt):
        raise UserError("--prompt is empty; at least one token is needed")


def _settings(options: argparse.Namespace) -> RigSettings:
    return RigSettings(
        target=options.target,
        draft=options.draft,
        rtt_ms=options.rtt,
        jitter_ms=options.jitter,
        bandwidth_kbps=options.bandwidth,
        step_floor_ms=options.step_floor,
    )


def _prompts(options: argparse.Namespace) -> list[str]:
    if options.prompt:
        return list(options.prompt)
    return some_of(bundled(), options.num_prompts)


async def _show_texts(rig: Rig, prompts: Sequence[str], policy: str, sampling: dict[str, Any]) -> None:
    painter = Painter(sys.stdout)
    print(painter.legend)
    for number, prompt in enumerate(prompts, 1):
        print(f"\n{painter.bold(f'── prompt {number} of {len(prompts)} ──')}\n{painter.dim(prompt)}", end="")
        async for event in rig.events(prompt, policy, sampling):
            if event["event"] == "text":
                paint = painter.drafted if event["drafted"] else painter.server_made
                print(paint(event["text"]), end="", flush=True)
        print()


ROWS = (
    ("ms per token", "ms_per_token"),
    ("  p50 of 16-token windows", "ms_per_token_p50"),
    ("  p95 of 16-token windows", "ms_per_token_p95"),
    ("time to first token, ms", "ttft_ms"),
    ("target steps per token", "target_steps_per_token"),
    ("evaluated nodes per token", "evaluated_nodes_per_token"),
    ("draft tokens per token", "draft_tokens_per_token"),
    ("bytes up per token", "bytes_up_per_token"),
    ("bytes down per token", "bytes_down_per_token"),
    ("identical to the target alone", "identical"),
)


def print_table(options: argparse.Namespace, comparison: Comparison) -> None:
    """The comparison, for people."""
    painter = Painter(sys.stdout)
    titles = ("server streaming", f"best sync block (k={comparison.best_block})", "forerun")
    columns = [comparison.schemes[name] for name in (SERVER_STREAMING, SYNC_BEST, FORERUN)]
    print(f"\n{painter.bold(_headline(options))}")
    print(f"{'':32}" + "".join(f"{title:>24}" for title in titles))
    for label, key in ROWS:
        print(f"{label:32}" + "".join(f"{_cell(column, key):>24}" for column in columns))
    faster = painter.bold(f"{comparison.speedup(SERVER_STREAMING):.2f} times")
    print(
        f"\nForerun wrote the same text {faster} faster per token than server streaming and "
        f"{comparison.speedup(SYNC_BEST):.2f} times faster than the best synchronous block."
    )


def _headline(options: argparse.Namespace) -> str:
    floor = (
        f"each target step made to take at least {options.step_floor:g} ms"
        if options.step_floor
        else "no step floor"
    )
    kind = f"temperature {options.temperature:g}" if options.temperature else "greedy"
    return f"RTT {options.rtt:g} ms, jitter {options.jitter:g} ms, {kind}, {floor}"


def _cell(column: Figures, key: str) -> str:
    value = getattr(column, key)
    return ("yes" if value else "NO") if isinstance(value, bool) else f"{value:.2f}"


def _as_json(options: argparse.Namespace, prompts: Sequence[str], comparison: Comparison) -> dict[str, Any]:
    settings = {
        key: value for key, value in vars(options).items() if key not in ("run", "command", "prompt", "json")
    }
    return {
        "settings": {**settings, "prompts": len(prompts), "sync_best_block": comparison.best_block},
        "schemes": {name: as_json(found) for name, found in comparison.schemes.items()},
        "sync_search_ms_per_token": {str(k): round(found, 3) for k, found in comparison.blocks.items()},
        "speedup_over_server_streaming": round(comparison.speedup(SERVER_STREAMING), 3),
        "speedup_over_sync_best": round(comparison.speedup(SYNC_BEST), 3),
    }
