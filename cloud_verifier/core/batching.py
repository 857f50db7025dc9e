"""Choose the sessions of a step and their prompt chunks, before draft rows compete for the rest."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.verify_session import VerifySession
from common.tree import Node

# After the engine has run out of memory a step may have half its rows, and then slowly more again.

RECOVERY = 1.02  # times, for each step that went well: doubled in 35 steps


class OomBackoff:
    """Limits the rows of a step after the engine ran out of memory. `usual` is the limit without failures."""

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._most = float(usual)

    @property
    def active(self) -> bool:
        return self._most < self._usual

    def left(self, wanted: int, num_taken: int) -> int:
        """Return how many of `wanted` rows fit into a step that has `num_taken` already."""
        return max(0, min(wanted, int(self._most) - num_taken))

    def on_failure(self, num_rows: int) -> bool:
        """Halve the limit after a step of `num_rows` did not fit. Return whether a smaller step could fit."""
        self._most = max(1.0, num_rows / 2)
        return num_rows > 1

    def on_success(self) -> None:
        self._most = min(self._usual, self._most * RECOVERY)


LEAST_PREFILL = 1
"""Prompt tokens that every step reads at least, so that each prompt is finished."""

LONE_CHUNKS = 4
"""Factor on `prefill_chunk` while only one session is open. Every step has a fixed cost, which a prompt of
16,000 tokens pays 63 times at 256 a step."""

LONE_TIME = 0.2
"""Seconds that the tokens above `prefill_chunk` may add to such a step. A session that opens meanwhile has to
wait for its end."""

NOBODY_SPARED: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class StepDraft:
    """Holds a step under planning (`core.planning`): its sessions, and what it evaluates of each."""

    members: tuple[VerifySession, ...]  # all, in the order of their items
    decoding: tuple[VerifySession, ...]  # sessions that evaluate their tip
    bearing: Sequence[VerifySession]  # ready sessions that the drafts of others delay
    reading: Sequence[VerifySession]  # the other ready sessions: their prompts do not end in this step
    chunks: dict[int, int]  # prompt tokens, by session key
    spared: Mapping[int, float]  # share of others' drafts that does not delay the session, by key
    nodes: Mapping[int, Sequence[Node]] = field(default_factory=dict)  # by session key; the tip first
    longer: float = 0.0  # share of a step of tips by which its drafts make it longer


class Batcher:
    """Fills a step with tips first, since each commits for certain, and then with prompt tokens up to a time.

    Args: config; rows, the limit of rows a step; cost, of steps; rows_per_read, `TargetInfo`'s; service,
    which gives the rows evaluated for a tenant so far.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        rows: OomBackoff,
        cost: StepCost,
        rows_per_read: int,
        service: Callable[[str], float],
    ) -> None:
        self._config = config
        self.rows = rows
        self._cost = cost
        self._rows_per_read = rows_per_read
        self._service_of = service
        self._owed = 0.0  # seconds left over from `keep_pace`, less than one prompt token takes

    def batch(self, ready: Sequence[VerifySession], alone: bool = False) -> StepDraft:
        """Choose the step's sessions from `ready`, least recently served first. `alone`: only one is open."""
        tips, reading = list[VerifySession](), list[VerifySession]()
        for session in ready:
            (reading if session.num_prefill else tips).append(session)
        tips = self._tips(tips)
        if not reading:
            taken = tuple(ready) if len(tips) == len(ready) else _of(ready, {session.key for session in tips})
            return StepDraft(taken, taken, ready, (), {}, NOBODY_SPARED)
        chunk = self._lone_chunk(reading[0]) if alone else self._config.chunk
        left = _Allowance(self.rows.left(chunk, len(tips)), self._prefill_time(tips, len(reading)))
        chunks = dict[int, int]()
        self._read_all(reading, left, chunks)
        room = self.rows.left(self._config.max_rows - len(tips), len(tips) + sum(chunks.values()))
        read = [each for each in ready if chunks.get(each.key) == each.num_prefill and each.may_evaluate_tip]
        keys = {session.key for session in (*tips, *read[:room])}
        return StepDraft(
            members=_of(ready, {*keys, *chunks}),
            decoding=_of(ready, keys),
            bearing=[session for session in ready if session.key in keys or not session.num_prefill],
            reading=[session for session in reading if session.key not in keys],
            chunks=chunks,
            spared=NOBODY_SPARED,
        )

    def keep_pace(self, draft: StepDraft) -> StepDraft:
        """Return the draft with longer prompt chunks, because its nodes make the step longer.

        Prompts keep their share of the longer step, so nodes do not slow them down. A prompt that ends early
        evaluates its tip in the same step."""
        longer, num_nodes = draft.longer, sum(map(len, draft.nodes.values()))
        sessions = {session.key: session for session in draft.members}
        owed = self._owed + longer * sum(
            count * self._token_time(sessions[key]) for key, count in draft.chunks.items()
        )
        chunks, num_rows = dict(draft.chunks), num_nodes + sum(draft.chunks.values())
        most = self._config.max_rows + self._config.chunk - num_rows
        left = _Allowance(self.rows.left(most, num_rows), owed, certain=0)
        self._read_all(draft.reading, left, chunks)
        unread = [each for each in draft.reading if chunks.get(each.key, 0) < each.num_prefill]
        full = unread and not left.tokens
        self._owed = left.seconds if unread and not full else 0.0
        kept = 1.0 - left.seconds / owed if full and owed else 1.0
        ended = [each for each in draft.reading if each not in unread and each.may_evaluate_tip]
        room = self.rows.left(max(0, self._config.max_rows - num_nodes), num_nodes + sum(chunks.values()))
        ended = ended[:room]
        spared = {session.key: kept for session in draft.reading}
        spared.update((session.key, min(1.0, 1.0 / longer)) for session in ended)
        late = [each for each in draft.reading if each.key in chunks and each.key not in draft.chunks]
        return replace(
            draft,
            members=(*draft.members, *late),
            decoding=(*draft.decoding, *ended),
            chunks=chunks,
            spared=spared,
            nodes={**draft.nodes, **{each.key: [each.tree.tip] for each in ended}},
        )

    def reads(self, plan: StepPlan) -> int:
        """Return the KV slots that a step reads; `rows_per_read` rows of an item share one read."""
        per = self._rows_per_read
        return sum(-(-len(item.tokens) // per) * len(item.prefix_slots) for item in plan.items)

    def _tips(self, sessions: list[VerifySession]) -> list[VerifySession]:
        """Return the sessions that fit, those of the least served tenants first."""
        most, left = self.rows.left(self._config.max_rows, 0), self._config.max_context
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
        """Add prompt tokens to `chunks`, by session key. The oldest session of the least served tenant reads
        first. If other sessions of its tenant read too, it gets half of the tokens, so that a short prompt
        need not wait for a long one."""
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
        usual, token_time = self._config.chunk, self._token_time(session)
        most = LONE_CHUNKS * usual
        return most if token_time * most <= LONE_TIME else max(usual, int(LONE_TIME / token_time))

    def _token_time(self, session: VerifySession) -> float:
        """Return the seconds that a prompt token of the session adds to a step, in the mean of a chunk: its
        first tokens wake most experts."""
        count = self._config.chunk
        return self._cost.more(count, count * len(session.lease.slots) / self._rows_per_read) / count

    def _prefill_time(self, tips: Sequence[VerifySession], num_reading: int) -> float:
        """Return the seconds that prompts may add to a step of these tips; infinite without tips.

        The limit grows with the number of readers, so a crowd of readers is not held back."""
        if not tips:
            return float("inf")
        step = self._cost.predict(len(tips), sum(len(session.lease.slots) for session in tips))
        return self._config.max_prefill_slowdown * (step + self._cost.more(num_reading, 0)) - step

    def _service(self, session: VerifySession) -> float:
        return self._service_of(session.tenant)


def _of(ready: Sequence[VerifySession], keys: Container[int]) -> tuple[VerifySession, ...]:
    return tuple(session for session in ready if session.key in keys)


def most_rows(config: SchedulerConfig) -> int:
    """Return the most rows that a step may have."""
    return max(config.max_rows + config.chunk, LONE_CHUNKS * config.chunk)


class _Allowance:
    """Counts the prompt tokens that a step may still take, by number and time; `certain` in any case."""

    def __init__(self, tokens: int, seconds: float, certain: int = LEAST_PREFILL) -> None:
        self.tokens, self.seconds = tokens, seconds  # left
        self._certain = min(tokens, certain)

    def take(self, wanted: int, token_time: float) -> int:
        """Return how many of `wanted` tokens fit; each takes `token_time` seconds."""
        fitting = int(self.seconds / token_time) if token_time * wanted > self.seconds else wanted
        count = min(wanted, self.tokens, max(fitting, self._certain, 0))
        self.tokens -= count
        self.seconds -= count * token_time
        self._certain = max(0, self._certain - count)
        return count
