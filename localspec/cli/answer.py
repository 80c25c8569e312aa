"""One running answer that Ctrl-C stops at once, even while the model works inside C."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.answers.request import Chunk, Completion
    from localspec.llm import LLM

Start = Callable[[], "Iterator[Chunk]"]
POLL_SECONDS = 0.1


class Answer:
    """Iterates over the chunks that `start()` yields in a worker thread.

    The first Ctrl-C cancels the answer, whose last chunk then says so; the second raises KeyboardInterrupt, unless
    `patient`: then it changes nothing. Use as a context manager, in the main thread.
    """

    def __init__(self, llm: LLM, start: Start, *, patient: bool = False) -> None:
        self._llm = llm
        self._start = start
        self._patient = patient
        self._interrupts = 0
        self._ended = False
        self._items: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="localspec-answer", daemon=True)
        self._handler = signal.getsignal(signal.SIGINT)
        # Where Ctrl-C is ignored (nohup) it stays so.
        self._catches = self._handler not in (None, signal.SIG_IGN)

    def __enter__(self) -> Answer:
        if self._catches:
            signal.signal(signal.SIGINT, self._on_interrupt)
        self._worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._catches:
            signal.signal(signal.SIGINT, self._handler)
        while self._worker.is_alive():
            if not self._ended:
                self._llm.cancel()
            self._worker.join(POLL_SECONDS)

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            if self._interrupts:  # again and again: the first call may have come before the answer began
                self._llm.cancel()
            try:
                item = self._items.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if item is None:
                self._ended = True
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._interrupts > 1 and not self._patient:
            raise KeyboardInterrupt
        self._llm.cancel()

    def _work(self) -> None:
        try:
            for chunk in self._start():
                self._items.put(chunk)
        except BaseException as error:
            self._items.put(error)
        self._items.put(None)


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ctrl-C raises nothing in the block, which may let it stop an answer. Use in the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if handler not in (None, signal.SIG_IGN):
        signal.signal(signal.SIGINT, lambda _signal, _frame: None)
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def write_out(llm: LLM, start: Start, write: Callable[[str], None], *, patient: bool = False) -> Completion:
    """Hand every piece of text to `write` and return what the answer came to; `patient` as for `Answer`."""
    completion: Completion | None = None
    with Answer(llm, start, patient=patient) as answer:
        for chunk in answer:
            if chunk.text:
                write(chunk.text)
            completion = chunk.completion or completion
    assert completion is not None, "an answer ends with a completion"
    return completion


def figures(completion: Completion) -> str:
    """One line about speed and drafting."""
    stats = completion.stats
    parts = [f"{stats.tokens} tokens", f"{stats.tokens_per_second:.1f} tokens/s"]
    if stats.acceptance_rate is not None:
        parts.append(f"acceptance rate {stats.acceptance_rate:.2f}")
    parts += [f"mean acceptance length {stats.mean_acceptance_length:.2f}", f"drafting {completion.drafting}"]
    return ", ".join(parts)
