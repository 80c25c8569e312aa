"""The one thread in which this process makes its passes.

OpenMP keeps a team of threads for each thread that ever computed. Where all teams together have more threads than there
are processors, they no longer wait for each other in a loop but sleep, at every one of the hundreds of barriers of a
pass: in an application that computes now in this thread and now in that one, passes took a third longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_start = threading.Lock()


class _Job:
    """A pass to be made. found: what came of it, empty until then."""

    def __init__(self, make: Callable[[], int]) -> None:
        self._make = make
        self.found: list[int | BaseException] = []
        self._over = threading.Lock()
        self._over.acquire()

    def run(self) -> None:
        """Make it."""
        try:
            self.found.append(self._make())
        except BaseException as error:
            self.found.append(error)
        finally:
            self._over.release()

    def wait(self) -> BaseException | None:
        """Until it was made, whatever is raised meanwhile; returns that."""
        interrupt: BaseException | None = None
        while not self.found:  # asked again: what a signal's handler raises may come right behind the lock
            try:
                self._over.acquire()
            except BaseException as error:
                interrupt = error
        return interrupt


_jobs: SimpleQueue[_Job] = SimpleQueue()
_thread: threading.Thread | None = None


def made_there(make: Callable[[], int]) -> int:
    """What `make` returns, or raises, called in that thread. Who waits goes on only then, whatever interrupts it."""
    if threading.current_thread() is _started():
        return make()
    job = _Job(make)
    _jobs.put(job)
    interrupt = job.wait()
    (made,) = job.found
    if isinstance(made, BaseException):
        raise made
    if interrupt is not None:
        raise interrupt
    return made


def _started() -> threading.Thread:
    global _thread, _jobs
    with _start:
        if _thread is None or not _thread.is_alive():  # it does not come along into a process that is forked
            _jobs = SimpleQueue()
            _thread = threading.Thread(target=_make_all, args=(_jobs,), name="localspec passes", daemon=True)
            _thread.start()
        return _thread


def _make_all(jobs: SimpleQueue[_Job]) -> None:
    while True:
        jobs.get().run()
