"""SeatedAnswer: an answer that is computed in a thread of its own, beside others, and read in another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator

from localspec.answers.queue import AnswerQueue
from localspec.answers.request import Chunk, joined
from localspec.answers.ticket import Ticket
from localspec.errors import DecodeCancelled

Item = Chunk | BaseException | None
"""A chunk, the error that ended the answer, or None at its end."""


class SeatedAnswer:
    """Computes `chunks` once it is read; what was computed waits for its reader, who holds up nobody.

    compute: admits the ticket, and gives the chunks in the thread that calls it.
    """

    def __init__(self, answers: AnswerQueue, ticket: Ticket, compute: Callable[[], Generator[Chunk]]) -> None:
        self._answers, self._ticket, self._compute = answers, ticket, compute
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._over = threading.Event()

    def chunks(self) -> Generator[Chunk]:
        """For the reader. `DecodeCancelled` thrown in leads to the last chunk, with all that was computed and not yet
        read; leaving it ends the answer.
        """
        self._ticket.reader = threading.current_thread()
        try:
            # Its end is not waited for at exit: `close_at_exit` of the engine's owner ends it.
            threading.Thread(target=self._run, name="localspec seat", daemon=True).start()
            while (item := self._items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                try:
                    yield item
                except DecodeCancelled:
                    if item.completion is not None:
                        raise
                    yield self._rest()
                    return
        finally:
            # Its end is not waited for: the garbage collector drops answers in any thread, also in one that has what
            # this answer needs to come to its end.
            if not self._over.is_set():
                self._answers.cancel([self._ticket])

    def _rest(self) -> Chunk:
        """Ends the answer, and waits for that; what nobody has read, in one chunk. Raises the error that ended it."""
        self._answers.cancel([self._ticket])
        unread: list[Chunk] = []
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            unread.append(item)
        return joined(unread)

    def _run(self) -> None:
        self._ticket.thread = threading.current_thread()
        try:
            for chunk in self._compute():
                self._items.put(chunk)
        except BaseException as error:
            self._over.set()
            self._items.put(error)
        else:
            self._over.set()
            self._items.put(None)
