"""How many processors there are for computing."""

from __future__ import annotations

import os


def physical_cores() -> int:
    """Physical cores this process may use: a second thread per core slows matrix products down."""
    import psutil

    allowed = processors()
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def processors() -> int:
    """Processors this process may use, the second threads of cores counted as well."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
