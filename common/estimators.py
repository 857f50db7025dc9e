"""Estimate round trips, ratios and step times from samples. All times are in seconds.

No estimator reads a clock; the caller passes durations. Each has a sensible value before its first sample.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from common.errors import LocalError

INITIAL_RTT = 0.333  # kInitialRtt, RFC 9002 6.2.2
LN_2 = math.log(2)


class RttEstimator:
    """The estimator measures the round trip time of the network alone, by RFC 9002 section 5; seconds.

    One departure: there the peer's delay is subtracted only down to `min_rtt`, because it is rounded and
    coarse. Here the hold is the verifier's queue and compute time, most of the elapsed time and measured to
    the microsecond, so it is always subtracted, down to 0.
    """

    def __init__(self, initial_rtt: float = INITIAL_RTT) -> None:
        self.latest_rtt = 0.0
        self.min_rtt = 0.0
        self.smoothed_rtt = _duration("initial_rtt", initial_rtt)  # as RFC 9002 5.3 starts
        self.rtt_variance = initial_rtt / 2  # a mean deviation, whatever its name
        self.num_samples = 0

    def sample(self, elapsed: float, hold: float = 0.0) -> None:
        """Take one round trip of `elapsed` seconds, of which the peer held the message for `hold`.

        Raises `LocalError` if `elapsed` is negative or not finite; a hold beyond it counts as all of it.
        """
        held = min(max(hold, 0.0), elapsed) if math.isfinite(hold) else 0.0
        self.latest_rtt = latest = _duration("elapsed", elapsed) - held
        if self.num_samples == 0:
            self.min_rtt = self.smoothed_rtt = latest
            self.rtt_variance = latest / 2
        else:
            self.min_rtt = min(self.min_rtt, latest)
            self.rtt_variance += (abs(self.smoothed_rtt - latest) - self.rtt_variance) / 4
            self.smoothed_rtt += (latest - self.smoothed_rtt) / 8
        self.num_samples += 1


class IntervalEstimator:
    """The mean of a repeated duration has RFC 9002's gain and follows a change within a dozen samples;
    seconds."""

    def __init__(self, initial: float) -> None:
        self.smoothed = _duration("initial", initial)
        self.num_samples = 0

    def sample(self, duration: float) -> None:
        """Take one duration. Raises `LocalError` if it is negative or not finite."""
        _duration("duration", duration)
        if self.num_samples == 0:
            self.smoothed = duration
        else:
            self.smoothed += (duration - self.smoothed) / 8
        self.num_samples += 1


class RatioEstimator:
    """The ratio of two fading sums estimates accepted per proposed or tokens per step, never a mean of
    ratios.

    Old evidence halves every `half_life` units of the denominator, so one sample of 8 counts exactly like
    8 samples of 1 at the same moment. The prior counts as `prior_weight` units and fades with the rest.
    """

    def __init__(self, prior: float, prior_weight: float = 8.0, half_life: float = 200.0) -> None:
        if not (prior_weight > 0 and half_life > 0 and math.isfinite(prior)):
            raise LocalError("a ratio needs a finite prior, a weight and a half-life above 0")
        self._numerator = prior * prior_weight
        self._denominator = prior_weight
        self._half_life = half_life

    def add(self, numerator: float, denominator: float) -> None:
        """Take in a sample. Raises `LocalError` for a negative or infinite denominator."""
        age = LN_2 * _duration("denominator", denominator) / self._half_life
        kept = math.exp(-age)
        fresh = -math.expm1(-age) / age if age else 1.0  # earlier units of the sample itself have faded too
        self._numerator = self._numerator * kept + numerator * fresh
        self._denominator = self._denominator * kept + denominator * fresh

    @property
    def ratio(self) -> float:
        return self._numerator / self._denominator

    @property
    def weight(self) -> float:
        """Return the units of the denominator that the ratio rests on, the prior's included."""
        return self._denominator


class LinearTimeEstimator:
    """The estimator fits a duration in seconds as fixed + per_row * width, by least squares over fading
    sums.

    Old samples halve every `half_life` samples. Means and centred moments are kept in place of raw sums
    (West 1979, with fading weights). The slope moves from its last value towards the fit only as fast as
    widths vary (`DAMPING`), so with one width throughout the slope stays and the fixed part is learnt.
    """

    DAMPING = 1.0  # rows squared: the fit weighs half once the widths seen have this much sum of squares

    def __init__(self, fixed: float = 0.030, per_row: float = 0.00005, half_life: float = 50.0) -> None:
        """The defaults are the seconds of a 7B model's step on a data centre GPU."""
        self._fixed, self._per_row = _duration("fixed", fixed), _duration("per_row", per_row)
        self._fade = 0.5 ** (1 / half_life)
        self._weight = 0.0
        self._mean_width = self._mean_time = 0.0
        self._width_squares = self._products = 0.0

    def sample(self, width: float, duration: float) -> None:
        """Take a step of `width` rows and `duration` seconds. Raises `LocalError` if either is negative."""
        _duration("width", width)
        _duration("duration", duration)
        old = self._weight * self._fade
        self._weight = old + 1.0
        off_width, off_time = width - self._mean_width, duration - self._mean_time
        self._mean_width += off_width / self._weight
        self._mean_time += off_time / self._weight
        share = old / self._weight
        self._width_squares = self._width_squares * self._fade + share * off_width * off_width
        self._products = self._products * self._fade + share * off_width * off_time
        self._fit()

    def predict(self, width: float) -> float:
        """Return the seconds of a step of `width` rows, never negative."""
        return self._fixed + self._per_row * width

    @property
    def per_row(self) -> float:
        """Return the seconds that one more row costs."""
        return self._per_row

    def _fit(self) -> None:
        damped = self._products + self.DAMPING * self._per_row
        slope = max(0.0, damped / (self._width_squares + self.DAMPING))
        # More rows cannot take less time, nor can no rows take negative time: else the line goes through 0.
        if self._mean_width > 0:
            slope = min(slope, self._mean_time / self._mean_width)
        self._per_row = slope
        self._fixed = self._mean_time - slope * self._mean_width


