"""AnswerStream: the chunks of one answer, for whatever thread reads, cancels or drops them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator

from localspec.answers.queue import AnswerQueue, Ticket
from localspec.answers.request import Chunk, Completion
from localspec.errors import EngineBusy
from localspec.system.forks import check_process, is_forked


class AnswerStream(Iterator[Chunk]):
    """The chunks of one answer. Any thread may read on, one at a time; closing or dropping it frees the engine."""

    def __init__(self, queue: AnswerQueue, ticket: Ticket, chunks: Iterator[Chunk]) -> None:
        self._queue, self._ticket, self._chunks = queue, ticket, chunks
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

    def take_over(self) -> Callable[[Completion], None]:
        """Whom `when_complete` named; telling that is the caller's business from now on."""
        tell, self._when_complete = self._when_complete, _tell_nobody
        return tell

    def cancel(self) -> None:
        """End this answer with finish reason `cancelled`; from any thread, also before it began."""
        self._queue.cancel([self._ticket])

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
