"""Worker: the one thread that waits for models, so that the window never does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Job:
    """Something that the window wants done. `cancel` works from any thread and at any moment, also before it begins."""

    def __init__(self, work: Callable[[Job], object]) -> None:
        self.work = work
        self.cancelled = False
        self._end: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def ends_by(self, end: Callable[[], object]) -> None:
        """How to end what is being done from now on; called at once where `cancel` came first."""
        with self._lock:
            self._end = end
            cancelled = self.cancelled
        if cancelled:
            end()

    def cancel(self) -> None:
        """Tell it to end; returns at once."""
        with self._lock:
            self.cancelled, end = True, self._end
        end()


class Worker:
    """Does jobs one after the other. failed: told in its thread of what a job raised."""

    def __init__(self, failed: Callable[[Job, Exception], None]) -> None:
        self._failed = failed
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        threading.Thread(target=self._run, name="localspec window", daemon=True).start()

    def submit(self, work: Callable[[Job], object]) -> Job:
        """Do that after what was submitted before."""
        job = Job(work)
        self._jobs.put(job)
        return job

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job.work(job)
            except Exception as error:
                self._failed(job, error)
