"""Measures tokens a second of many sessions: the product's scheduler and engine in one process, with an
oracle's drafts.

There is no network and no device. An oracle replaces the edge. It knows the text that the target writes
alone, because plain streaming has written it before. Each of its draft tokens is right with a chosen
probability, and it always keeps so many nodes below the tip. So the comparison is of the server's work alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.torch_engine import TorchEngine
from common.messages import Commit, Open, Propose, pack_logprob
from common.sampling import SamplingParams
from lab.benchmarks.gpu_step.settings import GpuSettings

Texts = list[list[int]]


@dataclass
class RateEdge:
    """Plays one device: it keeps a chain of drafts below the tip. Positions count from the prompt's
    first."""

    text: list[int]  # the target's own, prompt included; empty = it drafts nothing
    acceptance: float
    num_nodes: int
    random: np.random.Generator
    tip: int = 0  # position
    seen: int = 0  # of it the verifier knows that the edge knows
    chain: list[int] = field(default_factory=list)  # tokens after the tip that the verifier has
    written: list[int] = field(default_factory=list)

    def on_commit(self, tokens: Sequence[int]) -> None:
        """Take the verifier's committed tokens."""
        for token in tokens:
            self.tip += 1
            self.written.append(token)
            self.chain = self.chain[1:] if self.chain and self.chain[0] == token else []

    def propose(self) -> Propose | None:
        """Propose the nodes that the edge lacks as one message; None if it lacks none."""
        room = min(self.num_nodes - len(self.chain), len(self.text) - 1 - self.tip - len(self.chain))
        if room <= 0:
            return None
        anchor = None if self.chain else self.tip
        first = self.tip + len(self.chain) + 1
        tokens = [self._draft(position) for position in range(first, first + room)]
        self.chain += tokens
        advance, self.seen = self.tip - self.seen, self.tip
        likely = bytes([pack_logprob(math.log(self.acceptance))] * room)
        return Propose(tuple(tokens), likely, (), anchor, advance)

    def _draft(self, position: int) -> int:
        right = self.text[position]
        return right if self.random.random() < self.acceptance else right + (1 if right == 0 else -1)


@dataclass
class RateRun:
    """Runs sessions on one scheduler, from their prompts to their ends."""

    engine: TorchEngine
    settings: GpuSettings
    prompts: Texts
    texts: Texts | None = None  # what the oracle knows; None = plain streaming
    acceptance: float = 1.0

    def __post_init__(self) -> None:
        config = SchedulerConfig(
            max_sessions=len(self.prompts),
            max_nodes_per_session=self.settings.draft_nodes + 1,
            max_rows=min(512, len(self.prompts) * (self.settings.draft_nodes + 1)),
            prefill_chunk=self.settings.prefill_chunk,
            max_context=1 << 24,
            prefix_cache=False,
        )
        self.scheduler = VerifyScheduler(self.engine.info, config)
        self.edges: dict[int, RateEdge] = {}
        self._begun_at: float | None = None  # when all prompts were read
        self._ended_at: float | None = None  # when the first text was done: from then on steps are smaller
        self._num_tokens = self._num_steps = self._num_nodes = 0
        self._in_engine = 0.0

    def run(self) -> dict[str, Any]:
        """Serve all sessions to their ends; return the figures of the time while all of them wrote."""
        for key, prompt in enumerate(self.prompts, start=1):
            self._open(key, prompt)
        while not self.scheduler.idle:
            self._step()
        seconds = (self._ended_at or time.perf_counter()) - (self._begun_at or 0.0)
        steps = max(1, self._num_steps)
        return {
            "sessions": len(self.prompts),
            "acceptance": None if self.texts is None else self.acceptance,
            "tokens_per_second": round(self._num_tokens / seconds, 1),
            "tokens_per_step_and_session": round(self._num_tokens / steps / len(self.prompts), 3),
            "nodes_per_step_and_session": round(self._num_nodes / steps / len(self.prompts), 3),
            "step_ms": round(seconds / steps * 1e3, 3),
            "engine_ms": round(self._in_engine / steps * 1e3, 3),
            "same_text": None if self.texts is None else self._same_texts(),
        }

    def written(self) -> Texts:
        """Return each session's text, prompt included."""
        return [prompt + self.edges[key].written for key, prompt in enumerate(self.prompts, start=1)]

    def _open(self, key: int, prompt: list[int]) -> None:
        sampling = SamplingParams(max_tokens=self.settings.text_tokens, ignore_eos=True)
        text = [] if self.texts is None else self.texts[key - 1]
        random = np.random.default_rng(key)
        at = len(prompt) - 1
        edge = RateEdge(text, self.acceptance, self.settings.draft_nodes, random, tip=at, seen=at)
        self.edges[key] = edge
        now = time.perf_counter()
        self.scheduler.on_connect(key, now)
        self.scheduler.on_open(key, Open(tuple(prompt), sampling, b""), now)
        self._propose(key, edge)
        self._carry_out()

    def _step(self) -> None:
        plan = self.scheduler.next_step(time.perf_counter())
        if plan is None:
            raise RuntimeError("the scheduler has nothing to do and sessions are open")
        writing = all(len(item.outputs) for item in plan.items) and len(plan.items) == len(self.prompts)
        if writing and self._begun_at is None:
            self._begun_at = time.perf_counter()
        begun_at = time.perf_counter()
        result = self.engine.evaluate(plan)
        ended_at = time.perf_counter()
        if self._begun_at is not None and self._ended_at is None:
            self._in_engine += ended_at - begun_at
            self._num_steps += 1
            self._num_nodes += plan.num_outputs
        self.scheduler.on_step_done(result, ended_at)
        self._carry_out()

    def _carry_out(self) -> None:
        effects = self.scheduler.effects()
        for effect in effects:
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                self._commit(effect.session, effect.message)
            elif isinstance(effect, End) and effect.error is not None:
                raise effect.error
        if self._ended_at is None and any(isinstance(effect, End) for effect in effects):
            self._ended_at = time.perf_counter()

    def _commit(self, key: int, message: Commit) -> None:
        if self._begun_at is not None and self._ended_at is None:
            self._num_tokens += len(message.tokens)
        edge = self.edges[key]
        edge.on_commit(message.tokens)
        self._propose(key, edge)

    def _propose(self, key: int, edge: RateEdge) -> None:
        message = edge.propose() if edge.text else None
        if message is not None:
            self.scheduler.on_propose(key, message, time.perf_counter())

    def _same_texts(self) -> bool:
        return self.written() == self.texts


def prompts_of(count: int, settings: GpuSettings) -> Texts:
    random = np.random.default_rng(7)
    size = (count, settings.prompt_tokens)
    return [list(map(int, row)) for row in random.integers(settings.shape.vocab_size, size=size)]


def slots_for(count: int, settings: GpuSettings) -> int:
    """Return the KV slots of so many sessions with all their nodes."""
    return count * (settings.prompt_tokens + settings.text_tokens + settings.draft_nodes + 2) + 64
