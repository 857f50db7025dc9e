"""Measures many clients of a daemon, with speculation and without: `python -m lab bench daemon`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import ForerunError
from edge_client.process.client import LocalClient, connect
from edge_client.texts.events import TextAdded, TextEnded
from forerun import terminal
from forerun.chat.asking import CHAT_PATH, TEXT_PATH, Json
from forerun.chat.following import DONE, read_events
from forerun.options import PlaceOption
from lab.bench.figures import Figures, latencies
from lab.bench.load import TextRun
from lab.bench.report import SCHEMA, Machine, ReportOptions, finish, progress_bar, settings_of
from simulator.figures import jain, rounded

DRAFTED, PLAIN = "speculation", "streaming"
clock = time.perf_counter
Progress = Callable[[int, int, str], None]

SUBJECTS = ("a harbour at night", "how bread is baked", "a parser for dates", "the tides", "an old map")
"""Subjects of the default prompts."""


@dataclass(frozen=True, kw_only=True)
class DaemonPlan(PlaceOption, ReportOptions):
    """Declares the load. Raises `UserError`."""

    clients: int = setting(4, "number of concurrent clients", "N", low=1)
    texts: int = setting(3, "texts of each client, each with and without speculation", "M", low=1)
    tokens: int = setting(64, "number of tokens of each text", "N", low=1)
    temperature: float = setting(0.0, "sampling temperature; 0 is greedy", "T")
    seed: int = setting(1, "seed of the first text", "N")
    prompt: str = setting("", "prompt of all texts (default: built-in prompts)", "TEXT")
    text: bool = setting(False, "continue the prompt instead of a chat, for targets without a chat template")

    def request(self, client: int, number: int, kind: str) -> tuple[str, Json]:
        """Return path and body of one text's request; both kinds get the same text."""
        subject = SUBJECTS[(client * self.texts + number) % len(SUBJECTS)]
        prompt = self.prompt or f"Tell me about {subject}, as number {number + 1}."
        asked = {"prompt": prompt} if self.text else {"messages": [{"role": "user", "content": prompt}]}
        return (TEXT_PATH if self.text else CHAT_PATH), {
            **asked,
            "max_tokens": self.tokens,
            "temperature": self.temperature,
            "seed": self.seed + client * self.texts + number,
            "ignore_eos": True,  # all texts are of one length
            "stream": True,
            "user": f"bench-{client}",
            "forerun": {"origins": True, "speculate": kind == DRAFTED},
        }


@dataclass(slots=True)
class Sample:
    """Holds one text as its client saw it. Times are in seconds."""

    client: int
    number: int
    kind: str
    took: float = 0.0  # from the request to the end of the stream
    arrivals: list[float] = field(default_factory=list)  # of each token, since the request
    text: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)  # the daemon's figures
    error: str = ""

    @property
    def overhead(self) -> float | None:
        """Return the client's wait per token beyond the daemon's own session and queue time, in seconds."""
        if self.error or not self.arrivals:
            return None
        told = float(self.told["elapsed_ms"] + self.told["waited_ms"]) / 1e3
        return (self.took - told) / len(self.arrivals)


def measure(
    client: LocalClient, plan: DaemonPlan, progress: Progress
) -> tuple[list[Sample], dict[str, float]]:
    """Return all samples, and the total seconds of each kind.

    All clients write at once. Rounds with and without speculation take turns, so that other work on the
    machine affects both.
    """
    samples, seconds = list[Sample](), {DRAFTED: 0.0, PLAIN: 0.0}
    with ThreadPoolExecutor(plan.clients, thread_name_prefix="bench") as pool:
        for number in range(plan.texts):
            kinds = (DRAFTED, PLAIN) if number % 2 == 0 else (PLAIN, DRAFTED)
            for place, kind in enumerate(kinds):
                progress(2 * number + place, 2 * plan.texts, f"text {number + 1}, {kind}")
                began = clock()
                asked = [Sample(each, number, kind) for each in range(plan.clients)]
                samples += pool.map(partial(one_text, client, plan), asked)
                seconds[kind] += clock() - began
    return samples, seconds


def one_text(client: LocalClient, plan: DaemonPlan, sample: Sample) -> Sample:
    """Request a text and read it. An error is stored in the sample."""
    path, body = plan.request(sample.client, sample.number, sample.kind)
    began = clock()
    try:
        for event in client.events(path, body):
            if event.data == DONE:
                continue
            for told in read_events(event.json()):
                if isinstance(told, TextAdded):
                    sample.arrivals += [clock() - began] * sum(span.num_tokens for span in told.spans)
                    sample.text += told.text
                elif isinstance(told, TextEnded):
                    sample.told = told.figures
    except ForerunError as error:
        sample.error = str(error)
    sample.took = clock() - began
    if not sample.error and not sample.told:
        sample.error = "the stream ended before the text was complete"
    return sample


