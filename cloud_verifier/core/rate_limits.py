"""Hold each tenant to its quota of evaluated positions and sessions a second.

A position is a row of the target: of a prompt, of the text, or of a draft, accepted or not. Each tenant has a
token bucket of positions (as in RFC 2697). The bucket fills at the tenant's rate up to its burst, and a step
takes its positions before it runs. So in any w seconds a tenant gets at most rate * w + burst. Sessions whose
bucket is empty wait; they are not ended. A second bucket counts sessions: each stream takes one as it begins.
If that bucket is empty, the stream is refused, and the error says when to retry.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cloud_verifier.core.batching import StepDraft
from cloud_verifier.core.nouns import StepPlan
from cloud_verifier.core.session import VerifySession
from cloud_verifier.core.tenants import Tenant
from common.config.setting import check_section, setting
from common.errors import CapacityError, Code, UserError
from common.estimators import IntervalEstimator
from common.messages import Open
from common.tree import Node

MAX_BUCKETS = 4096
"""Buckets above which full ones are forgotten from time to time. A new bucket is full, too."""

MOST = 2**53
"""Upper limit of any number in a quota. Floats represent all integers up to it."""

MOST_AHEAD = 30.0
"""Seconds: the longest retry time that a refused caller gets, since earlier callers may have given up."""

MOST_SPACING = 0.25
"""Most seconds between the retry times of two callers that found no room."""

LEAST_TURN = 0.05
"""Seconds until the first retry time of callers that found no room."""

LEAST_WAIT = 1e-3
"""Seconds until an empty bucket is checked again: below a step's duration, above a clock's resolution."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Holds a number per second, and a number at once after a pause."""

    per_second: float
    burst: float


_count = partial(setting, None, low=1, high=MOST)
_rate_of = partial(setting, None, above=0.0, high=MOST)


