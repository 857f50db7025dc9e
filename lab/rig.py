"""Runs a whole system on one machine: verifier and edge as processes, with the link between them in this one.

The edge is the daemon, which writes texts by its API.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UnavailableError
from common.sampling import SamplingParams
from edge_client.formats.detokenizer import Words
from edge_client.texts.events import ModeChanged, TextAdded, TextEnded, TextEvent
from forerun.rig import Processes, RigEdge, RigProcess
from simulator.proxy import Bandwidth, Link, LinkDirection, Toxic, rtt

PRIVACY = ("--privacy", "off")
"""Privacy option of both sides, so that bytes measure the schemes and not the padding."""

VERIFIER = "lab.rig_verifier"
"""Module of the rig's verifier: `forerun verify` with a floor of its steps."""


@dataclass(frozen=True, slots=True)
class RigSettings:
    """Sets the models and the link of a rig."""

    target: str
    draft: str
    rtt_ms: float = 60.0
    jitter_ms: float = 0.0
    bandwidth_kbps: float = 0.0  # KB/s each way; 0 = unlimited
    step_floor_ms: float = 0.0
    link_seed: int = 1
    recall: bool = False  # both sides propose repeated tokens
    drafter: str | None = None  # the verifier's own, as for `forerun verify`
    tokens: str = ""  # file of the target's tokens, for a draft with other ones
    verifier_options: tuple[str, ...] = ()  # further ones of `forerun verify`

    @property
    def target_options(self) -> list[str]:
        """Return the options of `forerun verify` for the target and its step floor."""
        more = ["--step-floor", str(self.step_floor_ms)] if self.step_floor_ms else []
        more += ["--drafter", self.drafter] if self.drafter else []
        more += self.verifier_options
        return ["--model", self.target, "--threads", "1", "--log-level", "warning", *more]


class Rig(Processes):
    """Starts verifier, link and edge, in that order."""

    def __init__(self, settings: RigSettings) -> None:
        super().__init__()
        self.settings = settings
        self._edge: RigEdge | None = None
        self._link: Link | None = None

    async def _begin(self) -> None:
        settings = self.settings
        _, address = await self._start_verifier()
        toxics: list[Toxic] = list(rtt(settings.rtt_ms, jitter=settings.jitter_ms))
        if settings.bandwidth_kbps:
            toxics += [Bandwidth(settings.bandwidth_kbps, stream=stream) for stream in LinkDirection]
        link = Link.to(address, *toxics, seed=settings.link_seed)
        self._link = await self._stack.enter_async_context(link)
        self._edge = await self.start_linked_edge()

    async def start_linked_edge(self) -> RigEdge:
        """Start one more edge behind the link."""
        where = ("--verifier", str(self.link.address), "--draft", self.settings.draft)
        tokens = ("--tokens", self.settings.tokens) if self.settings.tokens else ()
        return await self.start_edge(*where, *tokens, "--threads", "1", *PRIVACY)

    @property
    def link(self) -> Link:
        assert self._link is not None, "entered before"
        return self._link

    async def events(
        self, prompt: str, policy: str, sampling: dict[str, Any], **ours: Any
    ) -> AsyncIterator[tuple[float, TextEvent]]:
        """Write a text on the edge and yield its events as `RigEdge.events` does.

        `ours` may hold `recall` (default: the settings'), `acceptance` and other fields of a request.
        """
        assert self._edge is not None, "entered before"
        fields = {"recall": self.settings.recall, **ours}
        async for event in self._edge.events(prompt, policy, SamplingParams(**sampling), **fields):
            yield event

    async def complete(
        self, prompt: str, policy: str, sampling: dict[str, Any], **ours: Any
    ) -> dict[str, Any]:
        """Write a text. Return its record, with the bytes that crossed the link."""
        before, record = self.link.counters, TextRecord()
        async for came_at, event in self.events(prompt, policy, sampling, **ours):
            record.take(came_at, event)
        after = self.link.counters
        return {
            **record.as_run(),
            "link_bytes_up": after.upstream.num_bytes - before.upstream.num_bytes,
            "link_bytes_down": after.downstream.num_bytes - before.downstream.num_bytes,
        }

    async def _start_verifier(self) -> tuple[RigProcess, str]:
        return await self.start_verifier(*self._verifier_options(), module=VERIFIER)

    def _verifier_options(self) -> list[str]:
        recall = "--recall" if self.settings.recall else "--no-recall"
        return [*self.settings.target_options, recall, *PRIVACY]


class TextRecord:
    """Collects the events of a text for `simulator.figures`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._arrivals = list[float]()
        self._parts, self._modes = list[str](), list[dict[str, str]]()
        self._figures: Mapping[str, Any] = {}

    def take(self, came_at: float, event: TextEvent) -> None:
        """Add an event that came at this time of the monotonic clock."""
        match event:
            case TextAdded():
                self._parts.append(event.text)
                num_tokens = sum(span.num_tokens for span in event.spans)
                self._arrivals += [1e3 * (came_at - self._began)] * num_tokens
            case ModeChanged():
                self._modes.append({"mode": event.mode, "why": event.why})
            case TextEnded():
                self._figures = event.figures

    def as_run(self) -> dict[str, Any]:
        """Return the run. `arrivals_ms` has a time for each token, in milliseconds since the request."""
        times = {"draft_time": "draft_ms", "compute_time": "step_ms", "queue_time": "queue_ms"}
        counts = {name: value for name, value in self._figures.items() if isinstance(value, int | float)}
        return {
            "text": "".join(self._parts),
            "arrivals_ms": self._arrivals,
            "modes": self._modes,
            "rtt_ms": self._figures["rtt_p50_ms"],
            "stats": {**counts, **{name: self._figures[key] / 1e3 for name, key in times.items()}},
        }


@contextlib.contextmanager
def words_of(draft: str) -> Iterator[Words]:
    """Read the tokens of a draft model's file, which are the target's."""
    from common.llama.model import LlamaModel, LlamaSettings

    with LlamaModel(LlamaSettings(draft), weights=False) as words:
        yield words


def check_models(target: Path, draft: Path) -> None:
    """Raise `UnavailableError` with a remedy if a model of the demo pair is missing."""
    for path in (target, draft):
        if not path.exists():
            raise UnavailableError(
                f"{path} is missing; run from a clone, or make it with `python -m lab.demo_models.train`"
            )
