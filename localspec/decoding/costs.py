"""CostTable: what passes cost here, as assumed, learned from answers or measured, and how certain each of it is."""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2

MAX_DRIFT = 4.0
"""One observation counts as at most this many times faster or slower than expected: a busy moment, not a fact."""
FOLLOW = 0.1
"""Share (of the logarithm) by which one pass moves the pace of a table that was measured."""
TRUST = 0.5
"""The same share for a faster pass than expected, as long as a pace is being learned."""
PACE_PASSES = 2
"""Passes after which the pace of a machine where nothing was measured is known well enough to draft."""
PLAIN_PASSES = 8
"""Passes of plain decoding that say what it costs, where that was never measured."""
STRAY, IN_A_ROW = 1.1, 3
"""Passes of a width that are all slower than expected by this factor, or all faster, and so many of them in a row:
what was expected is wrong."""
MEND = 0.5
"""Share (of the logarithm) by which each further one of them moves what was expected."""
PLAUSIBLE, DOUBTED = 0.9, 0.1
"""A wider pass takes at least this share of one token's, which it contains: nothing makes passes fast, so a narrow
one stalled where it seems to take less. What is put right by this has this certainty at most."""
WORTH = 18.0
"""As many passes of answers say as much of a width as a calm measurement."""
LEARNED = 0.5
"""Certainty that passes of answers give at most: other programs and the reader shared the machine with them."""
BUSY = 0.9
"""Certainty that measurements on a busy machine reach at most, however many."""
LEAST_REACH = 4
"""Width of a pass that may be risked on a guess."""
PER_OCTAVE = 0.25
"""Share of a correction that an assumed width takes over from one of half or double its width."""


