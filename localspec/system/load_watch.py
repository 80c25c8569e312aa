"""LoadWatch: how far a load in a thread has come, and how to end it from outside."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from localspec.errors import LoadCancelled
from localspec.system.progress import Pace, Progress, ProgressCallback, Stage


class Flag(Protocol):
    """Stops forward passes while it is set."""

    def set(self) -> None: ...


class LoadWatch:
    """One load. `report` hears how far it is, in the loading thread, some ten times a second.

    `cancel` works from any thread: reading weights ends at the next tensor, a measuring pass at once.
    outer: one that follows the same load from further out; it hears the same, and its `cancel` ends the load too.
    """

    def __init__(self, report: ProgressCallback | None = None, *, outer: LoadWatch | None = None) -> None:
        self._report, self._outer = report, outer
        self._lock = threading.Lock()
        self._flags: weakref.WeakSet[Flag] = weakref.WeakSet()
        self._cancelled = False
        self._pace = Pace()
        self._stage, self._sentence = Stage.START, ""
        self._low, self._high, self._done = 0.0, 0.0, 0.0

    @property
    def cancelled(self) -> bool:
        """Whether the load was told to end."""
        return self._cancelled or (self._outer is not None and self._outer.cancelled)

    def cancel(self) -> None:
        """End the load."""
        with self._lock:
            self._cancelled = True
            flags = list(self._flags)
        for flag in flags:
            flag.set()

    def adopt(self, flag: Flag) -> None:
        """Take on a flag of this load, to be set when the load is cancelled."""
        with self._lock:
            self._flags.add(flag)
            cancelled = self._cancelled
        if cancelled:
            flag.set()
        if self._outer is not None:
            self._outer.adopt(flag)

    def stage(self, stage: Stage, sentence: str, low: float, high: float) -> None:
        """Begin a stage, which takes the load from the share `low` to `high`. Raises `LoadCancelled`."""
        self.check()
        self._begin(stage, low, high)
        self.say(sentence)

    def _begin(self, stage: Stage, low: float, high: float) -> None:
        if self._outer is not None:
            self._outer._begin(stage, low, high)
        self._stage, self._low, self._high = stage, low, high

    def say(self, sentence: str) -> None:
        """Change the sentence of the stage."""
        if self._outer is not None:
            self._outer.say(sentence)
        self._sentence = sentence
        self._tell(always=True)

    def advance(self, fraction: float) -> bool:
        """Report that a share (0 to 1) of the stage is done; False if the load is to end."""
        if self._outer is not None:
            self._outer.advance(fraction)
        done = self._low + (self._high - self._low) * min(max(fraction, 0.0), 1.0)
        self._done = max(self._done, done)
        self._tell(always=fraction >= 1.0)
        return not self.cancelled

    def _tell(self, *, always: bool) -> None:
        self._done = max(self._done, self._low)
        if self._report is not None and self._pace.is_due(always):
            self._report(Progress(self._stage, self._done, self._sentence))

    def check(self) -> None:
        """Raise `LoadCancelled` if the load is to end."""
        if self.cancelled:
            raise LoadCancelled("The load was cancelled.", "Start it again.")


_watch: ContextVar[LoadWatch | None] = ContextVar("localspec_load_watch", default=None)


def current_watch() -> LoadWatch | None:
    """The watch over what this thread loads, or None."""
    return _watch.get()


@contextmanager
def watching(watch: LoadWatch) -> Iterator[None]:
    """`watch` follows what this thread loads inside the block."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def stage(stage: Stage, sentence: str, low: float, high: float) -> None:
    """`LoadWatch.stage` of this thread's load, if it is watched."""
    if (watch := _watch.get()) is not None:
        watch.stage(stage, sentence, low, high)


def check_cancelled() -> None:
    """`LoadWatch.check` of this thread's load, if it is watched."""
    if (watch := _watch.get()) is not None:
        watch.check()
