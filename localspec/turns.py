"""Whose turn it is: one answer at a time on an engine that any thread may use, cancel or close."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from localspec.errors import EngineBusy, EngineClosed
from localspec.llama.forks import check_process, is_forked
from localspec.request import Chunk, Completion

POLL_SECONDS = 0.01


def closed() -> EngineClosed:
    """The error of whoever uses an engine that was closed."""
    return EngineClosed("The engine was closed.", "Load it again.")


class Flag(Protocol):
    """Stops forward passes while it is set."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Ticket:
    """A place in the queue. `cancelled` is read between rounds. thread: the last that used it."""

    def __init__(self) -> None:
        self.cancelled = False
        self.thread: threading.Thread | None = None
        self.stream: Callable[[], AnswerStream | None] = lambda: None

    def close_unread(self) -> None:
        """End its answer, which nobody may ever read on. One that computes right now ends by its cancelled pass."""
        stream = self.stream()
        if stream is not None:
            stream.close_unread()


class AnswerStream(Iterator[Chunk]):
    """The chunks of one answer. Any thread may read on, one at a time; closing or dropping it frees the engine."""

    def __init__(self, turns: Turns, ticket: Ticket, chunks: Iterator[Chunk]) -> None:
        self._turns, self._ticket, self._chunks = turns, ticket, chunks
        self._when_complete: Callable[[Completion], None] = _tell_nobody
        self._reading = threading.RLock()
        self._ended = threading.Event()
        # The generator's frame holds the ticket, and must not hold the stream: dropping that has to end it at once.
        ticket.stream = weakref.ref(self)

    def __next__(self) -> Chunk:
        check_process()
        with self._reading:
            if self.executing:
                raise EngineBusy("This answer is being read further up in this thread.", "Read it there.")
            self._ticket.thread = threading.current_thread()
            try:
                chunk = next(self._chunks)
            except BaseException:
                self._ended.set()
                raise
        if chunk.completion is not None:
            try:
                self._when_complete(chunk.completion)
            finally:
                self._ended.set()
        return chunk

    @property
    def executing(self) -> bool:
        """Whether a thread computes it right now."""
        return bool(getattr(self._chunks, "gi_running", False))

    @property
    def ended(self) -> bool:
        """Whether nothing more will come: it is complete, it failed, or it was closed."""
        return self._ended.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether it was told to end."""
        return self._ticket.cancelled

    def when_complete(self, tell: Callable[[Completion], None]) -> AnswerStream:
        """`tell` gets the completion before the last chunk is handed out, in the thread that reads; returns itself."""
        self._when_complete = tell
        return self

    def cancel(self) -> None:
        """End this answer with finish reason `cancelled`; from any thread, also before it began."""
        self._turns.cancel([self._ticket])

    def close(self) -> None:
        """End this answer without reading it on, from any thread.

        What another thread computes for it is cancelled first. Within its own reading (a callback, a signal handler)
        it is cancelled, and ends after that.
        """
        self._when_complete = _tell_nobody
        if not self.close_unread() and not is_forked():
            self.cancel()
            with self._reading:
                self._close()

    def close_unread(self) -> bool:
        """`close`, unless it is being read right now; whether it was closed."""
        if is_forked() or not self._reading.acquire(blocking=False):
            return False
        try:
            return self._close()
        finally:
            self._reading.release()

    def _close(self) -> bool:
        if self.executing:
            return False
        self._chunks.close()  # type: ignore[attr-defined]
        self._ended.set()
        return True

    def wait(self, timeout: float) -> bool:
        """Wait until another thread has read it to its end; whether it has. False at once where none is reading."""
        reader = self._ticket.thread
        if reader is None or reader is threading.current_thread() or not reader.is_alive():
            return self.ended
        return self._ended.wait(timeout)


def _tell_nobody(completion: Completion) -> None:
    pass


class Turns:
    """Queues answers on one engine, first come, first served; `close` waits for whoever uses it.

    flag: ends a forward pass.
    """

    def __init__(self, flag: Flag) -> None:
        self._changed = threading.Condition()
        self._flag = flag
        self._running: Ticket | None = None
        self._queue: deque[Ticket] = deque()
        self._open: weakref.WeakSet[Ticket] = weakref.WeakSet()
        self._users: Counter[threading.Thread] = Counter()
        self._closing = False
        self._exiting = False
        self._free: Callable[[], None] | None = None
        self._left = time.monotonic()

    def ticket(self) -> Ticket:
        """For a new answer: `cancel` without tickets ends it too."""
        ticket = Ticket()
        with self._changed:
            self._open.add(ticket)
        return ticket

    @contextmanager
    def using(self) -> Iterator[None]:
        """Short use of the models beside a running answer, such as tokenizing."""
        check_process()
        with self._changed:
            self._refuse_closed()
            me = threading.current_thread()
            self._users[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= Counter([me])
                self._left = time.monotonic()
                self._changed.notify_all()
            self._when_left()

    @contextmanager
    def turn(self, ticket: Ticket) -> Iterator[bool]:
        """Wait for those who came before; False, and the engine is somebody else's, for a ticket that was cancelled.

        Raises `EngineBusy` where waiting would never end, `EngineClosed`.
        """
        check_process()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._wait_for(ticket)
                self._refuse_closed()
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
            if not ticket.cancelled:
                ticket.thread = threading.current_thread()
                self._running = ticket
                self._flag.clear()
        try:
            yield self._running is ticket
        finally:
            with self._changed:
                if self._running is ticket:
                    self._running = None
                    self._left = time.monotonic()
                self._open.discard(ticket)
                self._changed.notify_all()
            self._when_left()

    def _when_left(self) -> None:
        with self._changed:
            free = None if self._running is not None or self._users else self._free
        if free is not None:
            free()

    def _wait_for(self, ticket: Ticket) -> None:
        while not (self._closing or ticket.cancelled) and (
            self._running is not None or self._queue[0] is not ticket
        ):
            if self._running is not None and self._running.thread is threading.current_thread():
                raise EngineBusy(
                    "This thread has the engine: an answer is still being read, or a block of `exclusive` is open.",
                    "Read the answer to its end or close it; leave the block.",
                )
            self._changed.wait()

    @property
    def idle_seconds(self) -> float:
        """For how long nobody has used the engine; 0 while somebody does."""
        with self._changed:
            return self._idle_seconds()

    def if_idle(self, seconds: float, action: Callable[[], None]) -> bool:
        """Do `action`, with everybody kept out, if nobody has used the engine for so long; whether it was done."""
        if is_forked():
            return False
        with self._changed:
            if self._closing or self._in_use or self._idle_seconds() < seconds:
                return False
            action()
            return True

    @property
    def _in_use(self) -> bool:
        return bool(self._running is not None or self._users or self._queue)

    def _idle_seconds(self) -> float:
        return 0.0 if self._in_use else time.monotonic() - self._left

    def cancel(self, tickets: list[Ticket] | None = None) -> None:
        """End these answers, or all that were asked for until now, and the passes of whoever has the engine."""
        if is_forked():  # a thread that is not here may hold the lock
            return
        with self._changed:
            for ticket in list(self._open) if tickets is None else tickets:
                ticket.cancelled = True
            if self._running is not None and (tickets is None or self._running in tickets):
                self._flag.set()
            self._changed.notify_all()

    def close(self, free: Callable[[], None], timeout: float | None = None) -> None:
        """Let nobody in any more, end what runs, then call `free`; not if that takes more than `timeout` seconds.

        In the middle of an answer or a use of this very thread (a callback, a signal handler, the end of a collected
        object) there is nothing to wait for: `free` is called when that is over.
        """
        if is_forked():
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        while True:
            self.cancel()
            suspended = self._running
            if suspended is not None:
                suspended.close_unread()
            with self._changed:
                if self._running is None and not self._users:
                    break
                if self._is_below(suspended):
                    self._free = free
                    return
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
        free()

    def _is_below(self, running: Ticket | None) -> bool:
        """Whether this thread is in the middle of a use, or of `running`, which could not be closed."""
        me = threading.current_thread()
        return self._users[me] > 0 or (
            running is not None and running is self._running and running.thread is me
        )

    def close_at_exit(self, free: Callable[[], None], timeout: float) -> None:
        """`close` at the end of the interpreter."""
        self._exiting = True
        self.close(free, timeout)

    def _refuse_closed(self) -> None:
        while self._exiting and threading.current_thread().daemon:
            # It ends with the process. An error would be the last thing the user sees of a program that ended well.
            self._changed.wait()
        if self._closing:
            raise closed()
