"""Decide which sessions are admitted, and when refused callers come again. A tenant's own limits are those of
`Tenants`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.quotas import MOST_AHEAD
from common.errors import CapacityError, Code, PeerError, UnavailableError, UserError
from common.estimators import IntervalEstimator
from common.messages import Open


@dataclass(frozen=True, slots=True)
class Caller:
    """Identifies a caller by what the driver has verified, never by what the edge claims."""

    tenant: str = ""  # owner of limits and cache; callers without identity share the empty name
    deadline_at: float | None = None  # seconds; the caller's deadline
    connection: str = ""  # the caller's connection; connections of one tenant take turns when calls queue

    def check_deadline(self, now: float) -> None:
        """Raise `UnavailableError` if the call's deadline has passed."""
        if self.deadline_at is not None and self.deadline_at <= now:
            raise UnavailableError("the call's deadline has passed", Code.DEADLINE_EXCEEDED)


ANYBODY = Caller()


@dataclass(frozen=True, slots=True)
class Need:
    """Counts the KV slots that a session asks for."""

    most: int  # for a text of max_tokens
    promised: int  # reserved at admission


def need_of(request: Open, config: SchedulerConfig) -> Need:
    """Return the KV slots for prompt, text and one step's nodes; `promised` holds only part of the text."""
    written = len(request.prompt) + len(request.committed)
    left = request.sampling.max_tokens - len(request.committed)
    nodes = config.max_nodes_per_session
    return Need(written + left + nodes, written + min(left, config.promised_text) + nodes)


def longest_session(max_positions: int, num_slots: int, config: SchedulerConfig) -> int:
    """Return the most positions of prompt and text that a verifier admits; 0 if no session fits."""
    return max(0, min(max_positions, num_slots - config.max_nodes_per_session))


def check_room(num_sessions: int, config: SchedulerConfig) -> None:
    """Raise `CapacityError` if the verifier has all its sessions."""
    if num_sessions >= config.max_sessions:
        raise CapacityError(
            f"all {config.max_sessions} sessions of this verifier (--max-sessions) are taken; try later"
        )


def check_draining(draining: bool) -> None:
    """Raise `UnavailableError` if the verifier is draining."""
    if draining:
        raise UnavailableError("this verifier is draining; reconnect to another one")


def check_open(request: Open, info: TargetInfo, config: SchedulerConfig) -> None:
    """Raise a `ForerunError` with the reason if this verifier can never serve `request`."""
    if request.model and request.model != info.name:
        message = f"model {request.model!r} is not served here; this is {info.name!r}"
        raise UserError(message, Code.NOT_FOUND)
    if request.fingerprint != info.fingerprint:
        raise UserError(
            f"tokenizer mismatch: the edge's fingerprint is {request.fingerprint.hex()}, the target's "
            f"{info.fingerprint.hex()}; use a draft model with the target's tokenizer",
            Code.FAILED_PRECONDITION,
        )
    _check_length(request, info.max_positions)
    _check_tokens(request, info.vocab_size)
    rule = request.acceptance.rule
    if rule not in config.rules:
        raise UserError(
            f"the {'' if rule.lossless else 'lossy '}acceptance rule {rule.title} is not allowed on this "
            f"verifier; it allows {', '.join(allowed.title for allowed in config.rules)}",
            Code.FAILED_PRECONDITION,
        )
    if (most := need_of(request, config).most) > info.num_slots:
        raise UserError(
            f"this session may need {most} KV slots and the verifier has {info.num_slots} in all; "
            "shorten the prompt, ask for fewer max_tokens, or start `forerun verify` with more --slots",
            Code.OUT_OF_RANGE,
        )


def check_count(num_prompt: int, num_committed: int, limit: int) -> None:
    """Raise `UserError` for more tokens than the target has positions."""
    if num_prompt + num_committed > limit:
        raise UserError(
            f"{num_prompt + num_committed} tokens of prompt and text exceed the target's {limit} positions; "
            "shorten the prompt",
            Code.OUT_OF_RANGE,
        )


def _check_length(request: Open, limit: int) -> None:
    prompt, text = len(request.prompt), request.sampling.max_tokens
    if not prompt:
        raise UserError("the prompt is empty; at least one token is needed")
    if prompt + text > limit:
        raise UserError(
            f"prompt of {prompt} tokens and max_tokens {text} exceed the target's {limit} positions; "
            "shorten the prompt or ask for less",
            Code.OUT_OF_RANGE,
        )
    if len(request.committed) > text:
        message = f"{len(request.committed)} committed tokens exceed max_tokens {text}"
        raise PeerError(message, Code.OUT_OF_RANGE)


def _check_tokens(request: Open, vocab_size: int) -> None:
    sampling = request.sampling
    biased = [token for token, _ in sampling.logit_bias]
    named = (("prompt", request.prompt), ("committed", request.committed), ("logit_bias", biased))
    for name, tokens in (*named, ("stop_token_ids", sampling.stop_token_ids)):
        outside = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if outside is not None:
            message = (
                f"{name} holds token id {outside}; this target's vocabulary has ids 0 to {vocab_size - 1}"
            )
            raise UserError(message, Code.OUT_OF_RANGE)


# When callers without room come again.

MOST_SPACING = 0.25
"""Most seconds between the retry times of two callers without room."""

LEAST_TURN = 0.05
"""Seconds until the first retry time of callers without room."""


@dataclass(slots=True)
class RetryTimes:
    """Gives each caller without room a retry time of its own."""

    last_at: float = -math.inf  # seconds; the latest retry time given

    def next(self, now: float, interval: float) -> float:
        """Return the seconds until the caller's retry; a place becomes free every `interval` seconds."""
        first = now + min(max(interval, LEAST_TURN), MOST_AHEAD)
        after = self.last_at + min(interval, MOST_SPACING)
        self.last_at = after if first <= after <= first + MOST_AHEAD else first
        return self.last_at - now


RETRY_AFTER = 1.0  # seconds, until the rate of ending sessions is known


class Vacancies:
    """Tells callers without room when to come again, by how often sessions end."""

    def __init__(self) -> None:
        self._between_ends = IntervalEstimator(RETRY_AFTER)
        self._times = RetryTimes()
        self._last_end_at: float | None = None

    def session_ended(self, now: float) -> None:
        if self._last_end_at is not None:
            self._between_ends.sample(now - self._last_end_at)
        self._last_end_at = now

    def advise(self, error: CapacityError, now: float) -> None:
        """Give the error a retry time, unless it has one."""
        if error.retry_after is None:
            error.retry_after = self._times.next(now, self._between_ends.smoothed)
