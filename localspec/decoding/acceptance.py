"""How likely a drafted token is to stand, learned while it happens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

MEMORY = 24.0
"""Observations a bucket remembers: old ones fade, so that a text that changes its character is followed."""


@dataclass
class Buckets:
    """Acceptance by a confidence that the drafter states before it draws.

    edges:  m ascending confidences; they make m + 1 buckets.
    priors: m + 1 acceptances assumed before anything was seen; they weigh like `weight` observations.
    """

    edges: Sequence[float]
    priors: Sequence[float]
    weight: float = 4.0
    _hits: list[float] = field(init=False, repr=False)
    _seen: list[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was seen: nothing learned in one answer may harm the next."""
        self._hits = [0.0] * len(self.priors)
        self._seen = [0.0] * len(self.priors)

    def predict(self, confidence: float) -> float:
        """Expected acceptance: the mean of a Beta posterior."""
        index = bisect_right(self.edges, confidence)
        prior = self.priors[index] * self.weight
        return (self._hits[index] + prior) / (self._seen[index] + self.weight)

    def observe(self, confidence: float, accepted: bool) -> None:
        """One token was checked."""
        index = bisect_right(self.edges, confidence)
        fade = 1 - 1 / MEMORY
        self._hits[index] = self._hits[index] * fade + accepted
        self._seen[index] = self._seen[index] * fade + 1


@dataclass
class Average:
    """A fading mean that starts at a prior."""

    prior: float
    weight: float = 6.0
    memory: float = 32.0
    _sum: float = field(init=False, repr=False, default=0.0)
    _seen: float = field(init=False, repr=False, default=0.0)

    def reset(self) -> None:
        """Back to the prior."""
        self._sum = self._seen = 0.0

    @property
    def value(self) -> float:
        """The mean now."""
        return (self._sum + self.prior * self.weight) / (self._seen + self.weight)

    def observe(self, value: float) -> None:
        """One more value."""
        fade = 1 - 1 / self.memory
        self._sum = self._sum * fade + value
        self._seen = self._seen * fade + 1
