"""Define each tenant's quota, and the token buckets of its rates (as in RFC 2697).

A bucket fills at the tenant's rate up to its burst. So in any w seconds a tenant gets at most
rate * w + burst.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from common.config.setting import check_section, setting
from common.errors import UserError

MAX_BUCKETS = 4096
"""Buckets above which full ones are forgotten from time to time. A new bucket is full, too."""

MOST = 2**53
"""Upper limit of any number in a quota. Floats represent all integers up to it."""

MOST_AHEAD = 30.0
"""Seconds: the longest retry time that a refused caller gets, since earlier callers may have given up."""

NO_TEXTS, TEXTS, PROMPTS = CONSENTS = ("off", "texts", "prompts")
"""What a tenant lets the verifier keep for training: nothing, what the target writes, and prompts as well."""

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
    training_log: str = setting(NO_TEXTS, "what the training log keeps of its texts", choices=CONSENTS)

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
        if any(self._buckets[name].level < count for name, count in counts.items() if name in self._buckets):
            return False
        self.take(counts)
        return True

    def _bucket(self, tenant: str, now: float) -> TokenBucket | None:
        bucket = self._buckets.get(tenant)
        if bucket is not None:
            self._buckets.move_to_end(tenant)
            return bucket
        rate = self._rate_of(tenant)
        if rate is None:
            return None
        if len(self._buckets) >= self._look_at:
            for name, full in [*self._buckets.items()]:
                if full.fill(now) >= full.rate.burst:
                    del self._buckets[name]
            self._look_at = max(MAX_BUCKETS, 2 * len(self._buckets))  # a clean-up visits every bucket
        bucket = self._buckets[tenant] = TokenBucket(rate, rate.burst, now)
        return bucket
