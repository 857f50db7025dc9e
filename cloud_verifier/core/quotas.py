"""What each tenant may have, and meters that hold it to so many evaluated positions and sessions a second.

A position is a row of the target: of a prompt, of the text, or of a draft, whether or not it came to be
text. Each tenant has a bucket of them (the token bucket of RFC 2697's lineage): it fills at the tenant's
rate up to its burst, and a step takes from it as many as it evaluates, before it does. So over any stretch
of time of w seconds a tenant has no more than rate * w + burst. Whose bucket is empty waits; it is not
ended. Sessions have a bucket of their own, from which each stream takes one as it begins, whatever becomes of
it; who finds it empty is refused, and told when its turn is.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from common.errors import UserError

MAX_BUCKETS = 4096
"""Above it full buckets are forgotten, now and then: one that is made anew is full, too."""

MOST = 2**53
"""Of any number in a quota: up to there floats tell integers apart, and nobody counts so far."""

MOST_AHEAD = 30.0
"""Seconds: the farthest turn that is told of a queue that nobody may be standing in any more."""

MOST_SPACING = 0.25
"""Seconds between the turns of two callers that found no room, at most."""

LEAST_TURN = 0.05
"""Seconds until the first turn of callers that found no room."""

LEAST_WAIT = 1e-3
"""Seconds until an empty bucket is looked at again: less than a step takes, and more than a clock's grain."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second, and so many at once after a pause."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one tenant; None is no limit. Raises `UserError` for a number that makes no sense."""

    max_sessions: int | None = None  # open at once
    max_share: float | None = None  # of the KV slots; one session it may always have
    max_tokens: int | None = None  # of one text
    positions_per_second: float | None = None
    burst: int | None = None  # positions at once after a pause; by default those of a second
    sessions_per_second: float | None = None  # that are asked for: taken up again, or refused, too
    session_burst: int | None = None  # sessions at once after a pause; by default those of a second

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not 0 < value <= MOST:
                raise UserError(f"{each.name} is {value}; it must be above 0, and 2^53 at most")
        if self.max_share is not None and self.max_share > 1:
            raise UserError(f"max_share is {self.max_share}; it must be at most 1")
        if self.burst is not None and self.positions_per_second is None:
            raise UserError("burst needs positions_per_second beside it")
        if self.session_burst is not None and self.sessions_per_second is None:
            raise UserError("session_burst needs sessions_per_second beside it")

    @property
    def positions(self) -> Rate | None:
        """That are evaluated."""
        return _rate(self.positions_per_second, self.burst)

    @property
    def sessions(self) -> Rate | None:
        """That are asked for."""
        return _rate(self.sessions_per_second, self.session_burst)


def _rate(per_second: float | None, burst: int | None) -> Rate | None:
    """With a burst of one at least: of less there would never be a whole one."""
    if per_second is None:
        return None
    return Rate(per_second, max(1.0, per_second) if burst is None else float(burst))


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Quotas:
    """Of all tenants."""

    default: Quota = NO_QUOTA
    tenants: Mapping[str, Quota] = field(default_factory=dict)  # those that have one of their own

    def of(self, tenant: str) -> Quota:
        return self.tenants.get(tenant, self.default)


@dataclass(slots=True)
class Bucket:
    """What a tenant may still have, as of `at` seconds."""

    rate: Rate
    level: float
    at: float
    last_turn_at: float = -math.inf  # that somebody was told who found it empty

    def fill(self, now: float) -> float:
        """The level now."""
        added = max(0.0, now - self.at) * self.rate.per_second
        self.level = min(self.rate.burst, self.level + added)
        self.at = max(self.at, now)
        return self.level


@dataclass(slots=True)
class Turns:
    """When callers that found no room should come again: each at a moment of its own, so that those refused
    together do not come back together."""

    last_at: float = -math.inf  # seconds; the latest turn that a caller was given

    def next(self, now: float, interval: float) -> float:
        """Seconds until the next turn, where a place comes free every `interval` seconds. Turns lie apart.
        When they reach more than `MOST_AHEAD` seconds ahead, they begin anew."""
        first = now + min(max(interval, LEAST_TURN), MOST_AHEAD)
        after = self.last_at + min(interval, MOST_SPACING)
        self.last_at = after if first <= after <= first + MOST_AHEAD else first
        return self.last_at - now


