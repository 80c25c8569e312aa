"""Whether bytes still come fast enough to be worth waiting for."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_SECONDS = 30.0
LEAST_BYTES_PER_SECOND = 1000


class Pace:
    """Counts bytes over windows of WINDOW_SECONDS.

    A time limit per read cannot see a server that sends one byte a second: this can.
    clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._bytes = 0

    def is_lost(self, count: int) -> bool:
        """Counts `count` bytes. True at the end of a window that had fewer than the least per second."""
        self._bytes += count
        seconds = self._clock() - self._since
        if seconds < WINDOW_SECONDS:
            return False
        slow = self._bytes < LEAST_BYTES_PER_SECOND * seconds
        self._since += seconds
        self._bytes = 0
        return slow
