"""Ticket: the place of one answer in the queue, and its seat when its turn has come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Unread(Protocol):
    """An answer, or what is left of it."""

    def close_unread(self) -> object: ...


class Ticket:
    """A place in the queue. `cancelled` is read between rounds. thread: the last that used it. admitted: had its turn.

    whole: it wants the engine for itself. seat: the one that it has; choose: which of several free ones it takes.
    seated: a thread of its own computes it, not whoever reads it. reader: who does then.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.cancelled = self.admitted = False
        self.thread: threading.Thread | None = None
        self.reader: threading.Thread | None = None
        self.stream: Callable[[], Unread | None] = lambda: None
        self.whole, self.seat, self.seated = whole, 0, False
        self.choose: Callable[[list[int]], int] = min

    def close_unread(self) -> None:
        """End its answer, which nobody may ever read on. One that computes right now ends by its cancelled pass."""
        stream = self.stream()
        if stream is not None:
            stream.close_unread()
