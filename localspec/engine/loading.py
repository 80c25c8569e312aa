"""Loading: a load in a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from localspec.errors import BackendError, EngineBusy, LoadCancelled
from localspec.system.at_exit import close_at_exit
from localspec.system.load_watch import LoadWatch, current_watch, watching
from localspec.system.progress import Progress, ProgressCallback, Stage

EXIT_SECONDS = 5.0
"""How long the end of the interpreter waits for a load to stop."""
log = logging.getLogger(__name__)


class Closable(Protocol):
    """What a load results in."""

    def close(self) -> None: ...


Result = TypeVar("Result", bound=Closable)


def _ignore(sentence: str) -> None:
    pass


def watched(
    load: Callable[[Callable[[str], None]], Result],
    on_progress: ProgressCallback | None = None,
    *,
    watch: LoadWatch | None = None,
) -> Result:
    """What `load` results in, here and now; it gets a function to be told sentences.

    on_progress: told how far it is, up to "ready"; what it raises ends the load. watch: follows it, by default one for
    `on_progress` beside that which follows this thread already.
    """
    if watch is None and on_progress is None:
        return load(_ignore)
    watch = watch or LoadWatch(on_progress, outer=current_watch())
    with watching(watch):
        loaded = load(watch.say)
        try:
            watch.stage(Stage.READY, "ready", 1.0, 1.0)
        except BaseException:
            loaded.close()
            raise
        return loaded


class Loading(Generic[Result]):
    """A load that began. Any thread may ask for its progress and its result, or cancel it.

    load: gets a function to be told sentences, and returns what is loaded. on_progress: called in the loading
    thread with a `Progress`, some ten times a second; what it raises ends the load.
    """

    def __init__(
        self,
        load: Callable[[Callable[[str], None]], Result],
        on_progress: ProgressCallback | None = None,
    ) -> None:
        self._load, self._on_progress = load, on_progress
        self._progress = Progress(Stage.START, 0.0, "starting")
        self._watch = LoadWatch(self._report)
        self._lock = threading.RLock()  # a callback may ask or cancel
        self._finished = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="localspec load", daemon=True)
        close_at_exit(self)
        self._pid = os.getpid()
        self._thread.start()

    @property
    def progress(self) -> Progress:
        """The latest."""
        return self._progress

    @property
    def done(self) -> bool:
        """Whether it ended: loaded, failed or cancelled. A cancelled one has then freed everything."""
        return self._finished.is_set()

    def cancel(self) -> bool:
        """End the load, at any stage; returns at once. False if it was already done, which then holds.

        Weights stop being read at the next tensor and measurements in their middle. Only a copy of the draft that is
        being written (`prepare_draft`) is finished first, which takes seconds.
        """
        with self._lock:
            if self._finished.is_set():
                return False
            self._watch.cancel()
            return True

    def result(self, timeout: float | None = None) -> Result:
        """What was loaded; waits for it. Raises what the load raised, `LoadCancelled` after `cancel`.

        Raises `TimeoutError` where it takes longer than `timeout` seconds; the load goes on. Raises `EngineBusy` in
        `on_progress`, which is part of the load; `when_done` is told when there is a result.
        """
        if os.getpid() != self._pid:
            raise BackendError(
                "The load runs in the process that this one was forked from.",
                "Load in the process that is to use it.",
            )
        if threading.current_thread() is self._thread and not self.done:
            raise EngineBusy(
                "The thread that loads asked for the result of the load.",
                "Ask in another one, or in `when_done`.",
            )
        if not self._finished.wait(timeout):
            raise TimeoutError(f"The load is not done after {timeout} seconds: {self._progress.sentence}.")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def when_done(self, callback: Callable[[], None]) -> None:
        """`callback` is called once it ended, in the loading thread, or now if it ended before."""
        with self._lock:
            if not self._finished.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def close_at_exit(self) -> None:
        """Cancel it, and wait a while for its end."""
        self.cancel()
        self._thread.join(EXIT_SECONDS)

    def _report(self, progress: Progress) -> None:
        self._progress = progress
        if self._on_progress is not None:
            self._on_progress(self._progress)

    def _run(self) -> None:
        loaded: Result | None = None
        error: BaseException | None = None
        try:
            loaded = watched(self._load, watch=self._watch)
        except BaseException as fault:
            error = fault
        self._finish(loaded, error)

    def _finish(self, loaded: Result | None, error: BaseException | None) -> None:
        with self._lock:
            cancelled = self._watch.cancelled
            if error is None and not cancelled:
                self._end(loaded, None)
                return
        # Freed before it counts as done. Nobody can cancel what is cancelled or failed.
        if loaded is not None:
            loaded.close()
        if cancelled and not isinstance(error, LoadCancelled):
            error = LoadCancelled("The load was cancelled.", "Start it again.")
        log.info("not loaded: %s", error)
        with self._lock:
            self._end(None, error)

    def _end(self, loaded: Result | None, error: BaseException | None) -> None:
        self._result, self._error = loaded, error
        self._finished.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with suppress(Exception):
                callback()
