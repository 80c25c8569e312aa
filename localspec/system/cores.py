"""How many processors there are for computing, and how much of them others use now."""

from __future__ import annotations

import os


def physical_cores() -> int:
    """Physical cores this process may use: a second thread per core slows matrix products down."""
    import psutil

    allowed = processors()
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def busy_share(seconds: float = 0.2) -> float:
    """Share of the processors that is used now, 0 to 1: looks for so many seconds, in which it computes nothing."""
    import psutil

    return float(psutil.cpu_percent(interval=seconds)) / 100


def processors() -> int:
    """Processors this process may use, the second threads of cores counted as well."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def allowed_processors() -> tuple[int, ...] | None:
    """Numbers of those this process may use where it may not use all; None where it may, or the system has no limit."""
    if not hasattr(os, "sched_getaffinity") or processors() >= (os.cpu_count() or 1):
        return None
    return tuple(sorted(os.sched_getaffinity(0)))
