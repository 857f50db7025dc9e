"""A scheduler that keeps the texts of tenants which agreed, with the target's distributions, for training.

It asks the engine for the likeliest tokens of each choice, and takes them out of the messages again. So an
edge gets what it asked for, and no decision changes. docs/verifier.md says what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cloud_verifier.core.admission import ANYBODY, Caller
from cloud_verifier.core.effects import Effect, Reply
from cloud_verifier.core.engine_protocol import FloatArray, IntArray, TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.quotas import NO_TEXTS, PROMPTS, Quotas
from cloud_verifier.core.scheduler import VerifyScheduler
from common.messages import MAX_TOP_LOGPROBS, Commit, Open
from schemes.training_log.records import LoggedText, LogKey, LogWriter

MOST_PROMPT, MOST_TEXT = 1024, 2048
"""Tokens that are kept of one text and of what stands before it. Longer ones would teach little more."""

LEAST_TEXT = 4  # tokens; shorter texts are not kept

MB = 1_000_000


@dataclass(slots=True)
class TextSoFar:
    """Holds what is kept of a text that is being written."""

    tenant: str
    asked: int | None  # log-probabilities that the edge wants of each token
    prompt: Sequence[int]  # empty without consent
    step_us: int = 0  # shortest step so far
    tokens: list[int] = field(default_factory=list)
    best: list[IntArray] = field(default_factory=list)  # [n, K] of each message
    logprobs: list[FloatArray] = field(default_factory=list)

    def take(self, commit: Commit) -> Commit:
        """Keep the message's tokens and distributions. Return it as the edge wants it."""
        tops = [each.top for each in commit.logprobs]
        if tops and len(self.tokens) < MOST_TEXT:
            pairs = np.array(tops, np.float64)  # [n, K, 2]; exact for ids
            self.tokens += commit.tokens
            self.best.append(pairs[..., 0].astype(np.int32))
            self.logprobs.append(pairs[..., 1].astype(np.float32))
            self.step_us = min(self.step_us or commit.compute_us, commit.compute_us)
        most = self.asked
        told = () if most is None else tuple(replace(each, top=each.top[:most]) for each in commit.logprobs)
        return replace(commit, logprobs=told)


class LoggingScheduler(VerifyScheduler):
    """Is driven as `VerifyScheduler`, and puts texts that have ended into a log."""

    def __init__(self, info: TargetInfo, config: SchedulerConfig, log: LogWriter) -> None:
        super().__init__(info, config)
        self._log = log
        self._agreed = Quotas()
        self._texts = dict[int, TextSoFar]()  # of open sessions whose tenants agreed

    def on_quotas(self, quotas: Quotas, now: float) -> None:
        super().on_quotas(quotas, now)
        self._agreed = quotas

    def on_open(
        self, key: int, request: Open, now: float, caller: Caller = ANYBODY, came_at: float | None = None
    ) -> None:
        consent = self._agreed.of(caller.tenant).training_log
        wanted = request if consent == NO_TEXTS else replace(request, logprobs=MAX_TOP_LOGPROBS)
        super().on_open(key, wanted, now, caller, came_at)
        if consent != NO_TEXTS and key in self.sessions:
            before = (*request.prompt, *request.committed) if consent == PROMPTS else ()
            self._texts[key] = TextSoFar(caller.tenant, request.logprobs, before[-MOST_PROMPT:])

    def effects(self) -> list[Effect]:
        effects = super().effects()
        if not self._texts:
            return effects
        seen = [self._seen(effect) for effect in effects]
        for key in [key for key in self._texts if key not in self.sessions]:
            self._keep(self._texts.pop(key))
        return seen

    def _seen(self, effect: Effect) -> Effect:
        """Return an effect as the edge wants it, after its tokens were kept."""
        if isinstance(effect, Reply) and isinstance(effect.message, Commit) and effect.session in self._texts:
            return Reply(effect.session, self._texts[effect.session].take(effect.message))
        return effect

    def _keep(self, text: TextSoFar) -> None:
        """Put a text that has ended into the log, as far as its tenant still agrees."""
        consent = self._agreed.of(text.tenant).training_log
        if consent == NO_TEXTS or len(text.tokens) < LEAST_TEXT:
            return
        logged = LoggedText(
            self.info.name,
            self.info.fingerprint,
            text.step_us / 1e6,
            np.array(text.prompt if consent == PROMPTS else (), np.int32),
            np.array(text.tokens, np.int32),
            np.concatenate(text.best),
            np.concatenate(text.logprobs),
        )
        self._log.put(text.tenant, logged)


class TrainingLog:
    """Opens a log for one verifier. Raises `UserError` for a folder or a key that cannot be used.

    Args: folder; most_mb: of all its files, megabytes; key: a file with 64 hex digits, or None.
    """

    def __init__(self, folder: Path, most_mb: int, key: Path | None = None) -> None:
        self.writer = LogWriter(folder, most_mb * MB, None if key is None else LogKey(key))

    def scheduler(self, info: TargetInfo, config: SchedulerConfig) -> LoggingScheduler:
        """Return a scheduler whose texts go to the log."""
        return LoggingScheduler(info, config, self.writer)
