"""One running answer: written as it comes, and stopped by Ctrl-C at once, even while the model works inside C."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.answers.request import Chunk, Completion
    from localspec.answers.stream import Item, Pump, Start

POLL_SECONDS = 0.1
"""Many short waits, not an endless one: on Windows Ctrl-C is seen only when a wait ends."""


def write_out(
    start: Start,
    write: Callable[[str], None],
    *,
    patient: bool = False,
    heed: Callable[[Chunk], None] = lambda chunk: None,
    tick: Callable[[], None] = lambda: None,
) -> Completion:
    """Hand every piece of text to `write` and return the completion. Use in the main thread.

    heed: gets each chunk, before `write` gets its text. tick: called while nothing comes, some ten times a second.

    The first Ctrl-C cancels the answer, whose completion then says so; the second raises KeyboardInterrupt, unless
    `patient`: then it changes nothing.
    """
    from localspec.answers.stream import Pump

    items: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def deliver(item: Item) -> bool:
        items.put(item)
        return True

    completion: Completion | None = None
    pump = Pump([start], deliver)
    with _cancelling(pump, patient=patient), _reading(pump):
        while (event := pump.received(_next(items, tick))) is not None:
            heed(event[1])
            if event[1].text:
                write(event[1].text)
            completion = event[1].completion or completion
    assert completion is not None, "an answer ends with a completion"
    return completion


def _next(items: queue.SimpleQueue[Item], tick: Callable[[], None]) -> Item:
    while True:
        with contextlib.suppress(queue.Empty):
            return items.get(timeout=POLL_SECONDS)
        tick()


@contextlib.contextmanager
def _reading(pump: Pump) -> Iterator[None]:
    """The pump runs while the block does; if that is left early, the pump ends its own answer and no other."""
    thread = pump.start()
    try:
        yield
    except BaseException:
        pump.abandon()
        raise
    finally:
        while thread.is_alive():
            thread.join(POLL_SECONDS)


@contextlib.contextmanager
def _cancelling(pump: Pump, *, patient: bool) -> Iterator[None]:
    """Ctrl-C cancels the answer. Where it is ignored (nohup) it stays so."""
    handler = signal.getsignal(signal.SIGINT)
    interrupts = 0

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1 and not patient:
            raise KeyboardInterrupt
        pump.cancel()

    if handler in (None, signal.SIG_IGN):
        yield
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class Repetition:
    """Whether a running answer only repeats itself: at least 8 times the same, and 200 tokens of it."""

    _TIMES, _TOKENS, _LONGEST = 8, 200, 64

    def __init__(self) -> None:
        self.found = False
        self._ids: list[int] = []
        self._next = self._TOKENS

    def heed(self, ids: Sequence[int]) -> None:
        """Take in what comes next; looks every few tokens."""
        self._ids.extend(ids)
        if not self.found and len(self._ids) >= self._next:
            self._next = len(self._ids) + 20
            self.found = any(self._has(period) for period in range(1, self._LONGEST + 1))

    def _has(self, period: int) -> bool:
        length = max(self._TOKENS, self._TIMES * period)
        tail = self._ids[-length:]
        return len(tail) == length and tail[period:] == tail[:-period]
