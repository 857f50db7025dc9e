"""What each tenant may have, and meters that hold it to so many evaluated positions a second.

A position is a row of the target: of a prompt, of the text, or of a draft, whether or not it came to be
text. Each tenant has a bucket of them (the token bucket of RFC 2697's lineage): it fills at the tenant's
rate up to its burst, and a step takes from it as many as it evaluates, before it does. So over any stretch
of time of w seconds a tenant has no more than rate * w + burst. Whose bucket is empty waits; it is not
ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from common.errors import UserError

MAX_BUCKETS = 4096
"""Above it full buckets are forgotten: one that is made anew is full, too."""

MOST = 2**53
"""Of any number in a quota: up to there floats tell integers apart, and nobody counts so far."""

LEAST_WAIT = 1e-3
"""Seconds until an empty bucket is looked at again: less than a step takes, and more than a clock's grain."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one tenant; None is no limit. Raises `UserError` for a number that makes no sense."""

    max_sessions: int | None = None  # open at once
    max_share: float | None = None  # of the KV slots; one session it may always have
    max_tokens: int | None = None  # of one text
    positions_per_second: float | None = None
    burst: int | None = None  # positions at once after a pause; by default those of a second

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not 0 < value <= MOST:
                raise UserError(f"{each.name} is {value}; it must be above 0, and 2^53 at most")
        if self.max_share is not None and self.max_share > 1:
            raise UserError(f"max_share is {self.max_share}; it must be at most 1")
        if self.burst is not None and self.positions_per_second is None:
            raise UserError("burst needs positions_per_second beside it")

    @property
    def capacity(self) -> float:
        """Of the bucket: one position at least, or no step could ever be taken."""
        if self.burst is not None:
            return float(self.burst)
        return max(1.0, self.positions_per_second or 0.0)


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
    """Positions that a tenant may still have, as of `at` seconds."""

    rate: float
    capacity: float
    level: float
    at: float

    def fill(self, now: float) -> float:
        """The level now."""
        self.level = min(self.capacity, self.level + max(0.0, now - self.at) * self.rate)
        self.at = max(self.at, now)
        return self.level


class Meters:
    """The buckets of all tenants. Driven by the scheduler: `room` before a step is planned, `take` when it
    is, `give_back` for one that will not be run, `change` when quotas are others."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        self.quotas = quotas or Quotas()
        self._buckets = OrderedDict[str, Bucket]()  # the least recently used first

    def change(self, quotas: Quotas, now: float) -> None:
        """From now on these. What a tenant has left stays, as far as its new burst allows."""
        for bucket in self._buckets.values():
            bucket.fill(now)
        self.quotas = quotas
        for name in [*self._buckets]:
            quota, bucket = quotas.of(name), self._buckets[name]
            if quota.positions_per_second is None:
                del self._buckets[name]
            else:
                bucket.rate, bucket.capacity = quota.positions_per_second, quota.capacity
                bucket.level = min(bucket.level, bucket.capacity)

    def room(self, tenant: str, now: float) -> int | None:
        """How many positions it may have now; None: any number."""
        bucket = self._bucket(tenant, now)
        return None if bucket is None else int(bucket.fill(now))

    def wait(self, tenant: str, count: int, now: float) -> float:
        """Seconds until it may have so many, or as many as ever at once."""
        bucket = self._bucket(tenant, now)
        if bucket is None:
            return 0.0
        lacking = min(float(count), bucket.capacity) - bucket.fill(now)
        return max(LEAST_WAIT, lacking / bucket.rate) if lacking > 0 else 0.0

    def take(self, counts: Mapping[str, int]) -> None:
        """A step will evaluate so many positions of each tenant: no more than `room` said."""
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
                bucket.level = min(bucket.capacity, bucket.level + count)

    def _bucket(self, tenant: str, now: float) -> Bucket | None:
        found = self._buckets.get(tenant)
        if found is not None:
            self._buckets.move_to_end(tenant)
            return found
        quota = self.quotas.of(tenant)
        if quota.positions_per_second is None:
            return None
        if len(self._buckets) >= MAX_BUCKETS:
            self._forget_full(now)
        found = Bucket(quota.positions_per_second, quota.capacity, quota.capacity, now)
        self._buckets[tenant] = found
        return found

    def _forget_full(self, now: float) -> None:
        for name in [name for name, each in self._buckets.items() if each.fill(now) >= each.capacity]:
            del self._buckets[name]
