"""What the controller goes by: what passes cost here, how often drafts stand, and what drafting may yet lose.

All of it is refined while running.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX_DRIFT = 4.0
"""One observation counts as at most this many times faster or slower than expected: a busy moment, not a fact."""


@dataclass
class CostTable:
    """T(n, L): seconds of a pass over n tokens behind L cells.

    seconds: measured at a short context, by width. The curve has steps (kernels work on groups of rows), so widths
             between two measured ones are interpolated and widths beyond the last grow in proportion.
    slope:   seconds per cell of context that a 1-wide pass takes longer; row_slope: the same for each further row.
    scale:   how the machine does now, against when it was measured; follows what passes really take.
    """

    seconds: Mapping[int, float]
    slope: float = 0.0
    row_slope: float = 0.0
    scale: float = 1.0
    _widths: list[int] = field(init=False, repr=False)
    _corrections: dict[int, float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = {int(width): float(value) for width, value in sorted(self.seconds.items())}
        self._widths = list(self.seconds)

    def time(self, width: int, length: int = 0) -> float:
        """Expected seconds of a pass of exactly this width."""
        return self.scale * self._corrections.get(width, 1.0) * self._calm(width, length)

    def _calm(self, width: int, length: int) -> float:
        return self._base(width) + length * (self.slope + (width - 1) * self.row_slope)

    def _base(self, width: int) -> float:
        index = bisect_left(self._widths, width)
        if index == len(self._widths):
            return self.seconds[self._widths[-1]] * width / self._widths[-1]
        right = self._widths[index]
        if right == width or index == 0:
            return self.seconds[right]
        left = self._widths[index - 1]
        share = (width - left) / (right - left)
        return self.seconds[left] * (1 - share) + self.seconds[right] * share

    def padded_width(self, width: int, limit: int, length: int = 0) -> int:
        """The cheapest width from `width` to `limit`: V'(n) = min over m >= n of V(m)."""
        wider = [candidate for candidate in self._widths if width < candidate <= limit]
        return min([width, *wider], key=lambda candidate: self.time(candidate, length))

    def padded_time(self, width: int, limit: int, length: int = 0) -> float:
        """Expected seconds of a pass that may be padded to a cheaper width."""
        return self.time(self.padded_width(width, limit, length), length)

    def observe(self, width: int, length: int, seconds: float) -> None:
        """Learn from one pass: mostly that the machine is faster or slower now, a little about this width."""
        ratio = seconds / self.time(width, length)
        ratio = min(max(ratio, 1 / MAX_DRIFT), MAX_DRIFT)
        self.rescale(ratio)
        if width in self.seconds:
            correction = self._corrections.get(width, 1.0) * ratio**0.05
            self._corrections[width] = min(max(correction, 0.5), 2.0)

    def rescale(self, ratio: float) -> None:
        """Learn that passes took `ratio` times the expected seconds, in whatever widths."""
        self.scale *= min(max(ratio, 1 / MAX_DRIFT), MAX_DRIFT) ** 0.1

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON; `from_dict` reads it back."""
        return {
            "seconds": {str(width): self.seconds[width] for width in self._widths},
            "slope": self.slope,
            "row_slope": self.row_slope,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> CostTable:
        """Raises `ValueError`, `KeyError` or `TypeError` when `data` is not of that form."""
        seconds = data["seconds"]
        if not isinstance(seconds, Mapping) or not seconds:
            raise ValueError("no measured widths")
        table = cls(
            {int(width): float(value) for width, value in seconds.items()},
            float(data["slope"]),  # type: ignore[arg-type]
            float(data["row_slope"]),  # type: ignore[arg-type]
        )
        if min(table.seconds.values()) <= 0 or 1 not in table.seconds:
            raise ValueError("widths must start at 1 and times be positive")
        return table


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
