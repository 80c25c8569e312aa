"""Times a Context through its Protocol: what a pass costs here, by width and context length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.decoding.estimates import CostTable
from localspec.decoding.session import Context, Span

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 32)
"""Around the steps of known kernels: groups of 4, 8 and 16 rows."""
DRAFT_WIDTHS = (1, 2, 4, 8, 32)
"""A draft's passes are one token wide, or catch up with what was committed."""
NARROW = 6
"""Widths up to this are timed twice as often: they are cheap, and most rounds use them."""
SHORT, LONG = 32, 288
"""Context lengths, in tokens, at which passes are timed."""
SLOPE_REPEATS = 10
"""One-token passes timed at each length: what 256 cells add is a few per cent of a pass, less than its noise."""
STEEPEST = 1 / 4000
"""Growth of a one-token pass per cell, as a share of itself, beyond which the machine and not the model is to blame:
attention over a thousand cells was measured to add 8 to 25 % to a pass (more was seen on busy machines alone)."""
UNSTEADY = 1.3
"""Passes whose median is this much above their least were disturbed: the machine is busy with something else."""


@dataclass(frozen=True)
class Calibration:
    """What was measured; steady says whether the machine had the time to itself."""

    table: CostTable
    steady: bool


def calibrate(
    context: Context,
    *,
    verifies: bool,
    min_width: int = 1,
    repeats: int = 3,
    max_seconds: float = 12.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measure T(n, L): the least of `repeats` passes in turn, fewer once `max_seconds` are over.

    verifies: whether every token of a pass wants its logits (a target's pass) or only the last (a draft's).
    min_width: narrower passes are padded to this, and cost what it costs.
    Overwrites sequence 0 of the context and leaves it empty, also when a pass fails or is cancelled.
    """
    try:
        return _measured(context, verifies, min_width, repeats, max_seconds, clock)
    finally:  # also when it is cancelled: who reads next must not find these tokens
        context.truncate(0, 0)


def _measured(
    context: Context,
    verifies: bool,
    min_width: int,
    repeats: int,
    max_seconds: float,
    clock: Callable[[], float],
) -> Calibration:
    bench = _Bench(context, verifies, min_width, clock)
    most = min(context.n_batch, context.n_outputs) if verifies else context.n_batch
    limit = max(min(most, context.n_ctx // 2), 1)
    widths = [width for width in (WIDTHS if verifies else DRAFT_WIDTHS) if width <= limit]
    near, far = min(SHORT, context.n_ctx // 4), min(LONG, context.n_ctx // 2)
    bench.fill(near)
    bench.time(1)  # the first pass of a graph is slower
    seconds = bench.least(widths, repeats, 0.5 * max_seconds)
    narrow = [width for width in widths if width <= NARROW]
    again = bench.least(narrow, repeats, 0.65 * max_seconds)
    seconds |= {width: min(seconds[width], again[width]) for width in narrow}
    slope = 0.0
    if far > near:
        before = bench.least([1], SLOPE_REPEATS, 0.7 * max_seconds)[1]
        bench.fill(far)
        behind = bench.least([1], SLOPE_REPEATS, max_seconds)[1]
        seconds[1] = min(seconds[1], before)
        slope = min(max((behind - before) / (far - near), 0.0), STEEPEST * before)
    # Every row reads all cells for itself, so each costs what the first one does.
    return Calibration(CostTable(seconds, slope, row_slope=slope), bench.spread < UNSTEADY)


class _Bench:
    """Passes at the end of a filled sequence, undone after each."""

    def __init__(self, context: Context, verifies: bool, min_width: int, clock: Callable[[], float]) -> None:
        self._context, self._verifies, self._clock = context, verifies, clock
        self._min_width = min_width
        self._started = clock()
        self._length = 0
        self.spread = 1.0
        context.truncate(0, 0)

    def fill(self, length: int) -> None:
        """Put arbitrary tokens into the cells up to `length`."""
        while self._length < length:
            size = min(length - self._length, self._context.n_batch)
            self._context.decode([Span(0, self._tokens(size), self._length, 0)])
            self._length += size

    def least(self, widths: Sequence[int], repeats: int, until: float) -> dict[int, float]:
        """Least seconds by width; the widths take turns, so that a busy moment spoils one sample of each at most.

        At least two turns; no further one once `until` seconds have passed since the start.
        """
        samples: dict[int, list[float]] = {width: [] for width in widths}
        for turn in range(repeats):
            for width in widths:
                samples[width].append(self.time(width))
            if turn and self._clock() - self._started > until:
                break
        spreads = [statistics.median(values) / min(values) for values in samples.values()]
        self.spread = max(self.spread, statistics.median(spreads))
        return {width: min(values) for width, values in samples.items()}

    def time(self, width: int) -> float:
        """Seconds of one pass."""
        rows = width if self._verifies else 1
        padding = max(self._min_width - width, 0)
        started = self._clock()
        self._context.decode([Span(0, self._tokens(width + padding), self._length, rows, padding)])
        seconds = self._clock() - started
        self._context.truncate(0, self._length)
        return seconds

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple((7 + 31 * index) % self._context.n_vocab for index in range(count))
