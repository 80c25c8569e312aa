"""Estimate: what drafting should gain, from how often drafted tokens stand and what passes cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.decoding.costs import CostTable
from localspec.engine.measured_costs import Costs
from localspec.errors import InvalidRequest

LONGEST = 16
"""Draft lengths of a curve, unless a longer one is asked for."""
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Estimated for where none is given."""


@dataclass(frozen=True)
class Estimator:
    """Every drafted token stands with the same chance, independently of the others (2211.17192, section 3).

    cost_ratio: c, seconds of one pass of the draft / seconds of a 1-wide pass of the target.
    verify:     V(n), what an n-wide pass of the target costs, in 1-wide passes; padded where a wider one is cheaper.
    longest:    draft length up to which the best one is sought.
    """

    cost_ratio: float
    verify: CostTable
    longest: int = LONGEST

    def tokens(self, length: int, acceptance: float) -> float:
        """Expected tokens of a round: 1 + a + ... + a^K."""
        return sum(acceptance**power for power in range(length + 1))

    def cost(self, length: int) -> float:
        """Cost of a round, in 1-wide passes of the target: K c + V(K + 1)."""
        if length == 0:
            return self.verify.time(1)
        return length * self.cost_ratio + self.verify.padded_time(length + 1, self._widest)

    def speedup(self, length: int, acceptance: float) -> float:
        """Speedup over plain decoding where every round drafts `length` tokens."""
        return self.tokens(length, acceptance) * self.verify.time(1) / self.cost(length)

    def best_length(self, acceptance: float) -> int:
        """The length with the largest speedup; 0 where no draft pays."""
        return max(range(self.longest + 1), key=lambda length: self.speedup(length, acceptance))

    def break_even(self, length: int) -> float | None:
        """The acceptance above which this length pays; None where it never does."""
        if self.speedup(length, 1.0) <= 1:
            return None
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self.speedup(length, middle) >= 1 else (middle, high)
        return high

    def least_break_even(self) -> float | None:
        """The acceptance above which some length pays; None where none ever does."""
        found = [self.break_even(length) for length in range(1, self.longest + 1)]
        return min((value for value in found if value is not None), default=None)

    @property
    def known_length(self) -> int | None:
        """The longest draft whose pass is not wider than any of known cost; None where that holds for all."""
        known = max(self.verify.seconds) - 1
        return known if known < self.longest else None

    @property
    def _widest(self) -> int:
        return max(self.longest + 1, *self.verify.seconds)


def from_numbers(
    cost_ratio: float, verify_cost: Mapping[int, float] | None = None, longest: int = LONGEST
) -> Estimator:
    """An estimator without a model. cost_ratio: c. verify_cost: V(n) for some n; without it, V is 1 for every width.

    Raises `InvalidRequest` for a number out of range.
    """
    if not 0 <= cost_ratio < float("inf"):
        raise InvalidRequest(f"cost_ratio is {cost_ratio}.", "It must be a number, 0 or more.")
    for width, cost in (verify_cost or {}).items():
        if width < 2 or not 0 < cost < float("inf"):
            raise InvalidRequest(
                f"verify_cost is {cost}@{width}.", "It is COST@WIDTH, COST above 0 and WIDTH 2 or more."
            )
    free = {longest + 1: 1.0}
    return Estimator(cost_ratio, CostTable({1: 1.0, **(verify_cost or free)}), longest)


def from_costs(costs: Costs, longest: int = LONGEST) -> Estimator:
    """An estimator for a calibrated pair. Without a draft model drafts are copied, which costs nothing."""
    step = costs.target.time(1)
    verify = {width: costs.target.time(width) / step for width in costs.target.seconds}
    return Estimator(costs.draft.time(1) / step if costs.draft else 0.0, CostTable(verify), longest)


def check_acceptances(acceptances: Sequence[float]) -> None:
    """Raise `InvalidRequest` for an acceptance outside 0 to 1."""
    for acceptance in acceptances:
        if not 0 <= acceptance <= 1:
            raise InvalidRequest(f"acceptance is {acceptance}.", "It must be a number from 0 to 1.")


def estimate(
    estimator: Estimator, acceptances: Sequence[float], asked_length: int | None = None
) -> dict[str, Any]:
    """Best length, speedup and curve for each acceptance, ready for JSON.

    asked_length: a draft length to judge besides. Raises `InvalidRequest` for an acceptance outside 0 to 1.
    """
    check_acceptances(acceptances)
    result: dict[str, Any] = {
        "cost_ratio": round(estimator.cost_ratio, 4),
        "verify_cost": {
            str(width): round(estimator.verify.time(width), 3) for width in estimator.verify.seconds
        },
        "known_draft_tokens": estimator.known_length,
        "break_even_acceptance": _rounded(estimator.least_break_even()),
        "estimates": [_for_acceptance(estimator, acceptance, asked_length) for acceptance in acceptances],
    }
    if asked_length is not None:
        result["draft_tokens"] = asked_length
        result["break_even_at_draft_tokens"] = _rounded(estimator.break_even(asked_length))
    return result


def _for_acceptance(estimator: Estimator, acceptance: float, asked_length: int | None) -> dict[str, Any]:
    best = estimator.best_length(acceptance)
    result: dict[str, Any] = {
        "acceptance": acceptance,
        "best_draft_tokens": best,
        "speedup": round(estimator.speedup(best, acceptance), 3),
        "curve": [
            {
                "draft_tokens": length,
                "tokens_per_round": round(estimator.tokens(length, acceptance), 3),
                "cost": round(estimator.cost(length), 3),
                "speedup": round(estimator.speedup(length, acceptance), 3),
            }
            for length in range(estimator.longest + 1)
        ],
    }
    if asked_length is not None:
        result["speedup_at_draft_tokens"] = round(estimator.speedup(asked_length, acceptance), 3)
    return result


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
