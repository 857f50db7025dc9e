"""A load on a running daemon: many clients at once, each text with speculation and without."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from common.errors import ForerunError, UserError
from common.figures import pace, rounded, window_paces
from edge_client.local_client import LocalClient
from forerun.bench.figures import Figures
from forerun.chat.asking import CHAT_PATH, TEXT_PATH, Json
from forerun.chat.following import DONE
from forerun.chat.parts import Ended, Text, read_parts

DRAFTED, PLAIN = "speculation", "streaming"
Progress = Callable[[int, int, str], None]

SUBJECTS = ("a harbour at night", "how bread is baked", "a parser for dates", "the tides", "an old map")
"""What the texts are about where no prompt is given."""


@dataclass(frozen=True, slots=True)
class DaemonPlan:
    """The load. Raises `UserError`."""

    clients: int = 4
    texts: int = 3  # of each client and kind
    tokens: int = 64  # of each text
    temperature: float = 0.0
    seed: int = 1
    prompt: str = ""  # empty: `SUBJECTS`
    chat: bool = True  # else texts go on from the prompt

    def __post_init__(self) -> None:
        for name in ("clients", "texts", "tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} is {getattr(self, name)}; it must be 1 or more")

    def request(self, client: int, number: int, kind: str) -> tuple[str, Json]:
        """Path and body of one text; the same text for both kinds."""
        subject = SUBJECTS[(client * self.texts + number) % len(SUBJECTS)]
        prompt = self.prompt or f"Tell me about {subject}, as number {number + 1}."
        asked = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        return (CHAT_PATH if self.chat else TEXT_PATH), {
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
    """One text as its client saw it. Times in seconds."""

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
        """Per token, what the client waited beyond what the daemon says that session and queue took."""
        if self.error or not self.arrivals:
            return None
        told = float(self.told["elapsed_ms"] + self.told["waited_ms"]) / 1e3
        return (self.took - told) / len(self.arrivals)


def measure(
    client: LocalClient, plan: DaemonPlan, progress: Progress, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[Sample], dict[str, float]]:
    """All samples, and the seconds that all texts of a kind took together.

    All clients write at once; a round with speculation and one without take turns, so that whatever else the
    machine does falls on both.
    """
    samples, seconds = list[Sample](), {DRAFTED: 0.0, PLAIN: 0.0}
    with ThreadPoolExecutor(plan.clients, thread_name_prefix="bench") as pool:
        for number in range(plan.texts):
            kinds = (DRAFTED, PLAIN) if number % 2 == 0 else (PLAIN, DRAFTED)
            for place, kind in enumerate(kinds):
                progress(2 * number + place, 2 * plan.texts, f"text {number + 1}, {kind}")
                began = clock()
                jobs = [
                    pool.submit(one_text, client, plan, Sample(each, number, kind), clock)
                    for each in range(plan.clients)
                ]
                samples += [job.result() for job in jobs]
                seconds[kind] += clock() - began
    return samples, seconds


def one_text(
    client: LocalClient, plan: DaemonPlan, sample: Sample, clock: Callable[[], float] = time.perf_counter
) -> Sample:
    """Ask for a text and read it; an error is the sample's."""
    path, body = plan.request(sample.client, sample.number, sample.kind)
    began = clock()
    try:
        for event in client.events(path, body):
            if event.data == DONE:
                continue
            for part in read_parts(event.json()):
                if isinstance(part, Text):
                    sample.arrivals += [clock() - began] * sum(run.tokens for run in part.runs)
                    sample.text += part.text
                elif isinstance(part, Ended):
                    sample.told = part.figures
    except ForerunError as error:
        sample.error = str(error)
    sample.took = clock() - began
    if not sample.error and not sample.told:
        sample.error = "the stream ended before the text was whole"
    return sample


def report(samples: Sequence[Sample], seconds: Mapping[str, float]) -> Figures:
    """Figures by kind, and what speculation gained."""
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
    """Of the texts with speculation, or of those without. None where there is nothing to tell."""
    whole = [sample for sample in samples if not sample.error and sample.arrivals]
    records = [{"arrivals_ms": [1e3 * at for at in s.arrivals], "tokens": s.arrivals} for s in whole]
    tokens = sum(len(sample.arrivals) for sample in whole)
    windows = np.concatenate([window_paces(each["arrivals_ms"]) for each in records] or [np.zeros(0)])
    firsts = [1e3 * sample.arrivals[0] for sample in whole]
    overheads = [found * 1e6 for sample in whole if (found := sample.overhead) is not None]
    total = {
        name: sum(s.told.get(name, 0) for s in whole) for name in ("accepted", "proposed", "target_steps")
    }
    return {
        "texts": len(whole),
        "failed": len(samples) - len(whole),
        "errors": sorted({sample.error for sample in samples if sample.error})[:5],
        "tokens": tokens,
        "tokens_per_second": rounded(tokens / seconds) if seconds else None,
        "ms_per_token": rounded(pace(records)) if records else None,
        "ms_per_token_p50": _percentile(windows, 50),
        "ms_per_token_p95": _percentile(windows, 95),
        "ttft_ms_p50": _percentile(firsts, 50),
        "ttft_ms_p95": _percentile(firsts, 95),
        "acceptance": rounded(total["accepted"] / total["proposed"]) if total["proposed"] else None,
        "drafted_share": rounded(total["accepted"] / tokens) if tokens else None,
        "acceptance_length": rounded(tokens / total["target_steps"]) if total["target_steps"] else None,
        "api_overhead_us_per_token": rounded(float(median(overheads))) if overheads else None,
        "jain": fairness(whole),
    }


def fairness(samples: Sequence[Sample]) -> float | None:
    """Jain's index over the clients' tokens per second (Jain, Chiu and Hawe 1984): 1 is fair, 1 / clients is
    one client alone."""
    rates = list[float]()
    for client in sorted({sample.client for sample in samples}):
        own = [sample for sample in samples if sample.client == client]
        rates.append(sum(len(sample.arrivals) for sample in own) / sum(sample.took for sample in own))
    squares = sum(rate**2 for rate in rates)
    return rounded(sum(rates) ** 2 / (len(rates) * squares)) if squares else None


def _percentile(values: Sequence[float] | np.ndarray, share: int) -> float | None:
    return rounded(float(np.percentile(values, share))) if len(values) else None