@dataclass(frozen=True, slots=True)
class Quota:
    """Holds the limits of one tenant; None is no limit. Raises `UserError` for a number out of range."""

    max_sessions: int | None = _count("sessions open at once", unit="sessions")
    max_share: float | None = setting(
        None, "share of the KV slots; one session is always allowed", above=0.0, high=1.0
    )
    max_tokens: int | None = _count("length of one text", unit="tokens")
    positions_per_second: float | None = _rate_of("evaluated positions", unit="positions a second")
    burst: int | None = _count(
        "positions at once after a pause; by default as many as a second brings", unit="positions"
    )
    sessions_per_second: float | None = _rate_of(
        "requested sessions, resumed and refused ones included", unit="sessions a second"
    )
    session_burst: int | None = _count(
        "sessions at once after a pause; by default as many as a second brings", unit="sessions"
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.burst is not None and self.positions_per_second is None:
            raise UserError("burst needs positions_per_second beside it; give both")
        if self.session_burst is not None and self.sessions_per_second is None:
            raise UserError("session_burst needs sessions_per_second beside it; give both")

    @property
    def positions(self) -> Rate | None:
        return _rate(self.positions_per_second, self.burst)

    @property
    def sessions(self) -> Rate | None:
        return _rate(self.sessions_per_second, self.session_burst)


def _rate(per_second: float | None, burst: int | None) -> Rate | None:
    """Return the rate with a burst of at least 1: a smaller bucket would never hold a whole unit."""
    if per_second is None:
        return None
    return Rate(per_second, max(1.0, per_second) if burst is None else float(burst))


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Quotas:
    """Holds the quotas of all tenants."""

    default: Quota = NO_QUOTA
    tenants: Mapping[str, Quota] = field(default_factory=dict)  # tenants with a quota of their own

    def of(self, tenant: str) -> Quota:
        return self.tenants.get(tenant, self.default)


@dataclass(slots=True)
class TokenBucket:
    """Holds the rest of a tenant's quota as of `at` seconds."""

    rate: Rate
    level: float
    at: float
    last_turn_at: float = -math.inf  # the latest retry time given to a refused caller

    def fill(self, now: float) -> float:
        """Fill the bucket up to `now` and return its level."""
        added = max(0.0, now - self.at) * self.rate.per_second
        self.level = min(self.rate.burst, self.level + added)
        self.at = max(self.at, now)
        return self.level


@dataclass(slots=True)
class RetryTimes:
    """Gives each caller that found no room a retry time of its own."""

    last_at: float = -math.inf  # seconds; the latest retry time given

    def next(self, now: float, interval: float) -> float:
        """Return the seconds until the caller's retry; a place becomes free every `interval` seconds."""
        first = now + min(max(interval, LEAST_TURN), MOST_AHEAD)
        after = self.last_at + min(interval, MOST_SPACING)
        self.last_at = after if first <= after <= first + MOST_AHEAD else first
        return self.last_at - now


RETRY_AFTER = 1.0  # seconds, until the rate of ending sessions is known


class Vacancies:
    """Tells callers that found no room when to come again, by how often sessions end."""

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


class Meters:
    """Holds the buckets of all tenants for one resource; `rate_of` gives a tenant's rate of it, or None.

    For positions the caller uses `room` before it plans a step and `take` afterwards. For sessions it uses
    `room` and `take` as a stream begins, and `turn` for a refused stream. `change` sets new rates.
    """

    def __init__(self, rate_of: Callable[[str], Rate | None]) -> None:
        self._rate_of = rate_of
        self._buckets = OrderedDict[str, TokenBucket]()  # the least recently used first
        self._look_at = MAX_BUCKETS  # number of buckets that triggers the next clean-up

    def change(self, rate_of: Callable[[str], Rate | None], now: float) -> None:
        """Use the rates of `rate_of` from now on. Bucket levels stay, up to the new burst."""
        self._rate_of = rate_of
        for name, bucket in [*self._buckets.items()]:
            bucket.fill(now)
            rate = rate_of(name)
            if rate is None:
                del self._buckets[name]
            else:
                bucket.rate, bucket.level = rate, min(bucket.level, rate.burst)

    def room(self, tenant: str, now: float) -> int | None:
        """Return how many the tenant may have now; None for any number."""
        bucket = self._bucket(tenant, now)
        return None if bucket is None else int(bucket.fill(now))

    def wait(self, tenant: str, count: int, now: float) -> float:
        """Return the seconds until the tenant may have `count`, or its whole burst."""
        bucket = self._bucket(tenant, now)
        if bucket is None:
            return 0.0
        lacking = min(float(count), bucket.rate.burst) - bucket.fill(now)
        return max(LEAST_WAIT, lacking / bucket.rate.per_second) if lacking > 0 else 0.0

    def turn(self, tenant: str, now: float) -> float:
        """Return the seconds until a refused caller should retry; each caller gets a time of its own."""
        bucket = self._bucket(tenant, now)
        if bucket is None:
            return 0.0
        first = now + self.wait(tenant, 1, now)
        after_the_last = bucket.last_turn_at + 1.0 / bucket.rate.per_second
        bucket.last_turn_at = max(first, min(after_the_last, now + MOST_AHEAD))
        return bucket.last_turn_at - now

    def take(self, counts: Mapping[str, int]) -> None:
        """Take `counts` from the tenants' buckets, at most what `room` returned. A negative count returns
        what was taken for a step that will not run."""
        for tenant, count in counts.items():
            if (bucket := self._buckets.get(tenant)) is not None:
                bucket.level = min(bucket.rate.burst, bucket.level - count)

    def take_ahead(self, counts: Mapping[str, int]) -> bool:
        """Take `counts` for the step after the running one if the last known levels allow; else False."""
        if any(self._buckets[each].level < count for each, count in counts.items() if each in self._buckets):
            return False
        self.take(counts)
        return True

    def _bucket(self, tenant: str, now: float) -> TokenBucket | None:
        found = self._buckets.get(tenant)
        if found is not None:
            self._buckets.move_to_end(tenant)
            return found
        rate = self._rate_of(tenant)
        if rate is None:
            return None
        if len(self._buckets) >= self._look_at:
            self._forget_full(now)
            self._look_at = max(MAX_BUCKETS, 2 * len(self._buckets))  # a clean-up visits every bucket
        found = TokenBucket(rate, rate.burst, now)
        self._buckets[tenant] = found
        return found

    def _forget_full(self, now: float) -> None:
        for name in [name for name, each in self._buckets.items() if each.fill(now) >= each.rate.burst]:
            del self._buckets[name]


# Quotas are checked when a stream begins, and in each step.

LIMITS = ("max_sessions", "max_share", "max_tokens", "positions_per_second", "sessions_per_second")


class RateLimiter:
    """Holds each tenant to its quota. The scheduler calls `charge_stream` for each stream and `check` for its
    `Open`, then `let_in`, `trim` and `charge` for each step, in this order and with the same `now`.
    """

    def __init__(self) -> None:
        self._quotas = Quotas()
        self._streams = Meters(lambda tenant: None)  # requested sessions
        self.meters = Meters(lambda tenant: None)  # positions
        self.refused = Counter[str]()  # sessions, by the limit
        self.num_held = 0  # times that a session was ready for a step and its tenant's bucket was empty
        self._has_rates = False

    def change(self, quotas: Quotas, now: float) -> None:
        self._quotas = quotas
        self._streams.change(lambda tenant: quotas.of(tenant).sessions, now)
        self.meters.change(lambda tenant: quotas.of(tenant).positions, now)
        every = (quotas.default, *quotas.tenants.values())
        self._has_rates = any(each.positions_per_second is not None for each in every)

    def longest_text(self, tenant: str) -> int | None:
        """Return the most tokens of one text by the tenant's quota; None without such a limit."""
        return self._quotas.of(tenant).max_tokens

    # At the door ------------------------------------------------------------------------------------------

    def charge_stream(self, tenant: str, now: float) -> None:
        """Charge a stream that begins. Raises `CapacityError` if the tenant has begun too many."""
        if self._streams.room(tenant, now) == 0:
            rate = f"{self._quotas.of(tenant).sessions_per_second:g} sessions a second"
            words = f"this tenant has asked for the {rate} of its quota"
            self._refuse("sessions_per_second", words, self._streams.turn(tenant, now))
        self._streams.take({tenant: 1})

    def check(self, request: Open, promised: int, tenant: Tenant, num_slots: int, now: float) -> None:
        """Raise `CapacityError` if the tenant's quota is used up, `UserError` for a text that is too long.
        `promised` counts the slots to be reserved for the session, of `num_slots` in all."""
        quota = self._quotas.of(tenant.name)
        if quota is NO_QUOTA:
            return
        wanted = request.sampling.max_tokens
        if quota.max_tokens is not None and wanted > quota.max_tokens:
            self.refused["max_tokens"] += 1
            words = f"max_tokens is {wanted}, and this tenant's quota allows at most {quota.max_tokens}"
            raise UserError(words, Code.OUT_OF_RANGE)
        if quota.max_sessions is not None and tenant.num_sessions >= quota.max_sessions:
            words = f"this tenant has {tenant.num_sessions} sessions here, as many as its quota allows"
            self._refuse("max_sessions", words)
        if quota.max_share is not None and tenant.num_sessions:
            most = int(quota.max_share * num_slots)
            if tenant.num_slots + promised > most:
                words = f"this tenant holds {tenant.num_slots} KV slots here, and its quota allows {most}"
                self._refuse("max_share", words)
        if self.meters.room(tenant.name, now) == 0:
            rate = f"{quota.positions_per_second:g} positions a second"
            wait = self.meters.wait(tenant.name, len(request.prompt) + 1, now)
            self._refuse("positions_per_second", f"this tenant has used up the {rate} of its quota", wait)

    def _refuse(self, limit: str, words: str, retry_after: float | None = None) -> None:
        self.refused[limit] += 1
        raise CapacityError(f"{words}; try later", retry_after=retry_after)

    # In a step --------------------------------------------------------------------------------------------

    def let_in(self, ready: list[VerifySession], now: float) -> tuple[list[VerifySession], float | None]:
        """Return the sessions of `ready` whose tenants may have a position, and when more may have one."""
        if not self._has_rates:
            return ready, None
        let, held, rooms = list[VerifySession](), Counter[str](), dict[str, int | None]()
        for session in ready:
            name = session.tenant
            room = rooms[name] if name in rooms else self.meters.room(name, now)
            if room == 0:
                held[name] += 1
            else:
                let.append(session)
            rooms[name] = room - 1 if room else room
        self.num_held += held.total()
        waits = [self.meters.wait(name, count, now) for name, count in held.items()]
        return let, now + min(waits) if waits else None

    def trim(self, batch: StepDraft, now: float) -> StepDraft:
        """Return the batch cut down to each tenant's quota. Each session keeps one position of its prompt, or
        its tip. Drafts are cut first."""
        if not self._has_rates:
            return batch
        chunks, nodes = dict(batch.chunks), dict(batch.nodes)
        by_tenant = dict[str, list[VerifySession]]()
        for session in batch.members:
            by_tenant.setdefault(session.tenant, []).append(session)
        for name, members in by_tenant.items():
            room = self.meters.room(name, now)
            num_rows = sum(chunks.get(each.key, 0) + len(nodes.get(each.key, ())) for each in members)
            if room is not None and num_rows > room:
                _cut(members, room, chunks, nodes)
        return replace(batch, chunks=chunks, nodes=nodes)

    def charge(self, members: Sequence[VerifySession], plan: StepPlan) -> None:
        if self._has_rates:
            counts = Counter[str]()
            for session, item in zip(members, plan.items, strict=True):
                counts[session.tenant] += len(item.tokens)
            self.meters.take(counts)

    def charge_ahead(self, sessions: Iterable[VerifySession]) -> bool:
        """Charge a step of these sessions' tips and return True, or return False if a quota forbids it."""
        return not self._has_rates or self.meters.take_ahead(Counter(each.tenant for each in sessions))

    def give_back(self, sessions: Iterable[VerifySession]) -> None:
        """Return what `charge_ahead` took, because the step will not run."""
        if self._has_rates:
            num_sessions = Counter(each.tenant for each in sessions)
            self.meters.take({tenant: -number for tenant, number in num_sessions.items()})


def _cut(
    members: Sequence[VerifySession], room: int, chunks: dict[int, int], nodes: dict[int, Sequence[Node]]
) -> None:
    """Cut chunks and nodes to `room` positions, at least one for each member."""
    spare = room - len(members)
    for session in members:
        key = session.key
        if chunk := chunks.get(key, 0):
            chunks[key] = 1 + min(chunk - 1, spare)
            spare -= chunks[key] - 1
            if key in nodes and (chunks[key] < chunk or not spare):
                del nodes[key]  # its tip comes after its prompt
            elif key in nodes:
                spare -= 1
    for session in members:
        if len(taken := nodes.get(session.key, ())) > 1:
            kept = min(len(taken) - 1, spare)
            spare -= kept
            nodes[session.key] = taken[: 1 + kept]
            session.account.promise(session.tree, taken[1 : 1 + kept])
