"""Interval: speeds and their ratios from segments that took turns, each with its 95 % interval.

An interval speaks of the texts that were written: a segment is compared with itself in other runs, so that it does not
count as noise that a draft gains more in one place than in another. Only a segment that there was once is compared with
the rest of its kind, which makes the interval wider, never narrower.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RATIO_LAGS, RATE_LAGS = 2, 8
"""Segments over which noise is taken to last: a neighbour disturbs both sides of a ratio, but a speed for long."""


class Place(NamedTuple):
    """Where a segment stands: the how manieth text, run and segment of the text."""

    text: int
    run: int
    number: int


@dataclass(frozen=True)
class Segment:
    """What one way of decoding emitted in its turn, and the seconds that took."""

    tokens: int
    seconds: float


Segments = Mapping[Place, Segment]


@dataclass(frozen=True)
class Estimate:
    """A figure above 0 with the standard error of its logarithm and that error's degrees of freedom.

    No value (0.0) and an infinite error where nothing was measured.
    """

    value: float
    error: float = math.inf
    freedom: float = 1.0

    @property
    def half_width(self) -> float:
        """Of the 95 % interval, as a share of the value: 0.02 is +-2 %."""
        half = student(self.freedom) * self.error
        return math.expm1(half) if half < 100 else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        spread = 1 + self.half_width
        return self.value / spread, self.value * spread


def rate(segments: Segments) -> Estimate:
    """Tokens per second: of the machine as it was meanwhile, which may run at another speed tomorrow."""
    places = sorted(segments)
    value = _rate(segments, places)
    return _estimate(value, places, _influence(segments, places), RATE_LAGS) if value else Estimate(0.0)


def ratio(before: Segments, after: Segments) -> Estimate:
    """Tokens per second of `after` / those of `before`, over the places where both have a segment."""
    places = sorted(before.keys() & after.keys())
    slow, fast = _rate(before, places), _rate(after, places)
    if not slow or not fast:
        return Estimate(0.0)
    influence = _influence(after, places) - _influence(before, places)
    return _estimate(fast / slow, places, influence, RATIO_LAGS)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The arithmetic mean of independent figures; degrees of freedom after Satterthwaite (1946)."""
    value = sum(estimate.value for estimate in estimates) / len(estimates)
    parts = [(estimate.value * estimate.error) ** 2 for estimate in estimates]
    if not value or not math.isfinite(sum(parts)):
        return Estimate(value)
    total = sum(parts)
    shares = sum(part**2 / estimate.freedom for part, estimate in zip(parts, estimates, strict=True) if part)
    error = math.sqrt(total) / len(estimates) / value
    return Estimate(value, error, total**2 / shares if shares else math.inf)


def _rate(segments: Segments, places: Sequence[Place]) -> float:
    tokens = sum(segments[place].tokens for place in places)
    seconds = sum(segments[place].seconds for place in places)
    return tokens / seconds if tokens and seconds > 0 else 0.0


def _influence(segments: Segments, places: Sequence[Place]) -> NDArray[np.float64]:
    """What each segment adds to the error of log(tokens / seconds): its share of the tokens less that of the seconds.

    The linear form of a ratio of two sums (Cochran, Sampling Techniques, 1977, chapter 6).
    """
    tokens = np.array([segments[place].tokens for place in places], dtype=np.float64)
    seconds = np.array([segments[place].seconds for place in places], dtype=np.float64)
    influence: NDArray[np.float64] = tokens / tokens.sum() - seconds / seconds.sum()
    return influence


def _estimate(value: float, places: Sequence[Place], influence: NDArray[np.float64], lags: int) -> Estimate:
    """The error: the variance of a sum whose neighbours hang together (Newey and West, 1987; Bartlett's weights), and
    never less than if they did not. Its degrees of freedom are those of the window: 3 / 2 (lags + 1) of the number of
    residuals (Priestley, Spectral Analysis and Time Series, 1981, table 6.1), and at most all of them.
    """
    residuals, freedom = _residuals(places, influence)
    if freedom < 1:
        return Estimate(value)
    rows: dict[tuple[int, int], list[float]] = defaultdict(list)
    for place, residual in zip(places, residuals, strict=True):
        rows[place.text, place.run].append(residual)
    alone = float(residuals @ residuals)
    together = alone
    for row in rows.values():
        for lag in range(1, min(lags + 1, len(row))):
            weight = 1 - lag / (lags + 1)
            together += 2 * weight * float(np.dot(row[:-lag], row[lag:]))
    return Estimate(value, math.sqrt(max(alone, together)), max(freedom * min(1.0, 1.5 / (lags + 1)), 1.0))


def _residuals(places: Sequence[Place], influence: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Deviations of each segment from the same one in other runs, made as large as independent ones are; and how many
    of them are free. One that there was once deviates from all segments together, whose influences sum to 0.
    """
    same: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, place in enumerate(places):
        same[place.text, place.number].append(number)
    residuals, freedom, single = influence.copy(), 0, 0
    for numbers in same.values():
        count = len(numbers)
        if count > 1:
            deviations = influence[numbers] - influence[numbers].mean()
            residuals[numbers] = deviations * math.sqrt(count / (count - 1))
            freedom += count - 1
        else:
            single += 1
    return residuals, freedom + max(single - 1, 0)


@lru_cache
def student(freedom: float) -> float:
    """The factor of a two-sided 95 % interval: the 0.975 quantile of Student's t, by bisection of its integral."""
    if freedom > 1000:
        return 1.96
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    factor = math.exp(scale) / math.sqrt(freedom * math.pi)
    low, high = 1.9, 13.0
    for _ in range(40):
        middle = (low + high) / 2
        points = np.linspace(0, middle, 2001)
        density = factor * (1 + points**2 / freedom) ** (-(freedom + 1) / 2)
        inside = (density.sum() - (density[0] + density[-1]) / 2) * points[1]
        low, high = (middle, high) if inside < LEVEL / 2 else (low, middle)
    return low
