"""Whose turn it is on an engine that any thread may use, cancel or close: one answer at a time, or one in each seat."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from localspec.answers.ticket import Ticket
from localspec.errors import EngineBusy, EngineClosed
from localspec.system.forks import check_process, is_forked

POLL_SECONDS = 0.01


def closed() -> EngineClosed:
    """The error of whoever uses an engine that was closed."""
    return EngineClosed("The engine was closed.", "Load it again.")


class Flag(Protocol):
    """Stops forward passes while it is set."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class AnswerQueue:
    """Queues answers on one engine, first come, first served; `close` waits for whoever uses it.

    flag: ends a forward pass. num_seats: answers that may run at a time.
    """

    def __init__(self, flag: Flag, num_seats: int = 1) -> None:
        # Taken for itself: a condition is a lock that an interrupt can leave taken, as it takes it in Python.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._flag = flag
        self.num_seats = num_seats
        self._running: list[Ticket] = []
        self._background: Ticket | None = None
        self._waiting: deque[Ticket] = deque()
        self._open: weakref.WeakSet[Ticket] = weakref.WeakSet()
        self._users: dict[object, threading.Thread] = {}
        self._closing = False
        self._exiting = False
        self._free: Callable[[], None] | None = None
        self._left = time.monotonic()

    def ticket(self) -> Ticket:
        """For a new answer: `cancel` without tickets ends it too."""
        ticket = Ticket()
        with self._lock:
            self._open.add(ticket)
        return ticket

    @contextmanager
    def using(self) -> Iterator[None]:
        """Short use of the models beside a running answer, such as tokenizing."""
        check_process()
        use = object()
        try:
            with self._lock:
                self._refuse_closed()
                self._users[use] = threading.current_thread()
            yield
        finally:
            over, interrupt = False, None
            while not over:
                try:
                    with self._lock:
                        self._left = time.monotonic()
                        self._changed.notify_all()
                        self._users.pop(use, None)
                        over = True
                except BaseException as error:
                    # Of a signal's handler: who is not here any more must not stay. Not in a function of its own: in
                    # the call of one the next signal would find nobody to catch it.
                    interrupt = error
            self._when_left()
            if interrupt is not None:
                raise interrupt

    @contextmanager
    def admit(self, ticket: Ticket) -> Iterator[bool]:
        """Wait for those who came before; False, and the engine is somebody else's, for a ticket that was cancelled.

        Raises `EngineBusy` where waiting would never end, `EngineClosed` for a ticket that `close` did not end.
        """
        check_process()
        try:
            with self._lock:
                self._waiting.append(ticket)
                self._wait_for(ticket)
                self._hold_at_exit(ticket.reader)
                if not ticket.cancelled:
                    self._refuse_closed()
                    ticket.thread = threading.current_thread()
                    taken = {one.seat for one in self._running}
                    ticket.seat = ticket.choose([seat for seat in range(self.num_seats) if seat not in taken])
                    self._running.append(ticket)
                    ticket.admitted = True
                    self._flag.clear()
                self._changed.notify_all()
                self._waiting.remove(ticket)
            yield ticket in self._running
        finally:
            over, interrupt = False, None
            while not over:
                try:
                    with self._lock:
                        self._open.discard(ticket)
                        self._changed.notify_all()
                        if ticket in self._waiting:
                            self._waiting.remove(ticket)
                        if ticket in self._running:
                            self._left = time.monotonic()
                            self._running.remove(ticket)
                        over = True
                except BaseException as error:  # as above
                    interrupt = error
            self._when_left()
            if interrupt is not None:
                raise interrupt

    @contextmanager
    def idle_turn(self, seconds: float) -> Iterator[Ticket | None]:
        """The engine for what nobody waits for, if nobody has used it for so long; else None.

        Whoever comes cancels the ticket and its pass, and has the engine when the block is left. It is no use that
        `idle_seconds` knows of.
        """
        mine = None
        with self._lock:
            if self._background is None and self._is_idle(seconds):
                mine = self._background = Ticket()
                mine.thread = threading.current_thread()
                self._flag.clear()
        try:
            yield mine
        finally:
            if mine is not None:
                with self._lock:
                    self._background = None
                    self._flag.clear()
                    self._changed.notify_all()
                self._when_left()

    def end_idle_turn(self) -> None:
        """End what `idle_turn` lets run, and wait for its end; not in its own thread."""
        with self._lock:
            while self._stop_background() and not self._is_in_background:
                self._changed.wait()

    def cancel_idle_turn(self) -> None:
        """End what `idle_turn` lets run, without waiting for its end."""
        if not is_forked():
            with self._lock:
                self._stop_background()

    def _stop_background(self) -> bool:
        """Tell it to end; whether there is one."""
        if self._background is None:
            return False
        self._background.cancelled = True
        self._flag.set()
        return True

    @property
    def _is_in_background(self) -> bool:
        return self._background is not None and self._background.thread is threading.current_thread()

    def _when_left(self) -> None:
        with self._lock:
            free = None if self._is_computing or self._users else self._free
        if free is not None:
            free()

    def _wait_for(self, ticket: Ticket) -> None:
        while not (self._closing or ticket.cancelled) and (
            self._stop_background() or self._is_full_for(ticket) or self._waiting[0] is not ticket
        ):
            self.refuse_within()
            self._changed.wait()

    def refuse_within(self) -> None:
        """Raise `EngineBusy` in a thread that has the engine: what it waits for would wait for it."""
        with self._lock:
            mine = next((one for one in self._running if one.thread is threading.current_thread()), None)
            if mine is not None and mine.seated:
                raise EngineBusy(
                    "A logits processor asked for another answer, which would wait for the processor.",
                    "Ask for it when the answer of the processor is at its end.",
                )
            if mine is not None:
                raise EngineBusy(
                    "This thread has the engine: an answer is still being read, or a block of `exclusive` is open.",
                    "Read the answer to its end or close it; leave the block. Loaded with parallel=2 or more, one "
                    "thread reads several answers in turns.",
                )

    @property
    def is_in_seat(self) -> bool:
        """Whether this thread computes an answer that another one reads, as in a callback of it."""
        with self._lock:
            return any(one.seated and one.thread is threading.current_thread() for one in self._running)

    def _is_full_for(self, ticket: Ticket) -> bool:
        """Whether somebody has what it needs."""
        alone = ticket.whole or any(one.whole for one in self._running)
        return len(self._running) >= (1 if alone else self.num_seats)

    @property
    def taken(self) -> frozenset[int]:
        """Seats that answers have now."""
        with self._lock:
            return frozenset(one.seat for one in self._running)

    @property
    def idle_seconds(self) -> float:
        """For how long nobody has used the engine; 0 while somebody does."""
        with self._lock:
            return self._idle_seconds()

    def if_idle(self, seconds: float, action: Callable[[], None]) -> bool:
        """Do `action`, with everybody kept out, if nobody has used the engine for so long; whether it was done."""
        if is_forked():
            return False
        with self._lock:
            if not self._is_idle(seconds):
                return False
            self.end_idle_turn()
            if not self._is_idle(seconds):
                return False
            action()
            return True

    def _is_idle(self, seconds: float) -> bool:
        return not (is_forked() or self._closing or self._in_use or self._idle_seconds() < seconds)

    @property
    def _is_computing(self) -> bool:
        return bool(self._running) or self._background is not None

    @property
    def _in_use(self) -> bool:
        return bool(self._running or self._users or self._waiting)

    def _idle_seconds(self) -> float:
        return 0.0 if self._in_use else time.monotonic() - self._left

    def cancel(self, tickets: list[Ticket] | None = None) -> None:
        """End these answers, or all that were asked for until now, and the passes of whoever has the engine."""
        if is_forked():  # a thread that is not here may hold the lock
            return
        with self._lock:
            for ticket in list(self._open) if tickets is None else tickets:
                ticket.cancelled = True
            if self._running and (tickets is None or all(one.cancelled for one in self._running)):
                self._flag.set()
            self._changed.notify_all()

    def end_all(self) -> None:
        """Let nobody in any more, and tell what runs to end."""
        with self._lock:
            self._closing = True
            self._stop_background()
            for ticket in list(self._open):  # with the same lock: who waits is cancelled, and not refused
                ticket.cancelled = True
            if self._running:
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
        self.end_all()
        while True:
            self.cancel()
            for one in list(self._running):
                if not one.seated:  # those in seats end without their readers
                    one.close_unread()
            with self._lock:
                if not self._is_computing and not self._users:
                    break
                if self._is_below:
                    self._free = free
                    return
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
        free()

    @property
    def _is_below(self) -> bool:
        """Whether this thread is in the middle of a use, or of what runs and could not be closed."""
        me = threading.current_thread()
        return (
            self._is_in_background
            or me in self._users.values()
            or any(one.thread is me for one in self._running)
        )

    def close_at_exit(self, free: Callable[[], None], timeout: float) -> None:
        """`close` at the end of the interpreter."""
        self._exiting = True
        self.close(free, timeout)

    def _hold_at_exit(self, reader: threading.Thread | None = None) -> None:
        while self._exiting and (reader or threading.current_thread()).daemon:
            # It ends with the process. An error would be the last thing the user sees of a program that ended well.
            self._changed.wait()

    def _refuse_closed(self) -> None:
        self._hold_at_exit()
        if self._closing:
            raise closed()
