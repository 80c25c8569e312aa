"""The answers to one request: decoded in the worker thread, read on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial

from localspec.aio import put_in_loop
from localspec.answers.stream import Event, Item, Pump, Start
from localspec.server.faults import ApiError


class Job(AsyncIterator[Event]):
    """Chunks of one or several answers, each with the number of its answer.

    Made and read on the event loop. Raises what the decoding raised, or what `end` was given.
    together: several answers are computed side by side. when_over: called once, on the loop, when the engine is free of
    this job, or will never see it.
    """

    def __init__(self, starts: Sequence[Start], when_over: Callable[[Job], None], *, together: bool) -> None:
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        deliver = partial(put_in_loop, self._loop, self._items)
        self._pump = Pump(starts, deliver, together=together)
        self._when_over = when_over
        self._ended: ApiError | None = None
        self.begun = False

    def submit(self, worker: Executor) -> None:
        """Begin."""
        self.begun = True
        worker.submit(self._pump.run).add_done_callback(self._leave)

    def _leave(self, _future: Future[None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._when_over, self)

    def end(self, error: ApiError) -> None:
        """Stop early; the reader gets `error` instead of the rest."""
        if self._ended is not None:
            return
        self._ended = error
        self._items.put_nowait(None)  # the reader need not wait for the engine
        if self.begun:
            self._pump.abandon()
        else:
            self._when_over(self)

    def end_waiting(self, error: ApiError) -> None:
        """Like `end`, but only if it has not begun."""
        if not self.begun:
            self.end(error)

    async def __anext__(self) -> Event:
        item = await self._items.get()
        if self._ended is not None:
            raise self._ended
        event = self._pump.received(item)
        if event is None:
            raise StopAsyncIteration
        return event
