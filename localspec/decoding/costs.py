"""What a pass costs on this machine: seconds by width and context length, refined while running."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
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
