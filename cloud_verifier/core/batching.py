"""Which sessions a step takes, and how much of each prompt: what must be decided before drafts compete."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.relief import Relief
from cloud_verifier.core.session import VerifySession
from cloud_verifier.core.target import StepPlan
from cloud_verifier.core.tenants import Tenants

LEAST_PREFILL = 1
"""Prompt tokens in a step at least, however short it should be: a prompt is read in the end."""

LONE_CHUNKS = 4
"""Times `prefill_chunk` that the only session reads in one step at most. Every step has a fixed cost,
which a prompt of 16,000 tokens pays 63 times at 256 a step."""

LONE_TIME = 0.2
"""Seconds that more tokens than `prefill_chunk` may add to such a step: a session that opens meanwhile waits
for its end."""

NOBODY_SPARED: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class Batch:
    """Who is in the next step."""

    members: tuple[VerifySession, ...]  # all, in the order of their items
    decoding: tuple[VerifySession, ...]  # those that evaluate their tip
    bearing: Sequence[VerifySession]  # of all that are ready, those whom drafts of others delay
    reading: Sequence[VerifySession]  # the others, whose prompts do not end in it: they can be kept in pace
    chunks: dict[int, int]  # prompt tokens, by session key
    spared: Mapping[int, float]  # what part of others' drafts does not delay it, by key


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
        self._owed = 0.0  # seconds, less than a prompt token takes: what keeping pace has left over

    def batch(self, ready: Sequence[VerifySession], alone: bool = False) -> Batch:
        """`ready` are those that a step could take, the least recently served first. `alone`: there is one
        session and no other could wait for the step."""
        tips, reading = list[VerifySession](), list[VerifySession]()
        for session in ready:
            (reading if session.num_prefill else tips).append(session)
        tips = self._tips(tips)
        if not reading:
            taken = ready if len(tips) == len(ready) else self._of(ready, {session.key for session in tips})
            return Batch(tuple(taken), tuple(taken), ready, (), {}, NOBODY_SPARED)
        chunk = self._lone_chunk(reading[0]) if alone else self._config.prefill_chunk
        left = _Allowance(self._rows.left(chunk, len(tips)), self._prefill_time(tips, len(reading)))
        chunks = dict[int, int]()
        self._read_all(reading, left, chunks)
        room = self._rows.left(self._config.max_rows - len(tips), len(tips) + sum(chunks.values()))
        read = [each for each in ready if chunks.get(each.key) == each.num_prefill and each.may_evaluate_tip]
        keys = {session.key for session in (*tips, *read[:room])}
        behind = [session for session in reading if session.key not in keys]
        spared = {session.key for session in behind}
        return Batch(
            members=self._of(ready, {*keys, *chunks}),
            decoding=self._of(ready, keys),
            bearing=[session for session in ready if session.key not in spared],
            reading=behind,
            chunks=chunks,
            spared=NOBODY_SPARED,
        )

    def keep_pace(self, batch: Batch, longer: float, num_nodes: int) -> Batch:
        """The batch in a step that drafts make longer by that share of it without them, of `num_nodes` tips
        and drafts: prompts have the same share of the longer step, so those that do not end in it are read as
        fast as without drafts. One that ends by that writes in it, too, which it would have done in the next
        one at the earliest."""
        if not longer or not batch.reading:
            return batch
        sessions = {session.key: session for session in batch.members}
        owed = self._owed + longer * sum(
            count * self._token_time(sessions[key]) for key, count in batch.chunks.items()
        )
        chunks, num_rows = dict(batch.chunks), num_nodes + sum(batch.chunks.values())
        most = self._config.max_rows + self._config.prefill_chunk - num_rows
        left = _Allowance(self._rows.left(most, num_rows), owed, certain=0)
        self._read_all(batch.reading, left, chunks)
        unread = [each for each in batch.reading if chunks.get(each.key, 0) < each.num_prefill]
        full = unread and not left.tokens
        self._owed = left.seconds if unread and not full else 0.0
        kept = 1.0 - left.seconds / owed if full and owed else 1.0
        ended = [each for each in batch.reading if each not in unread and each.may_evaluate_tip]
        ended = ended[
            : self._rows.left(max(0, self._config.max_rows - num_nodes), num_nodes + sum(chunks.values()))
        ]
        spared = {session.key: kept for session in batch.reading}
        spared.update((session.key, min(1.0, 1.0 / longer)) for session in ended)
        late = [each for each in batch.reading if each.key in chunks and each.key not in batch.chunks]
        return replace(
            batch,
            members=(*batch.members, *late),
            decoding=(*batch.decoding, *ended),
            chunks=chunks,
            spared=spared,
        )

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

    def _read_all(self, reading: Sequence[VerifySession], left: _Allowance, chunks: dict[int, int]) -> None:
        """Add to `chunks`, prompt tokens by session key. The oldest of the tenant that has had the least
        reads first; if it has others that wait, half of what there is, so that a short prompt need not wait
        for a long one to end."""
        first, *others = sorted(reading, key=lambda s: (self._service(s), s.opened_at, s.key))
        others.sort(key=lambda s: (self._service(s), s.num_prefill, s.opened_at, s.key))
        rivals = any(self._service(other) == self._service(first) for other in others)
        self._read(first, -(-left.tokens // 2) if rivals else left.tokens, left, chunks)
        for session in (*others, first):
            self._read(session, left.tokens, left, chunks)

    def _read(self, session: VerifySession, most: int, left: _Allowance, chunks: dict[int, int]) -> None:
        already = chunks.get(session.key, 0)
        count = left.take(min(most, session.num_prefill - already), self._token_time(session))
        if count:
            chunks[session.key] = already + count

    def _lone_chunk(self, session: VerifySession) -> int:
        """Prompt tokens in a step of a session that is alone."""
        usual, token_time = self._config.prefill_chunk, self._token_time(session)
        most = LONE_CHUNKS * usual
        return most if token_time * most <= LONE_TIME else max(usual, int(LONE_TIME / token_time))

    def _token_time(self, session: VerifySession) -> float:
        """Seconds by which one more prompt token of it makes a step longer."""
        return self._cost.more(1, len(session.lease.slots) / self._rows_per_read)

    def _prefill_time(self, tips: Sequence[VerifySession], num_reading: int) -> float:
        """Seconds that prompts may add to a step of these, drafts apart; without end if nobody waits for it.
        The step may be longer than one in which the readers wrote as well: so a crowd of readers is let in as
        fast as a crowd of writers would be served."""
        if not tips:
            return float("inf")
        step = self._cost.predict(len(tips), sum(len(session.lease.slots) for session in tips))
        return self._config.max_prefill_slowdown * (step + self._cost.more(num_reading, 0)) - step

    def _of(self, ready: Sequence[VerifySession], keys: Container[int]) -> tuple[VerifySession, ...]:
        return tuple(session for session in ready if session.key in keys)

    def _service(self, session: VerifySession) -> float:
        return self._tenants.get(session.tenant).service


def most_rows(config: SchedulerConfig) -> int:
    """Rows that a step may have at most."""
    return max(config.max_rows + config.prefill_chunk, LONE_CHUNKS * config.prefill_chunk)


class _Allowance:
    """Prompt tokens that a step may still take: so many, or as many as there is time for; `certain` in
    any case."""

    def __init__(self, tokens: int, seconds: float, certain: int = LEAST_PREFILL) -> None:
        self.tokens, self.seconds = tokens, seconds  # left
        self._certain = min(tokens, certain)

    def take(self, wanted: int, token_time: float) -> int:
        """How many of `wanted` tokens, each of which takes `token_time` seconds."""
        fitting = int(self.seconds / token_time) if token_time * wanted > self.seconds else wanted
        count = min(wanted, self.tokens, max(fitting, self._certain, 0))
        self.tokens -= count
        self.seconds -= count * token_time
        self._certain = max(0, self._certain - count)
        return count
