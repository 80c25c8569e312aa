"""AsyncLLM: an `LLM` for asyncio. Every call is the `LLM`'s own, made in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Unpack

from localspec.answers.queue import closed
from localspec.answers.request import AnswerOptions, Chunk, Completion, Messages
from localspec.answers.stream import AnswerStream
from localspec.checks import StrPath, shown
from localspec.engine.loading import LoadProgress
from localspec.errors import InvalidRequest
from localspec.llm import LLM


class AsyncAnswer(AsyncIterator[Chunk]):
    """The chunks of one answer, as they come.

    Cancelling the task that waits for one closes the answer, and so do `aclose` and dropping this: a conversation then
    goes on as if it had not been asked. The answer is decoded on while nobody reads. Errors of the call itself are
    raised by the first chunk.
    """

    def __init__(self, start: Callable[[], AnswerStream]) -> None:
        self._pump = _Pump(start, asyncio.get_running_loop())

    async def __anext__(self) -> Chunk:
        try:
            item = await self._pump.items.get()
        except asyncio.CancelledError:
            self._pump.abandon()
            raise
        if isinstance(item, Chunk):
            if item.completion is not None:
                self._pump.tell(item.completion)
            return item
        self._pump.items.put_nowait(None)  # whoever reads on finds the end
        raise StopAsyncIteration if item is None else item

    def cancel(self) -> None:
        """End it with finish reason `cancelled`. The rest can be read; a conversation keeps what is read to its end."""
        self._pump.cancel()

    async def aclose(self) -> None:
        """Close it, and wait until the engine is free for the next."""
        self._pump.abandon()
        while isinstance(await self._pump.items.get(), Chunk):
            pass
        self._pump.items.put_nowait(None)

    def __del__(self) -> None:
        if "_pump" in self.__dict__:
            self._pump.abandon()


class _Pump:
    """Reads a stream in a thread and hands its chunks to the event loop: None at the end, or the error."""

    def __init__(self, start: Callable[[], AnswerStream], loop: asyncio.AbstractEventLoop) -> None:
        self.items: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()
        self._start, self._loop = start, loop
        self._lock = threading.Lock()
        self._stream: AnswerStream | None = None
        self._cancelled = self._told = False
        self._tell: Callable[[Completion], None] = lambda completion: None
        threading.Thread(target=self._run, name="localspec answer", daemon=True).start()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            stream = self._stream
        if stream is not None:
            stream.cancel()

    def abandon(self) -> None:
        """Cancel it, and tell nobody how it ended."""
        self._told = True
        self.cancel()

    def tell(self, completion: Completion) -> None:
        """What the stream does for who reads it: here that is who takes the last chunk out of the queue."""
        if not self._told:
            self._told = True
            self._tell(completion)

    def _run(self) -> None:
        try:
            stream = self._start()
            with self._lock:
                self._tell = stream.take_over()
                self._stream = stream
                cancelled = self._cancelled
            if cancelled:
                stream.cancel()
            for chunk in stream:
                self._put(chunk)
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Chunk | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.items.put_nowait, item)
        except RuntimeError:  # the loop is closed: nobody reads on
            self.abandon()


class AsyncLLM:
    """An `LLM` for asyncio; its answers queue as the `LLM`'s do. An async context manager.

    llm: the engine, for everything that does not wait.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @classmethod
    async def load(
        cls,
        name_or_target: StrPath,
        draft: StrPath | None = None,
        *,
        on_progress: Callable[[LoadProgress], None] | None = None,
        **options: Any,
    ) -> AsyncLLM:
        """`LLM.load` in the background; cancelling the task cancels the load. `on_progress` is called in the loop."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def in_loop(callback: Callable[..., object], *arguments: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(callback, *arguments)

        def tell(progress: LoadProgress) -> None:
            if on_progress is not None:
                in_loop(on_progress, progress)

        loading = LLM.load_in_background(name_or_target, draft, on_progress=tell, **options)
        loading.when_done(lambda: in_loop(done.set))
        try:
            await done.wait()
        except asyncio.CancelledError:
            if not loading.cancel():
                with suppress(Exception):
                    loading.result().close()
            raise
        return cls(loading.result())

    def chat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> AsyncAnswer:
        """As `LLM.chat`."""
        return AsyncAnswer(lambda: self.llm.chat(messages, **options))

    def stream(self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]) -> AsyncAnswer:
        """As `LLM.stream`."""
        return AsyncAnswer(lambda: self.llm.stream(prompt, **options))

    async def generate(
        self, prompt: str | Sequence[int] | Messages, **options: Unpack[AnswerOptions]
    ) -> Completion:
        """As `LLM.generate`; cancelling the task ends the answer."""
        completion = None
        async for chunk in AsyncAnswer(lambda: self.llm.start(prompt, **options)):
            completion = chunk.completion
        if completion is None:  # closed between two of its chunks
            raise closed()
        return completion

    def ask(self, start: Callable[..., AnswerStream], *arguments: Any, **options: Any) -> AsyncAnswer:
        """The answer that `start` begins: `conversation.ask` or `conversation.regenerate`, with its arguments.

        `await asyncio.to_thread(conversation.save, path)` saves without holding up the loop.
        """
        if not callable(start):
            raise InvalidRequest(
                f"ask was given {shown(start)}.", 'Write ask(conversation.ask, "...").', name="start"
            )
        return AsyncAnswer(lambda: start(*arguments, **options))

    def cancel(self) -> None:
        """As `LLM.cancel`."""
        self.llm.cancel()

    async def close(self) -> None:
        """As `LLM.close`: what runs is ended."""
        await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
