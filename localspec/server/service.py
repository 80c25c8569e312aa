"""What all requests share: the engine, its worker, and who may still come in."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Protocol, TypeVar

from localspec.answers.stream import Start
from localspec.llm import LLM
from localspec.server.faults import queue_full, stopping, unavailable
from localspec.server.job import Job
from localspec.server.metrics import Metrics
from localspec.server.settings import Settings
from localspec.system.load_watch import LoadWatch, watching
from localspec.system.progress import Progress, Stage


class Startable(Protocol):
    """What is prepared for a request."""

    @property
    def starts(self) -> Sequence[Start]:
        """Functions that begin its answers, called one after the other."""
        ...


F = TypeVar("F", bound=Startable)


class Service:
    """One engine behind HTTP. Used on the event loop only.

    As many requests are answered at a time as the engine has seats; others wait in the order of their priority, and
    else in that in which they became ready.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.stopping = False
        self._llm: LLM | None = None
        self._watch = LoadWatch(self._note)
        self._progress = Progress(Stage.START, 0.0, "starting")
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="localspec-worker")
        self._places = 0
        self._jobs: set[Job] = set()
        self._waiting: list[tuple[int, int, Job]] = []
        self._order = count()
        self._limits: set[asyncio.Timeout] = set()

    @property
    def llm(self) -> LLM:
        """The loaded engine. Raises `ApiError` (503) before it is there and when the server stops."""
        if self.stopping:
            raise stopping()
        if self._llm is None:
            now = self._progress
            raise unavailable(
                f"The model is not ready yet: {now.sentence} ({round(100 * now.fraction)} %).", "loading",
                {"stage": now.stage, "progress": round(now.fraction, 3)},
            )  # fmt: skip
        return self._llm

    def _note(self, progress: Progress) -> None:
        """In the loading thread: how far the load has come."""
        self._progress = progress

    @property
    def busy(self) -> int:
        """Requests that were let in, including those still being prepared."""
        return self._places

    @property
    def receiving(self) -> int:
        """Requests whose body is not complete."""
        return len(self._limits)

    @property
    def waiting_or_running(self) -> int:
        """Requests that are ready to be answered."""
        return len(self._jobs)

    @property
    def num_running(self) -> int:
        """Requests that are being answered."""
        return sum(job.begun for job in self._jobs)

    @contextlib.asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """A block that waits for the client alone, such as for a body; `ApiError` ends it when the server stops."""
        if self.stopping:
            raise stopping()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.add(limit)
                yield
        except TimeoutError:
            raise stopping() from None
        finally:
            self._limits.discard(limit)

    async def load(self, load: Callable[[], LLM]) -> None:
        """Load the engine in the worker thread. Raises what `load` raises, `LoadCancelled` after `end_load`."""

        def watched() -> LLM:
            with watching(self._watch):
                return load()

        self._llm = await asyncio.get_running_loop().run_in_executor(self._worker, watched)
        self._worker.shutdown(wait=False)
        self._worker = ThreadPoolExecutor(self._llm.parallel, thread_name_prefix="localspec-worker")

    def end_load(self) -> None:
        """End a load that has not come to its end, as early as can be."""
        self._watch.cancel()

    async def submit(self, prepare: Callable[[LLM], F], priority: int = 0) -> tuple[F, Job]:
        """Check and prepare in a thread, then queue for a seat. priority: the lowest of those that wait comes first.

        Raises what `prepare` raises, and `ApiError` where no more requests are taken.
        """
        llm = self.llm
        if self._places >= self.settings.queue + llm.parallel:
            raise queue_full(self.settings.queue)
        self._places += 1
        try:
            answer_format = await asyncio.to_thread(prepare, llm)
            job = Job(answer_format.starts, self._leave, together=llm.parallel > 1)
            _ = self.llm  # not stopped meanwhile
        except BaseException:
            self._places -= 1
            raise
        self._jobs.add(job)
        heapq.heappush(self._waiting, (priority, next(self._order), job))
        self._begin_waiting()
        return answer_format, job

    def _begin_waiting(self) -> None:
        seats = self._llm.parallel if self._llm is not None else 0
        while self._waiting and self.num_running < seats:
            job = heapq.heappop(self._waiting)[-1]
            if job in self._jobs:  # else it ended while it waited
                job.submit(self._worker)

    def metrics_text(self) -> str:
        """Counters in Prometheus' text format."""
        running = self.num_running
        loaded = self._llm is not None and self._llm.loaded
        seats = () if self._llm is None else self._llm.seats
        return self.metrics.text(running=running, waiting=self._places - running, loaded=loaded, seats=seats)

    def _leave(self, job: Job) -> None:
        self._places -= 1
        self._jobs.discard(job)
        if not self.stopping:
            self._begin_waiting()

    def refuse(self) -> None:
        """Take no more requests, and end those that wait or are still being sent."""
        self.stopping = True
        while self._limits:
            self._limits.pop().reschedule(0.0)
        for job in list(self._jobs):
            job.end_waiting(stopping())

    def end_all(self) -> None:
        """End every job."""
        for job in list(self._jobs):
            job.end(stopping())

    async def close(self) -> None:
        """End everything and free the engine."""
        self.refuse()
        self.end_all()
        await asyncio.to_thread(self._worker.shutdown)
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.close)
