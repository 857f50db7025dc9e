"""Implements `python -m lab demo`: runs both sides over an emulated link and compares schemes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import UserError
from edge_client.core.policies import make_policy
from forerun.chat.display import Display, legend
from forerun.terminal import Painter, note, table
from lab.demo.comparison import HEADS_ALONE, SchemeComparison, compare
from lab.rig import Rig, RigSettings, check_models
from simulator.figures import as_json
from simulator.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST
from training import demo_pair
from training.prompts import bundled, some_of

DESCRIPTION = """\
Start a verifier with the bundled target model and an edge with the bundled draft model as two processes, with
an emulated wide-area link between them. Complete a few functions and show the text as it arrives. Then run
the same prompts over the same link in four ways, and compare them in a table:

  server streaming   the plain cloud service: the target alone, token by token
  best sync block    classic split speculation: draft k tokens, wait for the verdict; with the best k
  heads alone        server streaming from a verifier that guesses by itself, with the bundled heads
  forerun            the draft runs ahead of the network, and the verifier guesses, too

The bundled target is tiny, so every target step is slowed to --step-floor ms, as of a large model."""

YES = ("y", "yes")

WITHIN: dict[str, Any] = {"low": 0, "high": 600_000}
"""Bounds of a link and a step: ten minutes are above any worth a demonstration."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Declares what is demonstrated. Raises `UserError` before the slow loading."""

    rtt: float = setting(60.0, "round-trip time of the link", "MS", **WITHIN)
    jitter: float = setting(0.0, "jitter of the round-trip time", "MS", **WITHIN)
    bandwidth: float = setting(0.0, "bandwidth each way, in kB/s; 0: unlimited", "KBPS", **WITHIN)
    step_floor: float = setting(30.0, "least time of a target step", "MS", **WITHIN)
    prompt: tuple[str, ...] | None = setting(None, "prompt (default: bundled ones); may be repeated", "TEXT")
    drafter: str | None = setting(
        None,
        "the verifier's own drafter (default: the bundled heads for the bundled target); none: no",
        "WHAT",
    )
    num_prompts: int = setting(3, "number of bundled prompts", "N")
    policy: str = setting("adaptive", "growth policy of the forerun scheme")
    target: str = setting(str(demo_pair.TARGET_DIR), "folder of the target model", "PATH")
    draft: str = setting(str(demo_pair.DRAFT_GGUF), "GGUF file of the draft model", "PATH")
    tokens: str = setting("", "file of the target's tokens, as for forerun edge (default: none)", "PATH")
    json: bool = setting(False, "print one JSON object instead of text and table")
    page: bool = setting(False, "serve a web page instead, which shows texts and the growing tree")
    listen: str = setting("127.0.0.1:8080", "address of --page", "HOST:PORT")
    open: bool = setting(False, "with --page: open the page in this machine's browser")
    max_tokens: int = setting(96, "most tokens of each text", "N", low=2)
    temperature: float = setting(0.0, "sampling temperature; 0 is greedy", "T", low=0, high=100)
    seed: int = setting(0, "random seed; the same seed gives the same text", "N")

    def __post_init__(self) -> None:
        if self.prompt and not all(self.prompt):
            raise UserError("--prompt is empty; at least one token is needed")
        make_policy(self.policy)

    @property
    def rig(self) -> RigSettings:
        """Return the settings of the demonstrated system; its verifier has no drafter."""
        return RigSettings(
            self.target,
            self.draft,
            rtt_ms=self.rtt,
            jitter_ms=self.jitter,
            bandwidth_kbps=self.bandwidth,
            step_floor_ms=self.step_floor,
            tokens=self.tokens,
        )

    @property
    def own_drafter(self) -> str | None:
        """Return the drafter of the verifier, if it is to have one."""
        if self.drafter is None:
            bundled_target = self.target == str(demo_pair.TARGET_DIR)
            return str(demo_pair.HEADS) if bundled_target and demo_pair.HEADS.exists() else None
        return None if self.drafter == "none" else self.drafter


def add_parser(commands: Any) -> None:
    words = "try Forerun on this machine with the bundled models"
    add_command(commands, "demo", words, _run, DemoOptions, DESCRIPTION)


