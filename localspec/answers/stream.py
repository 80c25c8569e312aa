"""AnswerStream: the chunks of one answer, for whatever thread reads, cancels or drops it. Pump: a thread that reads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import GEN_CREATED, GEN_RUNNING, GEN_SUSPENDED, getgeneratorstate

from localspec.answers.queue import AnswerQueue
from localspec.answers.request import Chunk, Completion
from localspec.answers.ticket import Ticket
from localspec.errors import DecodeCancelled, EngineBusy
from localspec.system.forks import check_process, is_forked


class AnswerStream(Iterator[Chunk]):
    """The chunks of one answer. Any thread may read on, one at a time; closing or dropping it frees the engine.

    The last chunk carries the completion, always: one that was ended, by whatever call and thread, has the finish
    reason `cancelled`, unless the answer was whole already. Only an error that reading raises comes instead of it.

    chunks: yields its last chunk also where `DecodeCancelled` is thrown in between two of them.
    notice: a sentence for the user that is known before the answer, or ""; the completion's own begins with it.
    completion: that of the answer, once its last chunk was handed out; before, None.

    In a notebook, as the last thing of a cell or by `display`, it shows its text as it comes.
    """

    notice = ""
    completion: Completion | None = None

    def __init__(self, queue: AnswerQueue, ticket: Ticket, chunks: Generator[Chunk]) -> None:
        self._queue, self._ticket, self._chunks = queue, ticket, chunks
        self._last: Chunk | None = None
        self._when_complete: Callable[[Completion], None] = _tell_nobody
        self._taken_over = self._untold = False
        self._reader: threading.Thread | None = None
        self._telling = threading.Lock()  # of these two
        self._reading = threading.RLock()
        self._ended = threading.Event()
        # The generator's frame holds the ticket, and must not hold the stream: dropping that has to end it at once.
        ticket.stream = weakref.ref(self)

    def __next__(self) -> Chunk:
        check_process()
        waits = not (self._ticket.admitted or self._ticket.cancelled)
        if waits or (self._ticket.seated and self._queue.is_in_seat):
            self._queue.refuse_within()  # what it would wait for waits for this thread
        with self._reading:
            if self.executing:
                raise EngineBusy("This answer is being read further up in this thread.", "Read it there.")
            self._reader = threading.current_thread()
            if not self._ticket.seated:
                self._ticket.thread = self._reader
            try:
                chunk = self._last or next(self._chunks)
                self._last = None
            except BaseException:
                if not self._untold:
                    self._ended.set()
                raise
        if (completion := chunk.completion) is not None:
            if self.notice:
                completion = replace(completion, notice=f"{self.notice} {completion.notice}".rstrip())
                chunk = replace(chunk, completion=completion)
            with self._telling:
                self._untold = self._taken_over
            self.completion = completion
            if not self._untold:
                self.tell(completion)
        return chunk

    def _ipython_display_(self) -> None:
        from localspec.answers.notebook import show

        show(self)

    def tell(self, completion: Completion) -> None:
        """Whoever waits for the completion gets it: the reader has it. That ends the answer."""
        try:
            self._when_complete(completion)
        finally:
            self._untold = False
            self._ended.set()

    @property
    def executing(self) -> bool:
        """Whether a thread computes it right now."""
        return getgeneratorstate(self._chunks) == GEN_RUNNING

    @property
    def begun(self) -> bool:
        """Whether some of it was read."""
        return getgeneratorstate(self._chunks) != GEN_CREATED

    @property
    def ended(self) -> bool:
        """Whether nothing more will come: its reader has all of it, it failed, or it was closed."""
        return self._ended.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether it was told to end."""
        return self._ticket.cancelled

    def when_complete(self, tell: Callable[[Completion], None]) -> AnswerStream:
        """`tell` gets the completion before the last chunk is handed out, in the thread that reads; returns itself."""
        self._when_complete = tell
        return self

    def take_over(self) -> None:
        """Chunks go to a reader elsewhere from now on: `tell` is called when that has the last one, or else `leave`."""
        self._taken_over = True

    def leave(self) -> None:
        """The reader elsewhere left: nobody is told."""
        with self._telling:
            self._when_complete, self._taken_over = _tell_nobody, False
            untold, self._untold = self._untold, False
        if untold:
            self._ended.set()

    def cancel(self) -> None:
        """End this answer with finish reason `cancelled`; from any thread, also before it began."""
        self._queue.cancel([self._ticket])

    def close(self) -> None:
        """End this answer and free the engine, from any thread; a conversation goes on as if it was not asked.

        What another thread computes for it is cancelled first. Within its own reading (a signal handler), and where an
        answer is computed (a callback), it is cancelled, and ends after that.
        """
        self._when_complete = _tell_nobody
        if not self.close_unread() and not is_forked():
            self.cancel()
            if not self._queue.is_in_seat:  # its end would wait for this thread
                with self._reading:
                    self._close()

    def close_unread(self) -> bool:
        """`close`, unless it is being read right now; whether it was closed."""
        if is_forked() or self._queue.is_in_seat or not self._reading.acquire(blocking=False):
            return False
        try:
            return self._close()
        finally:
            self._reading.release()

    def _close(self) -> bool:
        if self.executing:
            return False
        self._ticket.cancelled = True  # one that has not begun says so when it is read
        try:
            # The engine may be freed before its reader comes back, so the end is made now.
            if getgeneratorstate(self._chunks) == GEN_SUSPENDED:
                with suppress(DecodeCancelled, StopIteration):  # it was at its end
                    self._last = self._chunks.throw(DecodeCancelled("The answer was closed."))
                self._chunks.close()
        finally:
            self._untold = False
            self._ended.set()
        return True

    def wait(self, timeout: float) -> bool:
        """Wait until another thread has read it to its end; whether it has. False at once where none is reading."""
        reader = self._reader
        if reader is None or reader is threading.current_thread() or not reader.is_alive():
            return self.ended
        return self._ended.wait(timeout)


