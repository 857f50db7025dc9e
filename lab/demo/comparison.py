"""Compares schemes on the same prompts over the same link in one run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.rig import DEVICE, Rig
from simulator.figures import Figures, figures, pace
from simulator.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST

BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Block lengths searched for the best synchronous block."""

HEADS_ALONE = "heads_alone"
"""The scheme of server streaming from a verifier that has a drafter of its own."""

NO_POLICIES: Mapping[str, str] = {}

Progress = Callable[[str], None]
Runs = dict[str, list[dict[str, Any]]]
"""The runs of all prompts, by scheme."""


@dataclass(frozen=True, slots=True)
class Search:
    """Sets the search for the best synchronous block: all lengths on some prompts, then the best on all."""

    blocks: tuple[int, ...] = BLOCKS
    every: int = 3  # the search uses every third prompt
    finalists: int = 3  # run on all prompts; the best of them counts
    patience: int = len(BLOCKS)  # slower lengths in a row, from the longest down, that end the search


@dataclass(frozen=True, slots=True)
class MeasuredScheme:
    """Holds the runs. `blocks` are ms per token by synchronous block length; empty without a search."""

    runs: Runs
    best_block: int | None = None
    blocks: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchemeComparison:
    """Holds the figures. `blocks` are ms per token by synchronous block length, from the search."""

    schemes: dict[str, Figures]
    best_block: int | None
    blocks: dict[int, float]

    def speedup(self, over: str) -> float:
        """Return the ms per token of scheme `over` divided by Forerun's."""
        return self.schemes[over].ms_per_token / self.schemes[FORERUN].ms_per_token


async def compare(
    rig: Rig,
    guessing: Rig | None,
    prompts: Sequence[str],
    sampling: dict[str, Any],
    policy: str,
    progress: Progress,
) -> SchemeComparison:
    """Compare server streaming, the best synchronous block and Forerun.

    Forerun runs on the rig `guessing`, whose verifier has a drafter of its own, if there is one; then that
    drafter alone is compared, too. The reference text is the server's own without drafts.
    """
    own = {HEADS_ALONE: "off", FORERUN: policy} if guessing is not None else NO_POLICIES
    policies = {SERVER_STREAMING: "off"} | ({} if own else {FORERUN: policy})
    result = await measure(rig, prompts, sampling, policies, Search(), progress, guessing, own)
    references = [run["text"] for run in result.runs[SERVER_STREAMING]]
    order = [name for name in (SERVER_STREAMING, SYNC_BEST, HEADS_ALONE, FORERUN) if name in result.runs]
    schemes = {name: figures(result.runs[name], references) for name in order}
    return SchemeComparison(schemes, result.best_block, result.blocks)


async def measure(
    rig: Rig,
    prompts: Sequence[str],
    sampling: dict[str, Any],
    policies: Mapping[str, str],
    search: Search | None,
    progress: Progress,
    guessing: Rig | None = None,
    guessed: Mapping[str, str] = NO_POLICIES,
) -> MeasuredScheme:
    """Run every scheme on every prompt, interleaved prompt by prompt so that all see the same machine.

    `policies` are the edge's policies by scheme; a `search` adds `SYNC_BEST`. The schemes of `guessed` run on
    the rig `guessing`. Before each run the draft model's KV is cleared of the prompt.
    """
    for each in (rig, guessing) if guessing is not None else (rig,):
        await each.complete(prompts[0], "sync:4", {**sampling, "max_tokens": 8})  # both sides are warm now
    blocks = await _search(rig, prompts, sampling, search, progress) if search else {}
    finalists = best_of(blocks, search.finalists) if search else []
    names = {**policies, **{f"sync:{block}": f"sync:{block}" for block in finalists}}
    runs: Runs = {name: [] for name in (*names, *guessed)}
    for number, prompt in enumerate(prompts, 1):
        for name, policy in names.items():
            progress(f"prompt {number} of {len(prompts)}: {name}")
            runs[name].append(await _run(rig, prompt, policy, sampling))
        for name, policy in guessed.items():
            assert guessing is not None, "these schemes need it"
            progress(f"prompt {number} of {len(prompts)}: {name}")
            runs[name].append(await _run(guessing, prompt, policy, sampling))
    if not finalists:
        return MeasuredScheme(runs)
    best = min(finalists, key=lambda block: pace(runs[f"sync:{block}"]))
    kept = {name: runs[name] for name in (*policies, *guessed)}
    return MeasuredScheme({**kept, SYNC_BEST: runs[f"sync:{best}"]}, best, blocks)


def best_of(blocks: Mapping[int, float], count: int) -> list[int]:
    """Return the `count` lengths with the fewest ms per token, best first."""
    return sorted(blocks, key=lambda block: blocks[block])[:count]


async def try_blocks(
    attempt: Callable[[int], Awaitable[float]], blocks: Sequence[int], patience: int
) -> dict[int, float]:
    """Return ms per token by block, from the longest down until `patience` in a row are slower than the best.

    The longest come first because short blocks are by far the slowest on a long link.
    """
    paces: dict[int, float] = {}
    slower = 0
    for block in sorted(set(blocks), reverse=True):
        best = min(paces.values(), default=float("inf"))
        paces[block] = await attempt(block)
        slower = 0 if paces[block] < best else slower + 1
        if slower >= patience:
            break
    return dict(sorted(paces.items()))


async def _search(
    rig: Rig, prompts: Sequence[str], sampling: dict[str, Any], search: Search, progress: Progress
) -> dict[int, float]:
    async def attempt(block: int) -> float:
        progress(f"searching the best synchronous block: {block} tokens")
        some = prompts[:: search.every]
        return pace([await _run(rig, prompt, f"sync:{block}", sampling) for prompt in some])

    return await try_blocks(attempt, search.blocks, search.patience)


async def _run(rig: Rig, prompt: str, policy: str, sampling: dict[str, Any]) -> dict[str, Any]:
    """Run one prompt, after a text on the device that replaces the last prompt in the draft's KV."""
    await rig.complete("\n", DEVICE, {"max_tokens": 1})
    return await rig.complete(prompt, policy, sampling)
