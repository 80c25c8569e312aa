"""A job that ends early when the client leaves or the time is up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from starlette.types import Receive

from localspec.answers.stream import Event
from localspec.llm import LLM
from localspec.server.faults import client_gone, timed_out
from localspec.server.job import Job
from localspec.server.service import F, Service


class BoundedJob(AsyncIterator[Event]):
    """The events of one request's answers. Closing it stops what still runs.

    receive: the request's ASGI channel, from which the whole body has been read.
    """

    def __init__(self, service: Service, receive: Receive) -> None:
        self._service, self._receive = service, receive
        self._job: Job | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, prepare: Callable[[LLM], F], priority: int = 0) -> F:
        """Prepare and queue; returns what `prepare` made. Raises what `Service.submit` raises."""
        loop, timeout = asyncio.get_running_loop(), self._service.settings.timeout
        began = loop.time()
        answer_format, job = await self._service.submit(prepare, priority)
        self._job = job
        self._watcher = asyncio.create_task(self._watch(job))
        if timeout is not None:
            self._timer = loop.call_at(began + timeout, lambda: job.end(timed_out(timeout, begun=job.begun)))
        return answer_format

    async def __anext__(self) -> Event:
        assert self._job is not None, "started"
        return await self._job.__anext__()

    async def close(self) -> None:
        """Stop what still runs."""
        if self._job is not None:
            self._job.end(client_gone())
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher

    async def __aenter__(self) -> BoundedJob:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _watch(self, job: Job) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        job.end(client_gone())
