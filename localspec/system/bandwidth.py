"""How fast this machine reads memory, which is what decoding mostly waits for."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from localspec.system.cores import physical_cores

_BLOCK = 256 << 20
"""Bytes read in turn, by all cores together: more than caches hold."""


def read_bandwidth(seconds: float = 0.4) -> float:
    """Bytes a second that all physical cores read together: the best of the passes that `seconds` have room for.

    On a busy machine it is too low. At least one pass is made.
    """
    import numpy as np

    cores = physical_cores()
    parts = np.array_split(np.ones(_BLOCK // 8, dtype=np.int64), cores)
    best, started = float("inf"), time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        while best == float("inf") or time.perf_counter() - started < seconds:
            before = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - before)
    return _BLOCK / best