class Meters:
    """The buckets of all tenants, of one kind of thing; `rate_of` gives a tenant's rate of it, or None.

    Of positions: `room` before a step is planned, `take` when it is, `give_back` for one that will not be
    run. Of sessions: `room` and `take` as a stream begins, `turn` for who is refused. `change` when rates are
    others.
    """

    def __init__(self, rate_of: Callable[[str], Rate | None]) -> None:
        self._rate_of = rate_of
        self._buckets = OrderedDict[str, Bucket]()  # the least recently used first
        self._look_at = MAX_BUCKETS  # so many buckets

    def change(self, rate_of: Callable[[str], Rate | None], now: float) -> None:
        """From now on these. What a tenant has left stays, as far as its new burst allows."""
        self._rate_of = rate_of
        for name, bucket in [*self._buckets.items()]:
            bucket.fill(now)
            rate = rate_of(name)
            if rate is None:
                del self._buckets[name]
            else:
                bucket.rate, bucket.level = rate, min(bucket.level, rate.burst)

    def room(self, tenant: str, now: float) -> int | None:
        """How many it may have now; None: any number."""
        bucket = self._bucket(tenant, now)
        return None if bucket is None else int(bucket.fill(now))

    def wait(self, tenant: str, count: int, now: float) -> float:
        """Seconds until it may have so many, or as many as ever at once."""
        bucket = self._bucket(tenant, now)
        if bucket is None:
            return 0.0
        lacking = min(float(count), bucket.rate.burst) - bucket.fill(now)
        return max(LEAST_WAIT, lacking / bucket.rate.per_second) if lacking > 0 else 0.0

    def turn(self, tenant: str, now: float) -> float:
        """Seconds until one may be had by who is told so now: each is told a moment of its own, as far as
        `MOST_AHEAD` goes, so that those who were refused together do not come again together."""
        bucket = self._bucket(tenant, now)
        if bucket is None:
            return 0.0
        first = now + self.wait(tenant, 1, now)
        after_the_last = bucket.last_turn_at + 1.0 / bucket.rate.per_second
        bucket.last_turn_at = max(first, min(after_the_last, now + MOST_AHEAD))
        return bucket.last_turn_at - now

    def take(self, counts: Mapping[str, int]) -> None:
        """Each tenant has so many: no more than `room` said."""
        for tenant, count in counts.items():
            if (bucket := self._buckets.get(tenant)) is not None:
                bucket.level -= count

    def take_ahead(self, counts: Mapping[str, int]) -> bool:
        """As `take` for a step after the one that runs, if there is room by what was known last."""
        limited = {each: self._buckets[each] for each in counts if each in self._buckets}
        if any(bucket.level < counts[tenant] for tenant, bucket in limited.items()):
            return False
        self.take(counts)
        return True

    def give_back(self, counts: Mapping[str, int]) -> None:
        """What was taken for a step that will not be run."""
        for tenant, count in counts.items():
            if (bucket := self._buckets.get(tenant)) is not None:
                bucket.level = min(bucket.rate.burst, bucket.level + count)

    def _bucket(self, tenant: str, now: float) -> Bucket | None:
        found = self._buckets.get(tenant)
        if found is not None:
            self._buckets.move_to_end(tenant)
            return found
        rate = self._rate_of(tenant)
        if rate is None:
            return None
        if len(self._buckets) >= self._look_at:
            self._forget_full(now)
            self._look_at = max(MAX_BUCKETS, 2 * len(self._buckets))  # a look at all is dear
        found = Bucket(rate, rate.burst, now)
        self._buckets[tenant] = found
        return found

    def _forget_full(self, now: float) -> None:
        for name in [name for name, each in self._buckets.items() if each.fill(now) >= each.rate.burst]:
            del self._buckets[name]
