"""One running answer: written as it comes, and stopped by Ctrl-C at once, even while the model works inside C."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.answers.request import Completion
    from localspec.answers.stream import Item, Pump, Start

POLL_SECONDS = 0.1
"""Many short waits, not an endless one: on Windows Ctrl-C is seen only when a wait ends."""


def write_out(start: Start, write: Callable[[str], None], *, patient: bool = False) -> Completion:
    """Hand every piece of text to `write` and return the completion. Use in the main thread.

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
        while (event := pump.received(_next(items))) is not None:
            if event[1].text:
                write(event[1].text)
            completion = event[1].completion or completion
    assert completion is not None, "an answer ends with a completion"
    return completion


def _next(items: queue.SimpleQueue[Item]) -> Item:
    while True:
        with contextlib.suppress(queue.Empty):
            return items.get(timeout=POLL_SECONDS)


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


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """In the block Ctrl-C raises nothing; `write_out` may let it stop an answer. Use in the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if handler not in (None, signal.SIG_IGN):
        signal.signal(signal.SIGINT, lambda _signal, _frame: None)
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def figures(completion: Completion) -> str:
    """One line about speed and drafting."""
    stats = completion.stats
    parts = [f"{stats.tokens} tokens", f"{stats.tokens_per_second:.1f} tokens/s"]
    if stats.acceptance_rate is not None:
        parts.append(f"acceptance rate {stats.acceptance_rate:.2f}")
    parts += [f"mean acceptance length {stats.mean_acceptance_length:.2f}", f"drafting {completion.drafting}"]
    return ", ".join(parts)
