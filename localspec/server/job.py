"""The answers to one request: decoded in the worker thread, read on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial

from localspec.aio import put_in_loop
from localspec.answers.stream import Event, Item, Pump, Start
from localspec.server.faults import ApiError


class Job(AsyncIterator[Event]):
    """Chunks of one or several answers, one answer after the other, each with the number of its answer.

    Made and read on the event loop. Raises what the decoding raised, or what `end` was given.
    """

    def __init__(self, starts: Sequence[Start]) -> None:
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._pump = Pump(starts, partial(put_in_loop, asyncio.get_running_loop(), self._items))
        self._ended: ApiError | None = None
        self._future: Future[None] | None = None

    def submit(self, worker: Executor) -> Future[None]:
        """Queue for the worker; the future is done when the engine is free of this job."""
        self._future = worker.submit(self._pump.run)
        return self._future

    def end(self, error: ApiError) -> None:
        """Stop early; the reader gets `error` instead of the rest."""
        if self._ended is not None:
            return
        self._ended = error
        self._items.put_nowait(None)  # the reader need not wait for the engine
        waiting = self._future is not None and self._future.cancel()
        if not waiting:
            self._pump.abandon()

    def end_waiting(self, error: ApiError) -> None:
        """Like `end`, but only if the worker has not begun it."""
        if self._future is not None and self._future.cancel():
            self.end(error)

    async def __anext__(self) -> Event:
        item = await self._items.get()
        if self._ended is not None:
            raise self._ended
        event = self._pump.received(item)
        if event is None:
            raise StopAsyncIteration
        return event
