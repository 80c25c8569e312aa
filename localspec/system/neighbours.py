"""Neighbours: what others take of the processors that this process may use."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_COLUMNS = (0, 1, 2, 5, 6, 7)
"""Of a line of it: user, nice, system, irq, softirq, steal (what a virtual machine did not get)."""
_FIELDS = ("user", "nice", "system", "irq", "softirq", "steal")


@dataclass(frozen=True, slots=True)
class Glance:
    """What the processors have done up to a moment, in seconds.

    at: of `time.perf_counter`. busy: work of all of them together, for whomever. own: this process's part of it.
    running: threads, of any process, that run now or would if there were room; None where the system does not say.
    """

    at: float
    busy: float
    own: float
    running: int | None


class Neighbours:
    """Looks at them in some 15 microseconds, so that it can be done before every pass."""

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._source = self._from_psutil if self._allowed is None else self._from_stat

    def look(self) -> Glance:
        """Work so far, and what runs at this moment. Where the system shows nothing, nobody else works."""
        own = time.process_time()
        try:
            busy, running = self._source()
        except (OSError, ValueError, IndexError):  # a sandbox
            busy, running = own, None
        return Glance(time.perf_counter(), busy, own, running)

    def _from_stat(self) -> tuple[float, int | None]:
        """By Linux's own page, which also tells processors apart and counts what runs."""
        lines = _STAT.read_bytes().split(b"\n")
        processors = [line.split() for line in lines[1:] if line.startswith(b"cpu")]
        allowed = [fields for fields in processors if int(fields[0][3:]) in (self._allowed or ())]
        ticks = sum(int(fields[1 + column]) for fields in allowed for column in _COLUMNS)
        running = None
        if len(allowed) == len(processors):  # it is counted for all of them together
            counted = (line for line in lines if line.startswith(b"procs_running "))
            running = next((int(line.split()[1]) for line in counted), None)
        return ticks / os.sysconf("SC_CLK_TCK"), running


    def _from_psutil(self) -> tuple[float, int | None]:
        import psutil

        times = psutil.cpu_times()
        return float(sum(getattr(times, field, 0.0) for field in _FIELDS)), None
