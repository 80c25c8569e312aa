"""Pearson's chi-square test on numpy alone, and what it can see."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Cell = tuple[int, ...]

SMALL = 5.0
"""Cells expected fewer times are pooled into one."""
ACCURACY = 1e-13
SURE = 2.326
"""A normal variable is this many standard deviations below its mean, or more, 1 time in 100."""


@dataclass(frozen=True)
class Fit:
    """How well counts fit probabilities.

    degrees: of freedom.     impossible: runs that fell into a cell of probability 0; one is enough for p_value 0.
    """

    runs: int
    statistic: float
    degrees: int
    p_value: float
    impossible: int = 0


def fit(joint: Mapping[Cell, float], counts: Mapping[Cell, int]) -> Fit:
    """Pearson's test of `counts` against the probabilities `joint`."""
    runs = sum(counts.values())
    expected = np.array([probability * runs for probability in joint.values()])
    observed = np.array([counts.get(cell, 0) for cell in joint], dtype=float)
    impossible = runs - int(observed[expected > 0].sum())
    expected, observed = _pooled(expected, observed)
    degrees = len(expected) - 1
    statistic = float(((observed - expected) ** 2 / expected).sum())
    p_value = 0.0 if impossible else survival(statistic, degrees)
    return Fit(runs, statistic, degrees, p_value, impossible)


def _pooled(
    expected: np.ndarray[tuple[int], np.dtype[np.float64]],
    observed: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    small = expected < SMALL
    expected = np.append(expected[~small], expected[small].sum())
    observed = np.append(observed[~small], observed[small].sum())
    return expected[expected > 0], observed[expected > 0]


def survival(statistic: float, degrees: int) -> float:
    """P(chi-square with `degrees` of freedom >= statistic): the regularised incomplete gamma function Q(a, x) at
    a = degrees / 2, x = statistic / 2, by its series or its continued fraction (Abramowitz and Stegun 6.5.29, 6.5.31).
    """
    if degrees < 1 or statistic <= 0:
        return 1.0
    a, x = degrees / 2, statistic / 2
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    return 1 - scale * _series(a, x) if x < a + 1 else scale * _fraction(a, x)


def _series(a: float, x: float) -> float:
    term = total = 1 / a
    step = a
    while term > ACCURACY * total:
        step += 1
        term *= x / step
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    """1/(x+1-a- 1(1-a)/(x+3-a- 2(2-a)/(x+5-a- ...))), evaluated forwards by Lentz's method."""
    b = x + 1 - a
    c, d = math.inf, 1 / b
    value = d
    for n in range(1, 10_000):
        factor = n * (a - n)
        b += 2
        d = 1 / (b + factor * d)
        c = b + factor / c
        value *= c * d
        if abs(c * d - 1) < ACCURACY:
            break
    return value


def critical(threshold: float, degrees: int) -> float:
    """The statistic whose p-value is `threshold`."""
    return _root(lambda statistic: threshold - survival(statistic, degrees))


def detectable(threshold: float, degrees: int, runs: int) -> float:
    """The total variation distance that the test sees with probability .99, whatever its shape.

    A distance d between the (pooled) distributions gives a noncentrality of at least 4 runs d^2 (Cauchy-Schwarz). The
    noncentral chi-square is taken as normal with mean k + L and variance 2 (k + 2 L), which asks for a little more than
    is needed.
    """
    if degrees < 1 or runs < 1:
        return 1.0
    limit = critical(threshold, degrees)
    needed = _root(lambda x: degrees + x - SURE * math.sqrt(2 * (degrees + 2 * x)) - limit)
    return min(math.sqrt(needed / (4 * runs)), 1.0)


def _root(rising: Callable[[float], float]) -> float:
    """The number above 0 at which `rising` goes from below 0 to above it."""
    high = 1.0
    while rising(high) < 0:
        high *= 2
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
