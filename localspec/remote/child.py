"""In the child: both models, and one answer at a time for the process that started it.

It is asked by (number, name, arguments) and answers each with (number, "done" or "error", value); before that comes
(number, "told", what) as often as there is something to tell of a load: sentences, and how far it is. What has no
number is done at once, also in the middle of a pass, and not answered.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from localspec.answers.answering import answer_chunks, cancelled_chunk, make_request
from localspec.answers.idle_moments import IdleMoments
from localspec.answers.queue import AnswerQueue
from localspec.answers.request import Chunk, Request
from localspec.answers.ticket import Ticket
from localspec.engine.keeper import EngineKeeper
from localspec.engine.kept import Order
from localspec.engine.loading import watched
from localspec.errors import BackendError, LocalspecError
from localspec.remote.facts import Facts, facts_of
from localspec.system.piped_child import Pipe

ENTRY = "localspec.remote.child:main"


def main(pipe: Pipe) -> None:
    """Do what is asked for, until the other process closes the pipe or ends."""
    served = _Served(pipe)
    asked: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, served, asked), daemon=True).start()
    while True:
        number, name, arguments = asked.get()
        try:
            answer = number, "done", served.do(number, name, arguments)
        except Exception as error:
            pipe.send((number, "error", _sendable(error)))
            continue
        pipe.send(answer)


def _listen(pipe: Pipe, served: _Served, asked: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]]) -> None:
    """Whatever the main thread computes: at the end of the pipe this process ends too."""
    while True:
        try:
            number, name, arguments = pipe.receive()
        except EOFError:
            with suppress(Exception):  # nobody is there any more who could be told
                served.keep()
            os._exit(0)
        if number is None:
            served.cancel(*arguments)
        else:
            asked.put((number, name, arguments))


def _sendable(error: Exception) -> LocalspecError | MemoryError:
    if isinstance(error, LocalspecError | MemoryError):
        return error
    return BackendError(f"The process that computes failed: {type(error).__name__}: {error}.")


class _Served:
    """What the other process asks for."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._keeper: EngineKeeper | None = None
        self._running: tuple[int, Ticket, Generator[Chunk]] | None = None
        self._cancelled: int | None = None

    def do(self, number: int, name: str, arguments: tuple[Any, ...]) -> object:
        """Raises what the load, the request or the pass raises."""
        done: object = None
        if name == "load":
            done = self._load(number, *arguments)
        elif name == "start":
            self._start(number, *arguments)
        elif name == "next":
            done = self._next()
        elif name == "leave":
            self._leave()
        else:
            assert name == "forget", name
            self._forget()
        return done

    @property
    def _loaded(self) -> EngineKeeper:
        assert self._keeper is not None, "it is loaded first of all"
        return self._keeper

    def _load(self, number: int, order: Order) -> Facts:
        def tell(what: object) -> None:
            self._pipe.send((number, "told", what))

        def load(say: object) -> EngineKeeper:
            return EngineKeeper(order, tell)

        self._keeper = watched(load, tell)
        self._queue = AnswerQueue(self._keeper.cancel)
        self._idle = IdleMoments(self._queue, self._keeper, None)
        return facts_of(self._keeper)

    def _start(self, number: int, ids: list[int], options: dict[str, Any]) -> None:
        self._leave()
        request = make_request(self._loaded.engine, ids, self._loaded.order.draft_tokens, options)
        ticket = self._queue.ticket()
        self._running = number, ticket, self._chunks(request, ticket)
        if self._cancelled == number:  # while it was made
            ticket.cancelled = True

    def _chunks(self, request: Request, ticket: Ticket) -> Generator[Chunk]:
        keeper = self._loaded
        with self._queue.admit(ticket) as mine:
            if not mine:
                yield cancelled_chunk(request, keeper.drafting)
                return
            controller = keeper.controller(request.draft_tokens)
            yield from answer_chunks(keeper.engine, controller, request, ticket)

    def _next(self) -> tuple[Chunk, Facts | None]:
        """The next chunk of the answer; with the last one what is known of the models now."""
        assert self._running is not None, "an answer is started first"
        chunk = next(self._running[2])
        if chunk.completion is None:
            return chunk, None
        self._leave()
        return chunk, facts_of(self._loaded)

    def _leave(self) -> None:
        """End the answer that runs, if there is one."""
        running, self._running = self._running, None
        if running is not None:
            running[2].close()

    def _forget(self) -> None:
        self._leave()
        with self._queue.admit(Ticket()):
            self._loaded.engine.forget()

    def cancel(self, number: int) -> None:
        """End the answer that was started by that number, or soon will be; from any thread."""
        self._cancelled = number
        running = self._running
        if running is not None and running[0] == number:
            self._queue.cancel([running[1]])

    def keep(self) -> None:
        """Write down what was learned of costs."""
        if self._keeper is not None:
            self._keeper.keep_costs()
