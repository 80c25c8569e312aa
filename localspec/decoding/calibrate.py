"""Times a Context through its Protocol: what a pass costs here, by width and context length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from localspec.decoding.costs import DOUBTED, PLAUSIBLE, CostTable
from localspec.decoding.rollback import rollback_of, rollback_seconds
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
FILLING = 32
"""Tokens of the passes that only fill cells: short ones, for whoever waits for the machine."""
UNSTEADY = 1.3
"""Passes whose median is this much above their least were disturbed: the machine is busy with something else."""
DISTURBED = 0.6
"""The most certainty that disturbed passes give. A width that was timed only once says nothing: that pass may have
stalled."""
GROUP = 4
"""Widths that are timed in turn before the next ones are: whoever interrupts leaves what was timed twice."""
MANY = 8
"""Passes of one token after which it is believed that a wider one takes less."""

TOKEN_TURNS, TOKEN_SECONDS = 9, 2.0
"""Samples of each context where several are compared, and the time after which fewer will do."""


@dataclass(frozen=True)
class Calibration:
    """What was measured. steady: whether the machine had the time to itself; slopes: whether growth with the context
    was measured too; complete: whether all widths were; spread: how far the median of equal passes is above their
    least.
    """

    table: CostTable
    steady: bool
    slopes: bool = True
    complete: bool = True
    spread: float = 1.0


def calibrate(
    context: Context,
    *,
    verifies: bool,
    min_width: int = 1,
    repeats: int = 3,
    max_seconds: float = 12.0,
    clock: Callable[[], float] = time.perf_counter,
    skip: Callable[[], bool] = lambda: False,
) -> Calibration:
    """Measure T(n, L): the least of `repeats` passes in turn, two once `max_seconds` are over.

    verifies: whether every token of a pass wants its logits (a target's pass) or only the last (a draft's).
    min_width: narrower passes are padded to this, and cost what it costs.
    skip: asked after each pass whether what is known by then shall do.
    Overwrites sequence 0 of the context and leaves it empty, also when a pass fails or is cancelled.
    """
    context.truncate(0, 0)
    calibrator = Calibrator(context, verifies=verifies, min_width=min_width, clock=clock)
    try:
        for _ in calibrator.passes(repeats, max_seconds):
            if skip() and calibrator.has_begun:
                break
    finally:  # also when it is cancelled: who reads next must not find these tokens
        context.truncate(0, 0)
    return calibrator.result()


class Calibrator:
    """Times passes one by one at the end of a sequence; what it knows can be asked for after any of them.

    held: cells in sequence 0 of the context that stay as they are. Behind them it leaves what it likes.
    known: costs so far. Only widths that are not certain there are timed, and behind cells that stay only the widths,
    whose share of growth with the context is taken from there.
    """

    def __init__(
        self,
        context: Context,
        *,
        verifies: bool,
        min_width: int = 1,
        held: int = 0,
        known: CostTable | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._context, self._verifies, self._clock = context, verifies, clock
        self._min_width, self._held, self._known = min_width, held, known
        self._length = held
        self._samples: dict[int, list[float]] = {}
        self._widths: list[int] = []
        self._near: list[float] = []
        self._far: list[float] = []
        self._distance = 0

    @property
    def has_begun(self) -> bool:
        """Whether there is a result."""
        return len(self._samples.get(1, ())) > 1

    def passes(self, repeats: int = 3, max_seconds: float = 12.0) -> Iterator[None]:
        """Make the passes, and come back after each. At least two turns of the widths, whatever they take."""
        context, started = self._context, self._clock()
        most = min(context.n_batch, context.n_outputs) if self._verifies else context.n_batch
        room = context.n_ctx - self._held
        limit = max(min(most, room // 2), 1)
        widths = [width for width in (WIDTHS if self._verifies else DRAFT_WIDTHS) if width <= limit]
        if self._known is not None:
            sure = self._known.certainty
            widths = [width for width in widths if width == 1 or sure.get(width, 0.0) < 1]
        self._widths = widths
        near, far = min(SHORT, room // 4), min(LONG, room // 2)
        can_cut = rollback_of(context).kind == "cut"
        # Behind cells that stay nothing is filled where only what one pass wrote can be taken back.
        yield from self._fill(max(self._held, near) if can_cut or not self._held else self._held)
        self.time(1)  # the first pass of a graph is slower
        yield
        yield from self._turns(widths, repeats, started + 0.5 * max_seconds)
        again = [width for width in widths if width <= NARROW or self._spread(width) >= UNSTEADY]
        yield from self._turns(again, repeats, started + 0.65 * max_seconds)
        if far > near and not self._held:
            yield from self._again(self._near, started + 0.7 * max_seconds)
            yield from self._fill(far)
            self._distance = far - near
            yield from self._again(self._far, started + max_seconds)

    def _fill(self, length: int) -> Iterator[None]:
        """Put arbitrary tokens into the cells up to `length`."""
        while self._length < length:
            size = min(length - self._length, self._context.n_batch, FILLING)
            self._context.decode([Span(0, self._tokens(size), self._length, 0)])
            self._length += size
            yield

    def _turns(self, widths: Sequence[int], repeats: int, until: float) -> Iterator[None]:
        """Time the widths in turn, so that a busy moment spoils one sample of each at most."""
        groups = [widths[start : start + GROUP] for start in range(0, len(widths), GROUP)]
        turns = [group for group in groups for _ in range(2)]
        for index, turn in enumerate([*turns, *[widths] * (repeats - 2)]):
            if index >= len(turns) and self._clock() > until:
                return
            for width in turn:
                seconds = self.time(width)
                self._samples.setdefault(width, []).append(seconds)
                yield

    def _spread(self, width: int) -> float:
        """How far the median of a width's passes is above their least."""
        return statistics.median(self._samples[width]) / min(self._samples[width])

    def _again(self, samples: list[float], until: float) -> Iterator[None]:
        while len(samples) < SLOPE_REPEATS and (len(samples) < 2 or self._clock() <= until):
            samples.append(self.time(1))
            yield

    def time(self, width: int) -> float:
        """Seconds of one pass, which is undone."""
        rows = width if self._verifies else 1
        padding = max(self._min_width - width, 0)
        before = rollback_seconds(self._context)
        started = self._clock()
        self._context.decode(
            [
                Span(
                    0,
                    self._tokens(width + padding),
                    self._length,
                    rows,
                    padding,
                    self._min_width,
                    self._length,
                )
            ]
        )
        seconds = self._clock() - started - (rollback_seconds(self._context) - before)
        self._context.truncate(0, self._length)
        return seconds

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple((7 + 31 * index) % self._context.n_vocab for index in range(count))

    def result(self) -> Calibration:
        """What was measured so far, of which at least two passes of one token (`has_begun`)."""
        samples = {width: found for width, found in self._samples.items() if len(found) > 1}
        spread = statistics.median(self._spread(width) for width in samples)
        steady = spread < UNSTEADY
        seconds = {width: self._at_the_start(width, min(found)) for width, found in samples.items()}
        seconds[1] = min([seconds[1], *self._near])
        slope = 0.0
        if self._far:
            grown = (min(self._far) - min(self._near)) / self._distance
            slope = min(max(grown, 0.0), STEEPEST * min(self._near))
        certainty = {}
        for width in samples:
            worst = max(spread, self._spread(width))
            certainty[width] = 1.0 if worst < UNSTEADY else min(DISTURBED, 1 / worst**2)
        if len(samples[1]) + len(self._near) < MANY and PLAUSIBLE * seconds[1] > min(seconds.values()):
            certainty[1] = DOUBTED
        # Every row reads all cells for itself, so each costs what the first one does.
        table = CostTable(seconds, slope, slope, certainty=certainty)
        complete = all(len(self._samples.get(width, ())) > 1 for width in self._widths)
        return Calibration(table, steady and complete, bool(self._far), complete, spread)

    def _at_the_start(self, width: int, seconds: float) -> float:
        """What a pass would take without the cells that stay before it; never less than half of what it took."""
        if self._known is None or not self._held:
            return seconds
        known = self._known
        grown = self._held * (known.slope + (width - 1) * known.row_slope)
        return max(seconds - known.scale * grown, seconds / 2)


def time_token(
    contexts: Mapping[str, Context], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of one-token passes of each; they take turns, so that a busy moment spoils one sample each."""
    filled = SHORT
    for context in contexts.values():
        context.truncate(0, 0)
        context.decode([Span(0, tuple(range(1, filled + 1)), 0, 0)])
        _token(context, filled, clock)  # the first pass of a graph is slower
    started = clock()
    samples: dict[str, list[float]] = {name: [] for name in contexts}
    for turn in range(TOKEN_TURNS):
        for name, context in contexts.items():
            samples[name].append(_token(context, filled, clock))
        if turn >= 2 and clock() - started > TOKEN_SECONDS:
            break
    for context in contexts.values():
        context.truncate(0, 0)
    return samples


def _token(context: Context, length: int, clock: Callable[[], float]) -> float:
    started = clock()
    context.decode([Span(0, (7,), length, 1, sure=length)])
    seconds = clock() - started
    context.truncate(0, length)
    return seconds
