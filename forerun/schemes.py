"""The schemes that are compared, on the same prompts over the same link in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.figures import Figures, figures, pace
from forerun.rig import Rig

SERVER_STREAMING, SYNC_BEST, FORERUN = "server_streaming", "sync_best", "forerun"

BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Block lengths searched for the best synchronous block."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was measured. `blocks` are ms per token by synchronous block length, from the search."""

    schemes: dict[str, Figures]
    best_block: int
    blocks: dict[int, float]
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def speedup(self, over: str) -> float:
        """How many times fewer ms per token Forerun takes than `over`."""
        return self.schemes[over].ms_per_token / self.schemes[FORERUN].ms_per_token


async def compare(
    rig: Rig,
    prompts: Sequence[str],
    sampling: dict[str, Any],
    policy: str = "adaptive",
    blocks: Sequence[int] = BLOCKS,
    progress: Progress = lambda text: None,
) -> Comparison:
    """Run every scheme on every prompt, interleaved prompt by prompt so that all see the same machine.

    The synchronous block is first searched on every third prompt; its three best lengths run on all prompts
    and the best one counts. The reference text is the server's own without any draft.
    """
    await rig.complete(
        prompts[0], policy, {**sampling, "max_tokens": 8}
    )  # connections and caches are warm now
    searched = await _search(rig, prompts[::3], sampling, blocks, progress)
    finalists = sorted(searched, key=lambda block: searched[block])[:3]
    names = {SERVER_STREAMING: "off", FORERUN: policy} | {f"sync:{k}": f"sync:{k}" for k in finalists}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number, prompt in enumerate(prompts, 1):
        for name, choice in names.items():
            progress(f"prompt {number} of {len(prompts)}: {name}")
            runs[name].append(await rig.complete(prompt, choice, sampling))
    best = min(finalists, key=lambda block: pace(runs[f"sync:{block}"]))
    measured = {
        SERVER_STREAMING: runs[SERVER_STREAMING],
        SYNC_BEST: runs[f"sync:{best}"],
        FORERUN: runs[FORERUN],
    }
    references = [run["tokens"] for run in runs[SERVER_STREAMING]]
    schemes = {name: figures(found, references) for name, found in measured.items()}
    return Comparison(schemes, best, searched, measured)


async def _search(
    rig: Rig, prompts: Sequence[str], sampling: dict[str, Any], blocks: Sequence[int], progress: Progress
) -> dict[int, float]:
    found: dict[int, float] = {}
    for block in blocks:
        progress(f"searching the best synchronous block: {block} tokens")
        found[block] = pace([await rig.complete(prompt, f"sync:{block}", sampling) for prompt in prompts])
    return found
