"""AsyncLLM: an `LLM` for asyncio. Every call is the `LLM`'s own, made in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Unpack

from localspec.answers.request import AnswerOptions, Chunk, Completion, Messages
from localspec.answers.stream import AnswerStream, Item, Pump, Start
from localspec.checks import StrPath, check_listener, shown
from localspec.engine.options import LoadOptions
from localspec.errors import InvalidRequest
from localspec.llm import LLM


def put_in_loop(loop: asyncio.AbstractEventLoop, items: asyncio.Queue[Item], item: Item) -> bool:
    """Brings a pump's item to the loop it is read in; whether that is still open."""
    try:
        loop.call_soon_threadsafe(items.put_nowait, item)
    except RuntimeError:
        return False
    return True


class AsyncAnswer(AsyncIterator[Chunk]):
    """The chunks of one answer, as they come; the last one carries the completion, as `AnswerStream` says.

    Cancelling the task that waits for one closes the answer, and so do `aclose` and dropping this: a conversation then
    goes on as if it had not been asked. The answer is decoded on while nobody reads. Errors of the call itself are
    raised by the first chunk.
    """

    def __init__(self, start: Start) -> None:
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        # The pump must not keep this alive: dropping it ends the answer.
        self._pump = Pump([start], partial(put_in_loop, asyncio.get_running_loop(), self._items))
        self._pump.start()

    async def __anext__(self) -> Chunk:
        try:
            item = await self._items.get()
        except asyncio.CancelledError:
            self._pump.abandon()
            raise
        if not isinstance(item, tuple):
            self._items.put_nowait(None)  # whoever reads on finds the end
        event = self._pump.received(item)
        if event is None:
            raise StopAsyncIteration
        return event[1]

    def cancel(self) -> None:
        """End it with finish reason `cancelled`. The rest can be read; a conversation keeps what is read to its end."""
        self._pump.cancel()

    async def aclose(self) -> None:
        """Close it, and wait until the engine is free for the next."""
        self._pump.abandon()
        last = None
        while isinstance(item := await self._items.get(), tuple):
            last = item
        if last is not None and last[1].completion is not None:  # for whoever reads on
            self._items.put_nowait(last)
        self._items.put_nowait(None)

    def __del__(self) -> None:
        if "_pump" in self.__dict__:
            self._pump.abandon()


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
        **options: Unpack[LoadOptions],
    ) -> AsyncLLM:
        """`LLM.load` in the background; cancelling the task cancels the load. `on_progress` is called in the loop."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def in_loop(callback: Callable[..., object], *arguments: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(callback, *arguments)

        if (on_progress := options.get("on_progress")) is not None:
            listener = check_listener("on_progress", on_progress)
            options["on_progress"] = lambda progress: in_loop(listener, progress)
        loading = LLM.load_in_background(name_or_target, draft, **options)
        loading.when_done(lambda: in_loop(done.set))
        try:
            await done.wait()
        except asyncio.CancelledError:
            if not loading.cancel():
                with suppress(Exception):
                    loading.result().close(wait=False)  # the loop goes on meanwhile
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
        assert completion is not None, "the last chunk carries the completion"
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
        """As `LLM.close`: what runs is ended; returns when all is freed. The loop goes on meanwhile."""
        await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
