"""What all requests share: the engine, its worker, and who may still come in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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

    One worker thread decodes: requests are answered in the order in which they became ready.
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
                {"stage": now.stage, "progress": now.fraction},
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
        """Requests that the worker has."""
        return len(self._jobs)

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

    def end_load(self) -> None:
        """End a load that has not come to its end, as early as can be."""
        self._watch.cancel()

    async def submit(self, prepare: Callable[[LLM], F]) -> tuple[F, Job]:
        """Check and prepare in a thread, then queue for the worker.

        Raises what `prepare` raises, and `ApiError` where no more requests are taken.
        """
        llm = self.llm
        if self._places > self.settings.queue:
            raise queue_full(self.settings.queue)
        self._places += 1
        try:
            answer_format = await asyncio.to_thread(prepare, llm)
            job = Job(answer_format.starts)
            _ = self.llm  # not stopped meanwhile
            future = job.submit(self._worker)
        except BaseException:
            self._places -= 1
            raise
        self._jobs.add(job)
        loop = asyncio.get_running_loop()

        def leave(_future: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._leave, job)

        future.add_done_callback(leave)
        return answer_format, job

    def metrics_text(self) -> str:
        """Counters in Prometheus' text format."""
        running = min(self._places, 1)
        loaded = self._llm is not None and self._llm.loaded
        return self.metrics.text(running=running, waiting=self._places - running, loaded=loaded)

    def _leave(self, job: Job) -> None:
        self._places -= 1
        self._jobs.discard(job)

    def refuse(self) -> None:
        """Take no more requests, and end those that wait or are still being sent."""
        self.stopping = True
        while self._limits:
            self._limits.pop().reschedule(0.0)
        for job in self._jobs:
            job.end_waiting(stopping())

    def end_all(self) -> None:
        """End every job."""
        for job in self._jobs:
            job.end(stopping())

    async def close(self) -> None:
        """End everything and free the engine."""
        self.refuse()
        self.end_all()
        await asyncio.to_thread(self._worker.shutdown)
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.close)
