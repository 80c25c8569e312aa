"""The answers to one request: decoded in the worker thread, read on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future

from localspec.answers.request import Chunk
from localspec.answers.stream import AnswerStream
from localspec.server.faults import ApiError

Start = Callable[[], AnswerStream]
Event = tuple[int, Chunk]


class Job(AsyncIterator[Event]):
    """Chunks of one or several answers, one answer after the other, each with the number of its answer.

    Made and read on the event loop. Raises what the decoding raised, or what `end` was given.
    """

    def __init__(self, starts: Sequence[Start]) -> None:
        self._starts = starts
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self._ended: ApiError | None = None
        self._stream: AnswerStream | None = None
        self._future: Future[None] | None = None

    def submit(self, worker: Executor) -> Future[None]:
        """Queue for the worker; the future is done when the engine is free of this job."""
        self._future = worker.submit(self._run)
        return self._future

    def end(self, error: ApiError) -> None:
        """Stop early; the reader gets `error` instead of the rest."""
        if self._ended is not None:
            return
        self._ended = error
        self._events.put_nowait(None)  # the reader need not wait for the engine
        waiting = self._future is not None and self._future.cancel()
        if not waiting and self._stream is not None:
            self._stream.cancel()

    def end_waiting(self, error: ApiError) -> None:
        """`end`, if it has not begun."""
        if self._future is not None and self._future.cancel():
            self.end(error)

    async def __anext__(self) -> Event:
        event = await self._events.get()
        if self._ended is not None:
            raise self._ended
        if isinstance(event, Exception):
            raise event
        if event is None:
            raise StopAsyncIteration
        return event

    def _run(self) -> None:
        try:
            for index, start in enumerate(self._starts):
                self._stream = start()
                if self._ended is not None:
                    break
                for chunk in self._stream:
                    self._post((index, chunk))
                if self._ended is not None:
                    break
        except Exception as error:
            self._post(error)
        finally:
            self._post(None)

    def _post(self, event: Event | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody reads
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