Start = Callable[[], AnswerStream]
Event = tuple[int, Chunk]
"""The number of an answer, and a chunk of it."""
Item = Event | BaseException | None
"""What a pump delivers: events, then the error that ended them, or None."""


class Pump:
    """Reads answers in one thread for a reader in another: a terminal, an event loop, a request of a server.

    starts: begin the answers, one after the other, in the pump's thread. deliver: takes each item there, brings it to
    the reader, who gives it to `received`, and says whether somebody still reads. A reader that leaves calls `abandon`:
    that ends these answers and no others.
    together: read them side by side, in threads, once the first one has begun: they share its prompt.
    """

    def __init__(
        self, starts: Sequence[Start], deliver: Callable[[Item], bool], *, together: bool = False
    ) -> None:
        self._starts, self._deliver = starts, deliver
        self._together = together and len(starts) > 1
        self._lock = threading.RLock()  # a signal handler may cancel
        self._streams: dict[int, AnswerStream] = {}
        self._cancelled = self._abandoned = False
        self._untold: dict[int, AnswerStream] = {}

    def start(self) -> threading.Thread:
        """Read in a thread of its own."""
        thread = threading.Thread(target=self.run, name="localspec answer", daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """Read in this thread, to the end."""
        try:
            if self._together:
                self._read_together()
            else:
                for index in range(len(self._starts)):
                    self._read(index)
        except BaseException as error:
            self._deliver(error)
        else:
            self._deliver(None)
        finally:
            self._streams.clear()

    def _read(self, index: int, when_begun: Callable[[], None] = lambda: None) -> None:
        """One answer to its end; not one behind the first where that was cancelled."""
        if index and self._cancelled:
            return
        for number, chunk in enumerate(self._begun(index, self._starts[index]())):
            if not self._deliver((index, chunk)):
                self.abandon()
            if number == 0:
                when_begun()
        self._streams.pop(index, None)

    def _read_together(self) -> None:
        """All of them; the first error ends the others. Raises it."""
        failed: list[BaseException] = []

        def read(index: int) -> None:
            try:
                self._read(index)
            except BaseException as error:
                failed.append(error)
                self.cancel()

        others = [
            threading.Thread(target=read, args=(index,), name="localspec answer", daemon=True)
            for index in range(1, len(self._starts))
        ]
        begun: list[threading.Thread] = []

        def begin() -> None:
            for thread in others:
                thread.start()
                begun.append(thread)

        try:
            self._read(0, begin)
        except BaseException as error:
            failed.append(error)
            self.cancel()
        for thread in begun:
            thread.join()
        if failed:
            raise failed[0]

    def _begun(self, index: int, stream: AnswerStream) -> AnswerStream:
        stream.take_over()
        with self._lock:
            self._untold[index] = self._streams[index] = stream
            cancelled, abandoned = self._cancelled, self._abandoned
        if abandoned:
            stream.leave()
        if cancelled:
            stream.cancel()
        return stream

    def received(self, item: Item) -> Event | None:
        """In the reader's thread: the event of an item, None at the end; raises the error that it is.

        Whoever waits for a completion (a conversation) is told here: an answer is complete when its end is read.
        """
        if isinstance(item, BaseException):
            raise item
        if item is not None and item[1].completion is not None:
            stream = self._untold.pop(item[0], None)
            if stream is not None:
                stream.tell(item[1].completion)
        return item

    def cancel(self) -> None:
        """End the answers that run with finish reason `cancelled`, and begin none behind them. The rest can be read."""
        with self._lock:
            self._cancelled = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.cancel()

    def abandon(self) -> None:
        """Cancel, and tell nobody how it ended."""
        with self._lock:
            self._abandoned = True
            untold, self._untold = self._untold, {}
        self.cancel()
        for stream in untold.values():
            stream.leave()


def _tell_nobody(completion: Completion) -> None:
    pass