@dataclass
class CostTable:
    """T(n, L): seconds of a pass over n tokens behind L cells.

    seconds: at a short context, by width. The curve has steps (kernels work on groups of rows), so widths
             between two known ones are interpolated and widths beyond the last grow in proportion.
    slope:   seconds per cell of context that a 1-wide pass takes longer; row_slope: the same for each further row.
    scale:   how the machine does now, against `seconds`; follows what passes really take.
    certainty: by width, from 0 (assumed) over what answers or busy moments showed to 1 (measured calmly), which is
             also what a width has that is not named.
    """

    seconds: Mapping[int, float]
    slope: float = 0.0
    row_slope: float = 0.0
    scale: float = 1.0
    certainty: Mapping[int, float] = field(default_factory=dict)
    _widths: list[int] = field(init=False, repr=False)
    _now: dict[int, float] = field(init=False, repr=False, default_factory=dict)
    _seen: dict[int, float] = field(init=False, repr=False, default_factory=dict)
    _strays: dict[int, list[float]] = field(init=False, repr=False, default_factory=dict)
    _passes: float = field(init=False, repr=False, default=0.0)
    _has_news: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        self.seconds = {int(width): float(value) for width, value in sorted(self.seconds.items())}
        self._widths = list(self.seconds)
        self.certainty = {width: float(self.certainty.get(width, 1.0)) for width in self._widths}
        self._make_plausible()
        self._now = dict(self.seconds)
        self._seen, self._strays = {}, {}
        self._passes = self._sure(self._widths[0]) / FOLLOW if self._widths else 0.0

    def _make_plausible(self) -> None:
        """No pass takes clearly less than one of a single token does: of those two, the slow one was disturbed."""
        seconds, certainty = dict(self.seconds), dict(self.certainty)
        measured = [seconds[width] for width in self._widths if certainty[width] > 0]
        if measured and certainty.get(1, 1.0) < 1 and seconds[1] * PLAUSIBLE > min(measured):
            seconds[1], certainty[1] = min(measured) / PLAUSIBLE, min(certainty[1], DOUBTED)
        for width in self._widths:
            if certainty[width] < 1 and seconds[width] < PLAUSIBLE * seconds.get(1, 0.0):
                seconds[width] = PLAUSIBLE * seconds[1]
                certainty[width] = min(certainty[width], DOUBTED)
        self.seconds, self.certainty = seconds, certainty

    def time(self, width: int, length: int = 0) -> float:
        """Expected seconds of a pass of exactly this width."""
        return self.scale * self._calm(width, length, self._now)

    def plain_part(self, width: int, length: int, plain_width: int = 1) -> float:
        """Seconds of a pass over one token / those of a pass of this width, whatever else the machine does meanwhile:
        as measured calmly, or, where that was never done, as they are known now.

        plain_width: tokens of the first, one for each answer that shares it.
        """
        known = self.seconds if self.certain else self._now
        return self._calm(plain_width, length, known) / self._calm(width, length, known)

    def _calm(self, width: int, length: int, known: Mapping[int, float]) -> float:
        return self._base(width, known) + length * (self.slope + (width - 1) * self.row_slope)

    def _base(self, width: int, known: Mapping[int, float]) -> float:
        index = bisect_left(self._widths, width)
        if index == len(self._widths):
            return known[self._widths[-1]] * width / self._widths[-1]
        right = self._widths[index]
        if right == width or index == 0:
            return known[right]
        left = self._widths[index - 1]
        share = (width - left) / (right - left)
        return known[left] * (1 - share) + known[right] * share

    def padded_width(self, width: int, limit: int, length: int = 0) -> int:
        """The cheapest width from `width` to `limit`: V'(n) = min over m >= n of V(m)."""
        wider = [candidate for candidate in self._widths if width < candidate <= limit]
        return min([width, *wider], key=lambda candidate: self.time(candidate, length))

    def padded_time(self, width: int, limit: int, length: int = 0) -> float:
        """Expected seconds of a pass that may be padded to a cheaper width."""
        return self.time(self.padded_width(width, limit, length), length)

    @property
    def certain(self) -> bool:
        """Whether all of it was measured calmly."""
        return all(sure >= 1 for sure in self.certainty.values())

    @property
    def measured(self) -> bool:
        """Whether nothing of it is merely assumed."""
        return all(sure > 0 for sure in self.certainty.values())

    @property
    def paced(self) -> bool:
        """Whether it is known how fast the machine is at all. Before that one pass says it, of whatever width."""
        return self._passes >= PACE_PASSES

    @property
    def knows_plain(self) -> bool:
        """Whether what a pass of plain decoding takes was measured, or seen often enough."""
        plain = [width for width in self._widths if self._is_plain(width)]
        return any(self._sure(width) > 0 or self._seen.get(width, 0.0) >= PLAIN_PASSES for width in plain)

    @property
    def slowed(self) -> float:
        """How many times as long passes take now as on the calm machine; 1.0 where that was never measured."""
        return self.scale if self._sure(1) >= 1 else 1.0

    @property
    def reach(self) -> int:
        """The widest pass that may be risked: double of what was seen. So a wrong guess shows where it is cheap."""
        known = [width for width in self._widths if self._sure(width) > 0] + list(self._seen)
        return sys.maxsize if self.measured else max(2 * max(known, default=1), LEAST_REACH)

    @property
    def has_news(self) -> bool:
        """Whether `learned` knows more than when it was last asked: only of what is not certain anyway."""
        return self._has_news

    def observe(self, width: int, length: int, seconds: float) -> None:
        """Learn from one pass: how fast the machine is now, and what this width costs.

        What was measured calmly is moved a little, what was assumed soon follows what is seen.
        """
        ratio = seconds / self.time(width, length)
        if not self.certain:
            self._has_news = True
            self._name(width)
        known = WORTH * self._sure(width) + self._seen.get(width, 0.0)
        self._seen[width] = self._seen.get(width, 0.0) + 1
        if not self.paced or (self._is_plain(width) and not self.certain):
            self.rescale(ratio, width)
            return
        wrong_by = self._contradiction(width, ratio)
        if wrong_by is not None and self._sure(width) < 1:
            self._mend(width, wrong_by)
            return
        ratio = min(max(ratio, 1 / MAX_DRIFT), MAX_DRIFT)
        # As long as the curve is in doubt, a wide pass speaks of the curve and not of the machine.
        self.scale *= ratio ** (FOLLOW * min(1.0, (1 + known) / (1 + WORTH)))
        self._correct(width, ratio, max(1 / (2 + known), FOLLOW if self._sure(width) < 1 else 0.0))

    def _name(self, width: int) -> None:
        """Give a width that was interpolated an entry of its own."""
        if width not in self.seconds:
            self._now[width] = self._base(width, self._now)
            self.seconds = {**self.seconds, width: self._now[width]}
            self.certainty = {**self.certainty, width: 0.0}
            insort(self._widths, width)

    def _contradiction(self, width: int, ratio: float) -> float | None:
        """By how much the last passes of a width all were slower, or all faster, at least; None where they were not.

        width: 0 for passes of whatever widths.
        """
        before = self._strays.get(width, [])
        if 1 / STRAY < ratio < STRAY:
            self._strays[width] = []
            return None
        row = [*before, ratio] if before and (before[0] > 1) == (ratio > 1) else [ratio]
        self._strays[width] = row[-IN_A_ROW:]
        return min(row, key=lambda stray: abs(log2(stray))) if len(row) >= IN_A_ROW else None

    def _mend(self, width: int, ratio: float) -> None:
        """What was known of this width is wrong; or of one token, where most of the widths that were seen say so."""
        self.certainty = {**self.certainty, width: min(self._sure(width), LEARNED)}
        self._seen[width] = 1.0
        moved = ratio**MEND
        others = [other for other in self._strays if other not in (0, width)]
        rows = {other: self._strays[other] for other in others if len(self._strays[other]) >= IN_A_ROW}
        agree = [other for other, row in rows.items() if (row[0] > 1) == (ratio > 1)]
        if 1 + len(agree) > len(others) - len(agree) > 0 and self._sure(1) < 1:
            self.scale *= moved
            for other in set(others) - set(agree):
                if self._sure(other) < 1 or other == 1:
                    self._now[other] /= moved
        else:
            self._correct(width, ratio, MEND)

    def _correct(self, width: int, ratio: float, gain: float) -> None:
        for other in self._widths:
            sure = self._sure(other)
            if other == width:
                share = 1.0
            elif sure >= 1 or self._is_plain(other):
                continue
            else:
                share = (1 - sure) / (1 + self._seen.get(other, 0.0)) * PER_OCTAVE ** abs(log2(other / width))
            moved = self._now[other] * ratio ** (gain * share)
            if sure >= 1:  # what was measured calmly is not that wrong
                moved = min(max(moved, self.seconds[other] / 2), self.seconds[other] * 2)
            elif self._seen.get(other, 0.0) < WORTH:
                moved = max(moved, PLAUSIBLE * self._now[1])
            self._now[other] = moved

    def rescale(self, ratio: float, width: int = 0) -> None:
        """Learn that a pass took `ratio` times the expected seconds, in whatever widths, or in this one."""
        wrong_by, gain = self._contradiction(width, ratio), 1 / (1 + self._passes)
        low, high = 1 / MAX_DRIFT, MAX_DRIFT
        if gain > FOLLOW:  # still learning: what else runs makes passes slow, and nothing makes them fast
            low, high = 0.0, high if self._passes else ratio
            if ratio < 1:  # far too fast: what was learned so far was a pass that stalled
                gain = 1.0 if ratio < 1 / MAX_DRIFT else max(gain, TRUST)
        self._passes += 1
        self._has_news |= not self.certain
        if wrong_by is not None and gain < MEND:
            self.scale *= wrong_by**MEND
            return
        self.scale *= min(max(ratio, low), high) ** max(gain, FOLLOW)

    def _sure(self, width: int) -> float:
        """Between widths that all were measured calmly nothing is in doubt."""
        return self.certainty[width] if width in self.certainty else float(self.certain)

    def _is_plain(self, width: int) -> bool:
        """Whether plain decoding's passes have this width: one token, or what it is padded to."""
        return width == 1 or self.seconds.get(width) == self.seconds[1]

    def learned(self) -> CostTable:
        """All of it as it is known now. The pace of the moment is left out where the calm one was measured."""
        self._has_news = False
        pace = 1.0 if self._sure(1) >= 1 else self.scale
        return CostTable(
            {width: pace * seconds for width, seconds in self._now.items()},
            pace * self.slope,
            pace * self.row_slope,
            certainty={
                width: max(sure, min(LEARNED, self._seen.get(width, 0.0) / WORTH))
                for width, sure in self.certainty.items()
            },
        )

    def improve(self, found: CostTable, *, slopes: bool, complete: bool) -> None:
        """Take over what was measured just now. slopes: also how it grows with the context. complete: all widths that
        are ever measured were, so that others are interpolated.

        A calm measurement replaces what is less certain; others are averaged. What is still assumed keeps its
        proportion to a pass of one token.
        """
        known = self.learned()
        seconds, certainty = dict(known.seconds), dict(known.certainty)
        for width, new in found.seconds.items():
            sure, old = found.certainty[width], certainty.get(width, 0.0)
            if sure >= 1 or old == 0:
                seconds[width], certainty[width] = new, sure
            elif old < 1:
                share = sure / (sure + old)
                seconds[width] = seconds[width] ** (1 - share) * new**share
                certainty[width] = min(sure + old, BUSY)
        pace = seconds[1] / known.seconds[1]
        for width in known.seconds:
            if width in found.seconds or certainty[width] >= 1:
                continue
            if complete:
                del seconds[width]
            elif certainty[width] == 0:
                seconds[width] *= pace
        source, pace = (found, 1.0) if slopes else (known, pace)
        self.seconds, self.certainty, self.scale = seconds, certainty, 1.0
        self.slope, self.row_slope = pace * source.slope, pace * source.row_slope
        self.__post_init__()
        self._has_news = True

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON; `from_dict` reads it back."""
        return {
            "seconds": {str(width): self.seconds[width] for width in self._widths},
            "slope": self.slope,
            "row_slope": self.row_slope,
            "certainty": {str(width): self.certainty[width] for width in self._widths},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> CostTable:
        """Raises `ValueError`, `KeyError` or `TypeError` when `data` is not of that form."""
        seconds, certainty = data["seconds"], data.get("certainty", {})
        if not isinstance(seconds, Mapping) or not seconds or not isinstance(certainty, Mapping):
            raise ValueError("no measured widths")
        table = cls(
            {int(width): float(value) for width, value in seconds.items()},
            float(data["slope"]),  # type: ignore[arg-type]
            float(data["row_slope"]),  # type: ignore[arg-type]
            certainty={int(width): float(value) for width, value in certainty.items()},
        )
        if min(table.seconds.values()) <= 0 or 1 not in table.seconds:
            raise ValueError("widths must start at 1 and times be positive")
        if not all(0 <= sure <= 1 for sure in table.certainty.values()):
            raise ValueError("a certainty is a share")
        return table
