"""The one thread in which this process makes its passes.

OpenMP keeps a team of threads for each thread that ever computed. Where all teams together have more threads than there
are processors, they no longer wait for each other in a loop but sleep, at every one of the hundreds of barriers of a
pass: in an application that computes now in this thread and now in that one, passes took a third longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_Reply = list[int | BaseException]
_Job = tuple[Callable[[], int], _Reply, threading.Lock]
"""What to make, where what came of it is put, and a lock that is released then."""
_jobs: SimpleQueue[_Job] = SimpleQueue()
_start = threading.Lock()
_thread: threading.Thread | None = None


def made_there(make: Callable[[], int]) -> int:
    """What `make` returns, or raises, called in that thread. Who waits goes on only then, whatever interrupts it."""
    if threading.current_thread() is _started():
        return make()
    reply: _Reply = []
    done = threading.Lock()
    done.acquire()
    _jobs.put((make, reply, done))
    interrupt: BaseException | None = None
    while (
        not reply
    ):  # an interrupt may come when the lock was had already, so the reply is not what it waits for
        try:
            done.acquire()
        except BaseException as error:  # the pass goes on, and its cells with it
            interrupt = error
    made = reply[0]
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
        make, reply, done = jobs.get()
        try:
            reply.append(make())
        except BaseException as error:
            reply.append(error)
        done.release()
