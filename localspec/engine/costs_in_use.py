"""CostsInUse: what passes of a loaded engine cost with each number of threads; measured, learned and written down."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

from localspec.decoding.costs import CostTable
from localspec.decoding.threads import ThreadControl
from localspec.engine.engine import Engine
from localspec.engine.idle_costs import IdleCalibration
from localspec.engine.measured_costs import Costs, costs_of_fewer, keep_costs, known_costs, measure_costs
from localspec.engine.options import Notify

MOST_CHANGES = 4
"""Of the number of threads, while costs are measured: then what is known shall do."""


class CostsInUse:
    """Of one engine, and of that which is loaded again in its place.

    most: with as many threads as it may have. fewer: with fewer, by their number, as far as they were ever asked for.
    home: where they are kept. redo: nothing from there.
    """

    def __init__(self, engine: Engine, home: Path | None, *, redo: bool = False) -> None:
        self.most = known_costs(engine, home, redo=redo)
        self.fewer: dict[int, Costs] = {}
        self._home = home
        self._idle, self._idle_beside_others = IdleCalibration(), IdleCalibration()

    def tables(self, engine: Engine) -> Callable[[int], tuple[CostTable, CostTable | None]]:
        """Those of target and draft, for a controller, which must not keep the engine alive."""
        return partial(_tables, self, weakref.ref(engine))

    def with_threads(self, engine: Engine, threads: int, *, redo: bool = False) -> Costs:
        """Of passes with so many threads. redo: those of fewer are not read from disk."""
        if engine.threads is None or threads == engine.threads.most:
            return self.most
        if redo or threads not in self.fewer:
            self.fewer[threads] = costs_of_fewer(engine, self.most, threads, self._home, redo=redo)
        return self.fewer[threads]

    def measure(
        self, engine: Engine, notify: Notify, skip: Callable[[], bool], *, redo: bool = False
    ) -> Costs:
        """Those with as many threads as there is room for, measured now as far as they are not certain.

        Where that number changes meanwhile, those with the new one are measured then.
        """
        control = engine.threads
        for _ in range(MOST_CHANGES):
            count = control.decide() if control else 0
            costs = self.with_threads(engine, count, redo=redo)
            is_over = partial(_or_other_threads, skip, control, count)
            measure_costs(engine, costs, self._home, notify=notify, skip=is_over)
            if skip() or not is_over():
                break
        return costs

    @property
    def may_measure(self) -> bool:
        """Whether there is something to measure in idle moments."""
        return not (self.most.certain or self._idle.over)

    def measure_idly(self, engine: Engine, stop: Callable[[], bool]) -> None:
        """Measure a little until `stop`. Beside others who use the machine, with the threads there is room for, and no
        more than that.
        """
        count = engine.threads.decide() if engine.threads else 0
        costs = self.with_threads(engine, count)
        idle = self._idle if costs is self.most else self._idle_beside_others
        if not (costs.certain or idle.over):
            idle.visit(engine, costs, partial(_or_other_threads, stop, engine.threads, count))

    def keep(self, engine: Engine) -> None:
        """Write down what was learned."""
        for costs in (self.most, *self.fewer.values()):
            keep_costs(engine, costs, self._home)


def _tables(
    costs: CostsInUse, engine: weakref.ref[Engine], threads: int
) -> tuple[CostTable, CostTable | None]:
    """What passes with so many threads cost."""
    loaded = engine()
    assert loaded is not None, "a pass without an engine"
    found = costs.with_threads(loaded, threads)
    return found.target, found.draft


def _or_other_threads(ended: Callable[[], bool], control: ThreadControl | None, count: int) -> bool:
    """Whether it is ended, or passes have another number of threads by now."""
    return ended() or (control is not None and control.decide() != count)
