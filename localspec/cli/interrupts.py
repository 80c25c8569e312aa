"""What Ctrl-C does while a command works: nothing by itself, or it skips what is left."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from localspec.cli.terminal import say

ENDED = 128
"""An exit code beyond this is the number of the signal that ended the program."""


class Interrupts(list[int]):
    """Each Ctrl-C that came, and nothing else happened."""

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """As a signal's handler."""
        self.append(number)


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[Interrupts]:
    """In the block Ctrl-C raises nothing; `write_out` may let it stop an answer. Use in the main thread.

    The block gets those that came; a block within it gets the same.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupts):
        yield handler
        return
    interrupts = Interrupts()
    if handler not in (None, signal.SIG_IGN):
        signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def ends_deferred() -> Iterator[None]:
    """In the block SIGTERM, and the end of the terminal, stop an answer as Ctrl-C does; the program ends behind it.

    A second one ends it at once. Where they are ignored (nohup) they stay so. Use in the main thread.
    """
    came: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1 or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise SystemExit(ENDED + number)
        signal.raise_signal(signal.SIGINT)

    numbers = [
        number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
    ]
    found = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in found.items() if handler not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:  # also where the answer failed
            raise SystemExit(ENDED + came[0])


@contextlib.contextmanager
def skippable() -> Iterator[Callable[[], bool]]:
    """In the block the first Ctrl-C makes the function that it gets return True, and the second one interrupts.

    Where Ctrl-C is ignored (nohup) it stays so. Use in the main thread.
    """
    handler = signal.getsignal(signal.SIGINT)
    skipped = False

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal skipped
        if skipped:
            raise KeyboardInterrupt
        skipped = True
        say("Skipping what is not measured yet.")

    if handler in (None, signal.SIG_IGN):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: skipped
    finally:
        signal.signal(signal.SIGINT, handler)