class WidthTimes:
    """A table holds step times by width, because kernels make wider steps cost what no line describes.

    The table's shape is measured or assumed. On the way two corrections are learnt: one factor for the whole
    table, and one for each width that was seen. All evidence halves every `half_life` steps of any width, so
    a width that looked expensive once is tried again.
    """

    EXACT: ClassVar = 8  # widest that has a correction of its own; others share the nearest power of two's
    OWN_STEPS = 2.0  # a width's own correction weighs half after so many steps of that width
    ASSUMED = 0.01  # steps that an assumed shape counts for
    MEASURED = 4.0  # steps that a measured one counts for

    def __init__(
        self, assumed: Mapping[int, float], half_life: float = 50.0, places: Collection[int] = ()
    ) -> None:
        """Take seconds by width; between two widths, and beyond the last, the time is a straight line.

        Widths of `places` have corrections of their own, like those up to `EXACT`. Raises `LocalError` for an
        empty table, a width below 1, or a duration that is not above 0.
        """
        self._fade = 0.5 ** (1 / half_life)
        self._own: dict[int, _Sums] = {}  # by place
        self._seen: list[int] = []  # places, rising
        self._places = frozenset(places)
        self._reshape(assumed, self.ASSUMED)

    def measured(self, shape: Mapping[int, float]) -> None:
        """Take a measured shape and forget all corrections. Raises as the constructor does."""
        self._reshape(shape, self.MEASURED)

    def _reshape(self, shape: Mapping[int, float], steps: float) -> None:
        points = sorted(shape.items())
        if not points or points[0][0] < 1 or not all(0 < seconds < math.inf for _, seconds in points):
            raise LocalError(f"a table of step times needs widths from 1 and seconds above 0, not {points}")
        self._widths, self._seconds = [width for width, _ in points], [seconds for _, seconds in points]
        self._all = _Sums(steps, steps)
        self._own, self._seen = {}, []

    def sample(self, width: float, duration: float) -> None:
        """Take a step of `width` and `duration` seconds. Raises `LocalError` if either is negative."""
        _duration("width", width)
        _duration("duration", duration)
        if not width:
            return
        for sums in (self._all, *self._own.values()):
            sums.fade(self._fade)
        ratio = duration / self._shape(width)
        self._all.add(ratio)
        place = self._place(width)
        if place not in self._own:
            self._own[place] = _Sums()
            self._seen = sorted(self._own)
        self._own[place].add(ratio)

    def predict(self, width: float) -> float:
        """Return the seconds of a step of `width`; 0 for a width of 0."""
        if width <= 0:
            return 0.0
        return self._factor(width) * self._shape(width)

    def relative(self, width: float) -> float:
        """Return the correction of this width over that of all steps."""
        return self._factor(width) / self._all.mean

    def weight(self, width: float) -> float:
        """Return the fading number of steps that the correction of this width rests on."""
        own = self._own.get(self._place(width))
        return own.weight if own else 0.0

    def _factor(self, width: float) -> float:
        """Return the correction of this width, interpolated between the widths seen, constant beyond them."""
        seen = self._seen
        if not seen:
            return self._all.mean
        at = bisect(seen, width)
        low, high = seen[max(at - 1, 0)], seen[min(at, len(seen) - 1)]
        below = self._corrected(low)
        if low == high:
            return below
        return below + (self._corrected(high) - below) * (width - low) / (high - low)

    def _corrected(self, place: int) -> float:
        own = self._own[place]
        return (own.total + self.OWN_STEPS * self._all.mean) / (own.weight + self.OWN_STEPS)

    def _place(self, width: float) -> int:
        own = width <= self.EXACT or width in self._places
        return round(width) if own else 1 << round(math.log2(width))

    def _shape(self, width: float) -> float:
        widths, seconds = self._widths, self._seconds
        at = bisect(widths, width)
        if at == 0 or len(widths) == 1:
            return seconds[0]
        low = min(at, len(widths) - 1) - 1
        slope = (seconds[low + 1] - seconds[low]) / (widths[low + 1] - widths[low])
        if at == len(widths):
            return seconds[-1] + max(0.0, slope) * (width - widths[-1])
        return seconds[low] + slope * (width - widths[low])


@dataclass(slots=True)
class _Sums:
    total: float = 0.0
    weight: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.weight

    def add(self, ratio: float) -> None:
        self.total += ratio
        self.weight += 1.0

    def fade(self, share: float) -> None:
        self.total *= share
        self.weight *= share


def _duration(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise LocalError(f"{name} is {value}; it must be finite and not negative")
    return value
