"""Neighbours: what others take of the processors that this process may use."""

from __future__ import annotations

import time
from dataclasses import dataclass

from localspec.system.cores import allowed_processors

_WORK = ("user", "nice", "system", "irq", "softirq", "steal")
"""Of what systems count for a processor; steal is what a virtual machine did not get of it."""

TICK = 0.02
"""Seconds before which a further look would show nothing new: systems count work in ticks of 4 to 16 ms."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What the processors have done up to a moment, in seconds.

    at: of `time.perf_counter`. busy: work of all of them together, for whomever. own: this process's part of it.
    """

    at: float
    busy: float
    own: float


class Neighbours:
    """Looks at them in some 50 microseconds, and remembers it for a tick: it can be asked before every pass."""

    def __init__(self) -> None:
        self._allowed = allowed_processors()
        self._last: Glance | None = None

    def look(self) -> Glance:
        """Work so far. Where the system shows none, as in some sandboxes, nobody else works."""
        if self._last is None or time.perf_counter() - self._last.at >= TICK:
            self._last = self._look()
        return self._last

    def _look(self) -> Glance:
        own = time.process_time()
        try:
            busy = self._busy()
        except (OSError, ValueError, IndexError, RuntimeError):
            busy = own
        return Glance(time.perf_counter(), busy, own)

    def _busy(self) -> float:
        import psutil

        if self._allowed is None:
            counted = [psutil.cpu_times()]
        else:
            each = psutil.cpu_times(percpu=True)
            counted = [each[processor] for processor in self._allowed]
        return float(sum(getattr(times, field, 0.0) for times in counted for field in _WORK))
