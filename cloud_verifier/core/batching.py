"""Which sessions a step takes, and how much of each prompt: what must be decided before drafts compete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.relief import Relief
from cloud_verifier.core.session import VerifySession
from cloud_verifier.core.target import StepPlan
from cloud_verifier.core.tenants import Tenants

LEAST_PREFILL = 1
"""Prompt tokens in a step at least, however short it should be: a prompt is read in the end."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Who is in the next step."""

    members: tuple[VerifySession, ...]  # all, in the order of their items
    decoding: tuple[VerifySession, ...]  # those that evaluate their tip
    chunks: dict[int, int]  # prompt tokens, by session key


class Batcher:
    """Tips first, as each commits for certain; then as much of the prompts as leaves the step short enough.

    Args: config; rows, how many a step may have; cost, of steps; rows_per_read, `TargetInfo`'s; tenants, who
    has had how much.
    """

    def __init__(
        self, config: SchedulerConfig, rows: Relief, cost: StepCost, rows_per_read: int, tenants: Tenants
    ) -> None:
        self._config = config
        self._rows = rows
        self._cost = cost
        self._rows_per_read = rows_per_read
        self._tenants = tenants

    def batch(self, ready: Sequence[VerifySession]) -> Batch:
        """`ready` are those that a step could take, the least recently served first."""
        tips, reading = list[VerifySession](), list[VerifySession]()
        for session in ready:
            (reading if session.num_prefill else tips).append(session)
        tips = self._tips(tips)
        if len(tips) == len(ready):
            return Batch(tuple(ready), tuple(ready), {})
        chunks = self._prefill_chunks(reading, tips)
        taken = len(tips) + sum(chunks.values())
        room = self._rows.left(self._config.max_rows - len(tips), taken)
        read = [each for each in ready if chunks.get(each.key) == each.num_prefill and each.may_evaluate_tip]
        keys = {session.key for session in (*tips, *read[:room])}
        decoding = tuple(session for session in ready if session.key in keys)
        members = tuple(each for each in ready if each.key in keys or chunks.get(each.key))
        return Batch(members, decoding, chunks)

    def reads(self, plan: StepPlan) -> int:
        """KV slots that a step reads, those of one item again for every `rows_per_read` of its rows."""
        per = self._rows_per_read
        return sum(-(-len(item.tokens) // per) * len(item.prefix_slots) for item in plan.items)

    def _tips(self, sessions: list[VerifySession]) -> list[VerifySession]:
        """As many as fit; if not all do, of the tenants that have had the least."""
        most, left = self._rows.left(self._config.max_rows, 0), self._config.max_context
        if len(sessions) <= most and sum(len(session.lease.slots) for session in sessions) <= left:
            return sessions
        fitting = list[VerifySession]()
        for session in sorted(sessions, key=self._service):
            left -= len(session.lease.slots)
            if fitting and (left < 0 or len(fitting) == most):
                break
            fitting.append(session)
        return fitting

    def _prefill_chunks(self, reading: list[VerifySession], tips: Sequence[VerifySession]) -> dict[int, int]:
        """Prompt tokens by session key. The oldest of the tenant that has had the least reads first; if it
        has others that wait, half of what there is, so that a short prompt need not wait for a long one to
        end."""
        if not reading:
            return {}
        chunk = self._rows.left(self._config.prefill_chunk, len(tips))
        left = _Allowance(chunk, self._prefill_time(tips, len(reading)))
        first, *others = sorted(reading, key=lambda s: (self._service(s), s.opened_at, s.key))
        others.sort(key=lambda s: (self._service(s), s.num_prefill, s.opened_at, s.key))
        chunks = dict[int, int]()
        rivals = any(self._service(other) == self._service(first) for other in others)
        half = -(-chunk // 2) if rivals else chunk
        self._read(first, half, left, chunks)
        for session in (*others, first):
            self._read(session, chunk, left, chunks)
        return chunks

    def _read(self, session: VerifySession, most: int, left: _Allowance, chunks: dict[int, int]) -> None:
        token_time = self._cost.more(1, len(session.lease.slots) / self._rows_per_read)
        already = chunks.get(session.key, 0)
        count = left.take(min(most, session.num_prefill - already), token_time)
        if count:
            chunks[session.key] = already + count

    def _prefill_time(self, tips: Sequence[VerifySession], num_reading: int) -> float:
        """Seconds that prompts may add to a step of these and the drafts that they usually have; without end
        if nobody waits for it. The step may be longer than one in which the readers wrote as well: so a crowd
        of readers is let in as fast as a crowd of writers would be served."""
        if not tips:
            return float("inf")
        drafts = sum((session.rows_taken for session in tips), 0.0)
        step = self._cost.predict(len(tips) + drafts, sum(len(session.lease.slots) for session in tips))
        return self._config.max_prefill_slowdown * (step + self._cost.more(num_reading, 0)) - step

    def _service(self, session: VerifySession) -> float:
        return self._tenants.get(session.tenant).service


class _Allowance:
    """Prompt tokens that a step may still take: so many, or as many as there is time for; a few in any
    case."""

    def __init__(self, tokens: int, seconds: float) -> None:
        self._tokens, self._seconds = tokens, seconds
        self._certain = min(tokens, LEAST_PREFILL)

    def take(self, wanted: int, token_time: float) -> int:
        """How many of `wanted` tokens, each of which takes `token_time` seconds."""
        fitting = int(self._seconds / token_time) if token_time * wanted > self._seconds else wanted
        count = min(wanted, self._tokens, max(fitting, self._certain, 0))
        self._tokens -= count
        self._seconds -= count * token_time
        self._certain = max(0, self._certain - count)
        return count