def _run(options: DemoOptions) -> int:
    check_models(Path(options.target), Path(options.draft))
    sampling = {name: getattr(options, name) for name in ("max_tokens", "temperature", "seed")}
    if options.page:
        return asyncio.run(_page(options, options.open))
    asyncio.run(_demo(options, sampling))
    return asyncio.run(_page(options, browser=True)) if not options.json and _wants_page() else 0


async def _demo(options: DemoOptions, sampling: dict[str, Any]) -> None:
    prompts = list(options.prompt or ()) or some_of(bundled(), options.num_prompts)
    note("loading the target model and the draft model, each in a process of its own")
    async with AsyncExitStack() as stack:
        rig, guessing = await stack.enter_async_context(Rig(options.rig)), None
        if options.own_drafter is not None:
            settings = replace(options.rig, drafter=options.own_drafter)
            guessing = await stack.enter_async_context(Rig(settings))
        if not options.json:
            await _show(guessing or rig, prompts, options.policy, sampling)
        comparison = await compare(rig, guessing, prompts, sampling, options.policy, progress=note)
    if options.json:
        print(json.dumps(_as_json(options, prompts, comparison), indent=2))
    else:
        print_table(options, comparison)


def _wants_page() -> bool:
    """Offer the page. Without a terminal, print how to get it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("\nTo see it in a browser, with a slider for the delay: make demo ARGS='--page'")
        return False
    try:
        return input("\nSee it live in a browser, with a slider for the delay? [y/N] ").lower() in YES
    except (EOFError, KeyboardInterrupt):
        print()
        return False


async def _page(options: DemoOptions, browser: bool) -> int:
    from lab.demo.page import show_page

    await show_page(replace(options.rig, drafter=options.own_drafter), options.listen, browser)
    return 0


async def _show(rig: Rig, prompts: Sequence[str], policy: str, sampling: dict[str, Any]) -> None:
    """Print each prompt with its completion as it arrives."""
    painter = Painter(sys.stdout)
    print(legend(painter))
    for number, prompt in enumerate(prompts, 1):
        print("\n" + painter.dim(f"── prompt {number} of {len(prompts)} ──"))
        display = Display(painter, sys.stdout, origin=True, prompt=prompt)
        async for _, event in rig.events(prompt, policy, sampling):
            display.take(event)
        display.close()


TITLES = {
    SERVER_STREAMING: "server streaming",
    SYNC_BEST: "best sync block (k={k})",
    HEADS_ALONE: "heads alone",
    FORERUN: "forerun",
}
"""Of the schemes, in the order of the table."""

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


def print_table(options: DemoOptions, comparison: SchemeComparison) -> None:
    """Print the comparison as a table."""
    painter = Painter(sys.stdout)
    columns = {name: each for name, each in TITLES.items() if name in comparison.schemes}
    titles = ["", *(each.format(k=comparison.best_block) for each in columns.values())]
    rows = (
        [label, *(_cell(getattr(comparison.schemes[name], key)) for name in columns)] for label, key in ROWS
    )
    print(f"\n{painter.bold(_headline(options))}", *table(titles, rows, left=("",)), sep="\n")
    print()
    for name, title in zip(reversed(columns), titles[:0:-1], strict=True):
        if name != FORERUN:
            words = f"{comparison.speedup(name):.1f} times as fast as {title}"
            print(painter.bold(words) if name == SERVER_STREAMING else words)


def _headline(options: DemoOptions) -> str:
    least = f"each target step made to take at least {options.step_floor:g} ms"
    kind = f"temperature {options.temperature:g}" if options.temperature else "greedy"
    floor = least if options.step_floor else "no step floor"
    return f"RTT {options.rtt:g} ms, jitter {options.jitter:g} ms, {kind}, {floor}"


def _cell(value: float | bool) -> str:
    return ("yes" if value else "NO") if isinstance(value, bool) else f"{value:.2f}"


def _as_json(
    options: DemoOptions,
    prompts: Sequence[str],
    comparison: SchemeComparison,
) -> dict[str, Any]:
    settings = {key: value for key, value in vars(options).items() if key not in ("prompt", "json")}
    return {
        "settings": {**settings, "prompts": len(prompts), "sync_best_block": comparison.best_block},
        "schemes": {name: as_json(figures) for name, figures in comparison.schemes.items()},
        "sync_search_ms_per_token": {str(k): round(pace, 3) for k, pace in comparison.blocks.items()},
        **{
            f"speedup_over_{name}": round(comparison.speedup(name), 3)
            for name in comparison.schemes
            if name != FORERUN
        },
    }
