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


class Flag(Protocol):
    """Stops forward passes while it is set."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Ticket:
    """A place in the queue. `cancelled` is read between rounds."""

    def __init__(self) -> None:
        self.cancelled = False
        self.thread: threading.Thread | None = None
        self.stream: Callable[[], AnswerStream | None] = lambda: None


class AnswerStream(Iterator[Chunk]):
    """The chunks of one answer. Any thread may read on; closing or dropping it frees the engine for the next."""

    def __init__(self, turns: Turns, ticket: Ticket, chunks: Iterator[Chunk]) -> None:
        self._turns, self._ticket, self._chunks = turns, ticket, chunks
        self._when_complete: Callable[[Completion], None] = lambda completion: None
        self._ended = False
        # The generator's frame holds the ticket, and must not hold the stream: dropping that has to end it at once.
        ticket.stream = weakref.ref(self)

    def __next__(self) -> Chunk:
        self._ticket.thread = threading.current_thread()
        try:
            chunk = next(self._chunks)
        except BaseException:
            self._ended = not self.executing  # another thread may be reading
            raise
        if chunk.completion is not None:
            self._ended = True
            self._when_complete(chunk.completion)
        return chunk

    @property
    def executing(self) -> bool:
        """Whether a thread computes it right now."""
        return bool(getattr(self._chunks, "gi_running", False))

    @property
    def ended(self) -> bool:
        """Whether nothing more will come: it is complete, it failed, or it was closed."""
        return self._ended

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
        """End this answer without reading it on."""
        self._chunks.close()  # type: ignore[attr-defined]
        self._ended = True


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

    def _wait_for(self, ticket: Ticket) -> None:
        while not (self._closing or ticket.cancelled) and (
            self._running is not None or self._queue[0] is not ticket
        ):
            if self._running is not None and self._running.thread is threading.current_thread():
                raise EngineBusy(
                    "Another answer is still being read in this thread.",
                    "Read it to its end or close it.",
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

    def close(self, timeout: float | None = None) -> bool:
        """Let nobody in any more and end what runs; False if it did not end within `timeout` seconds."""
        if is_forked():
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        while True:
            with self._changed:
                running = self._running
                if running is None and not self._users:
                    return True
            self.cancel()
            if running is not None:
                _close_suspended(running)
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)

    def close_at_exit(self, timeout: float) -> bool:
        """`close` at the end of the interpreter."""
        self._exiting = True
        return self.close(timeout)

    def _refuse_closed(self) -> None:
        while self._exiting and threading.current_thread().daemon:
            # It ends with the process. An error would be the last thing the user sees of a program that ended well.
            self._changed.wait()
        if self._closing:
            raise EngineClosed("The engine was closed.", "Load it again.")

    def check_outside(self) -> None:
        """Raise `EngineBusy` in a thread whose `close` would wait for itself."""
        me = threading.current_thread()
        running = self._running if self._running is not None and self._running.thread is me else None
        stream = None if running is None else running.stream()
        if self._users[me] or (running is not None and (stream is None or stream.executing)):
            raise EngineBusy(
                "The engine cannot be closed from within its own answer or block.",
                "Call cancel() there, and close() afterwards.",
            )


def _close_suspended(ticket: Ticket) -> None:
    """End an answer that nobody may ever read on. One that computes right now ends by its cancelled pass instead."""
    stream = ticket.stream()
    if stream is not None:
        try:
            stream.close()
        except ValueError:  # the generator is executing
            return
