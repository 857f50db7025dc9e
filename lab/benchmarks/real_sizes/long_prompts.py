"""Measures long prompts with real processes: the first token, the draft's catching up, and a second turn.

A run has two conversations of two turns, one with drafts and one without, in alternating order. Their prompts
differ from the first token on, so a first turn shares nothing. The second turn's prompt is the first one,
its answer, and new tokens.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from forerun.rig import Processes
from lab.bench.report import table
from lab.benchmarks.daemon import DaemonProcess
from lab.benchmarks.real_sizes.end_to_end import ORACLE
from lab.benchmarks.real_sizes.pair import Pair, PairText, Prompt
from lab.benchmarks.real_sizes.texts import open_model, texts_of
from lab.demo_models.corpus import HELD_OUT, library_root, read_source
from simulator.figures import rounded
from simulator.proxy import Link, rtt

SCHEMES: dict[str, dict[str, Any]] = {"streaming": {"speculate": False}, "adaptive": {}}
TURNS = ("first", "second")
DRAFT = "q8_0"
SLOTS = 2**18
"""KV slots of the verifier: more than the conversations of three runs of 20,000 tokens."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LongSettings:
    """Holds the settings of all runs."""

    rtt_ms: float
    step_ms: float
    prompt_row_ms: float
    num_prompt: int  # tokens of a first prompt
    num_new: int  # tokens that the second prompt adds to the first turn
    num_tokens: int  # of each answer
    num_runs: int


def conversations(pair: Pair, settings: LongSettings) -> list[dict[str, tuple[PairText, PairText]]]:
    """Return both turns of each scheme's conversation, for each run."""
    with open_model(pair.writer) as model:
        source = "".join(read_source(library_root() / name) for name in HELD_OUT)
        words = tuple(model.tokenize(source, parse_special=False))
        numbers = [
            tuple(model.tokenize(f"{number}. ", parse_special=False))
            for number in range(1, 1 + settings.num_runs * len(SCHEMES))
        ]
    size, new = settings.num_prompt, words[-settings.num_new :]
    prompts = [Prompt(f"long:{at}", "", (number + words)[:size]) for at, number in enumerate(numbers)]
    firsts = texts_of(pair, prompts, 0.0, settings.num_tokens)
    following = [Prompt("second", "", text.prompt + text.tokens + new) for text in firsts]
    seconds = texts_of(pair, following, 0.0, settings.num_tokens)
    turns = iter(zip(firsts, seconds, strict=True))
    return [{scheme: next(turns) for scheme in SCHEMES} for _ in range(settings.num_runs)]


async def measure_long(
    pair: Pair, settings: LongSettings, folder: Path, progress: Callable[[str], None] = lambda line: None
) -> list[Row]:
    """Return a row for each turn of each run. All runs share a verifier and a daemon."""
    runs = conversations(pair, settings)
    longest = max(
        len(turn.prompt) + len(turn.tokens) for run in runs for text in run.values() for turn in text
    )
    model = ["--model", str(pair.target), "--slots", str(max(SLOTS, 4 * longest)), "--texts", str(pair.texts)]
    model += ["--no-recall"]  # as the daemon: only the draft model proposes
    times = ["--step", f"{settings.step_ms:g}", "--prompt-row", f"{settings.prompt_row_ms:g}"]
    rows = list[Row]()
    async with Processes() as processes, contextlib.AsyncExitStack() as stack:
        _, address = await processes.start_verifier(*model, *times, module=ORACLE)
        link = await stack.enter_async_context(Link.to(address, *rtt(settings.rtt_ms)))
        draft = [
            "--draft",
            str(pair.draft(DRAFT)),
            "--context",
            str(3 * longest),
            "--draft-seats",
            "2",
            "--no-recall",
        ]
        daemon = DaemonProcess(folder, "--verifier", str(link.address), *draft)
        await stack.enter_async_context(daemon)
        for number, run in enumerate(runs, 1):
            for scheme in list(SCHEMES)[:: -1 if number % 2 == 0 else 1]:
                for turn, text in zip(TURNS, run[scheme], strict=True):
                    progress(f"run {number} of {len(runs)}, {scheme}, {turn} turn")
                    told = await _turn(daemon, text, SCHEMES[scheme])
                    rows.append({"run": number, "scheme": scheme, "turn": turn, **told})
    return rows


async def _turn(daemon: DaemonProcess, text: PairText, ours: Mapping[str, Any]) -> Row:
    """Write one text; return its figures. Times in ms, from the request on."""
    load, began_at = os.getloadavg()[0], time.monotonic()
    sampling = {"max_tokens": len(text.tokens), "temperature": 0, "seed": text.seed}
    asked = {"prompt": list(text.prompt), **sampling, "forerun": {"origins": True, **ours}}
    reading, arrivals = await daemon.text(asked)
    times = [at for at, count in arrivals for _ in range(count)]
    origins = [
        origin
        for event in reading.events
        for _, origin, count in event.get("forerun", {}).get("origins", ())
        for _ in range(count)
    ]
    drafted = [
        1e3 * (at - began_at) for at, origin in zip(times, origins, strict=True) if origin == "drafted"
    ]
    (usage,) = reading.form.usages(reading.events)
    figures, own = reading.figures, [each["forerun"] for each in reading.events if "forerun" in each]
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "first_token_ms": rounded(1e3 * (times[0] - began_at)),
        "ms_per_token": rounded(1e3 * (times[-1] - times[0]) / (len(times) - 1)),
        "first_drafted_ms": rounded(drafted[0]) if drafted else None,
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "draft_read": figures["draft_read"],
        "accepted": figures["accepted"],
        "reasons": [each["why"] for each in own if each.get("why")],
        "load": load,
    }


# The report -------------------------------------------------------------------------------------------------


def ratios(rows: Sequence[Row], key: str, turn: str) -> list[float]:
    """Return adaptive's figure over streaming's of the same run, for each run."""
    found = {(row["run"], row["scheme"]): row[key] for row in rows if row["turn"] == turn}
    runs = sorted({run for run, _ in found})
    return [round(found[run, "adaptive"] / found[run, "streaming"], 3) for run in runs]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the ratios of each turn, and their medians."""
    return {
        f"{turn}: {key}": {"ratios": found, "median": median(found)}
        for turn in TURNS
        for key in ("first_token_ms", "ms_per_token")
        if (found := ratios(rows, key, turn))
    }


def lines_of_long(rows: Sequence[Row]) -> Iterator[str]:
    """Format all rows for a terminal."""
    yield from table([{key: value for key, value in row.items() if key != "reasons"} for row in rows])
    for name, found in summary(rows).items():
        yield f"{name}, adaptive over streaming: {found['median']:.3f} ({found['ratios']})"
