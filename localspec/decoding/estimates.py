"""What the controller goes by, beside costs: how often drafts stand, and what drafting may yet lose.

All of it is refined while running.
"""

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


SHARE = 0.003
"""Of the elapsed time that may be lost."""
LEAST_CREDIT, MOST_CREDIT = 3.5, 6.5
"""Plain steps that may be lost before anything was gained: lets the first rounds start. Within these limits it is
what one useful round puts at risk."""
STAKE = 0.7
"""Share of what may still be lost that one round may put at risk: one bad guess must not end all drafting."""
SURPLUS_STEPS = 8.0
"""Plain steps of gain that are kept: what was won in one part of a text must not be gambled away in the next."""


@dataclass
class Ledger:
    """Balance D = sum(round time - emitted * plain step time), in seconds; positive is a loss.

    credit_steps: plain steps that D may reach, beside SHARE of the elapsed time.
    """

    balance: float = 0.0
    elapsed: float = 0.0
    credit_steps: float = LEAST_CREDIT

    def reset(self, round_steps: float) -> None:
        """A new answer starts; a useful round may lose `round_steps` plain steps."""
        self.balance = self.elapsed = 0.0
        self.credit_steps = min(max(round_steps / STAKE, LEAST_CREDIT), MOST_CREDIT)

    def settle(self, seconds: float, emitted: int, plain_step: float) -> None:
        """Book one round."""
        self.elapsed += seconds
        self.balance = max(self.balance + seconds - emitted * plain_step, -SURPLUS_STEPS * plain_step)

    def stake(self, plain_step: float) -> float:
        """Seconds that the next round may lose: a part of what is left, so that one bad guess does not end it all."""
        return STAKE * (self.credit_steps * plain_step + SHARE * self.elapsed - self.balance)