def report(samples: Sequence[Sample], seconds: Mapping[str, float]) -> Figures:
    """Return figures by kind, and the speed-up of speculation."""
    kinds = {kind: kind_figures([s for s in samples if s.kind == kind], seconds[kind]) for kind in seconds}
    ours, plain = kinds[DRAFTED]["ms_per_token"], kinds[PLAIN]["ms_per_token"]
    texts = {(s.client, s.number, s.kind): s.text for s in samples if not s.error}
    pairs = [
        (text, texts[client, number, PLAIN])
        for (client, number, kind), text in texts.items()
        if kind == DRAFTED and (client, number, PLAIN) in texts
    ]
    return {
        "kinds": kinds,
        "speedup": rounded(plain / ours) if ours and plain else None,
        "texts_compared": len(pairs),
        "texts_different": sum(one != other for one, other in pairs),
    }


def kind_figures(samples: Sequence[Sample], seconds: float) -> Figures:
    """Return the figures of one kind of texts; None where nothing was measured."""
    whole = [sample for sample in samples if not sample.error and sample.arrivals]
    tokens = sum(len(sample.arrivals) for sample in whole)
    overheads = [overhead_s * 1e6 for sample in whole if (overhead_s := sample.overhead) is not None]
    total = {
        name: sum(s.told.get(name, 0) for s in whole) for name in ("accepted", "proposed", "target_steps")
    }
    return {
        "texts": len(whole),
        "failed": len(samples) - len(whole),
        "errors": sorted({sample.error for sample in samples if sample.error})[:5],
        "tokens": tokens,
        "tokens_per_second": rounded(tokens / seconds) if seconds else None,
        **latencies([TextRun(sample.number, 0.0, sample.arrivals) for sample in whole]),
        "acceptance": rounded(total["accepted"] / total["proposed"]) if total["proposed"] else None,
        "drafted_share": rounded(total["accepted"] / tokens) if tokens else None,
        "acceptance_length": rounded(tokens / total["target_steps"]) if total["target_steps"] else None,
        "api_overhead_us_per_token": rounded(float(median(overheads))) if overheads else None,
        "jain": fairness(whole),
    }


def fairness(samples: Sequence[Sample]) -> float | None:
    """Return Jain's index over the clients' tokens per second."""
    rates = list[float]()
    for client in sorted({sample.client for sample in samples}):
        own = [sample for sample in samples if sample.client == client]
        rates.append(sum(len(sample.arrivals) for sample in own) / sum(sample.took for sample in own))
    return jain(rates)


DESCRIPTION = """\
Request texts from the running daemon, with N concurrent clients and each text with and without speculation in
turn. Report tokens per second and time to first token at the clients, the local API's overhead per token, and
fairness among the clients (Jain's index; 1 is fair).

  python -m lab bench daemon --clients 4 --texts 3 --tokens 64"""

ROWS = (
    ("ms per token", "ms_per_token"),
    ("  p50 of 16 tokens", "ms_per_token_p50"),
    ("  p95", "ms_per_token_p95"),
    ("first token ms, p50", "ttft_ms_p50"),
    ("  p95", "ttft_ms_p95"),
    ("tokens/s, all clients", "tokens_per_second"),
    ("drafts accepted", "acceptance"),
    ("of the text drafted", "drafted_share"),
    ("tokens per target step", "acceptance_length"),
    ("API us per token", "api_overhead_us_per_token"),
    ("Jain's index", "jain"),
    ("texts", "texts"),
    ("failed", "failed"),
)


def add_parser(actions: Any) -> None:
    words = "measure clients of the running daemon, with speculation and without"
    add_command(actions, "daemon", words, run, DaemonPlan, DESCRIPTION)


def run(plan: DaemonPlan) -> int:
    """Run the benchmark. Return 1 if a text failed, or differs with speculation."""
    client = connect(plan.paths.daemon)
    status, machine = client.get("/v1/status"), Machine()
    with progress_bar("texts") as progress:
        samples, seconds = measure(client, plan, progress)
    outcome = {
        "schema": SCHEMA,
        "benchmark": "daemon",
        "settings": settings_of(plan),
        "machine": machine.told(),
        "daemon": status,
        **report(samples, seconds),
    }
    finish(plan, outcome, table(outcome))
    failed = sum(kind["failed"] for kind in outcome["kinds"].values())
    return 1 if failed or outcome["texts_different"] else 0


def table(outcome: dict[str, Any]) -> list[str]:
    """Format the report with a line for each figure and a column for each kind."""
    kinds, settings = outcome["kinds"], outcome["settings"]
    rows = ([title, *(_shown(kind[key]) for kind in kinds.values())] for title, key in ROWS)
    gain = "-" if outcome["speedup"] is None else f"{outcome['speedup']:.2f}"
    compared, different = outcome["texts_compared"], outcome["texts_different"]
    told = f"{different} of {compared} texts differ" if different else f"all {compared} texts are the same"
    return [
        f"{settings['clients']} clients, {settings['texts']} texts of {settings['tokens']} tokens each",
        *terminal.table(("", *kinds), rows, left=("",)),
        f"{DRAFTED}: {gain} times the pace of streaming; {told}",
        *(f"error: {error}" for kind in kinds.values() for error in kind["errors"]),
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
