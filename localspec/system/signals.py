"""Signals that come while foreign code runs and calls back: nothing that a handler raises is lost there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_NUMBERS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


def in_main_thread() -> bool:
    """Whether signal handlers run in this thread."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def signals_noted() -> Iterator[list[BaseException]]:
    """What a signal's handler raises in the block is noted, and raised at its end. Handlers run at once, as ever.

    A handler runs in a callback's first instruction too, before any `try` of it, and ctypes drops what is raised
    there. The block gets the list, from which a callback sees that the foreign code is to end.
    """
    noted: list[BaseException] = []
    if not in_main_thread():
        yield noted
        return
    replaced: dict[int, tuple[Any, Any]] = {}
    running = [True]
    try:
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                noting = _noting(handler, noted, running)
                replaced[number] = (noting, handler)
                signal.signal(number, noting)
        yield noted
    finally:
        while replaced:  # a handler that is back may raise meanwhile
            try:
                for number, (noting, handler) in reversed([*replaced.items()]):
                    # Else the handler, or a callback, put another one there.
                    if signal.getsignal(number) is noting:
                        signal.signal(number, handler)
                    del replaced[number]
            except BaseException as error:
                noted.append(error)
        running.clear()
        if noted:
            raise noted[0]


def _noting(handler: Any, noted: list[BaseException], running: list[bool]) -> Any:
    def note(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            if not running:  # it was not put back: a second one came right behind another
                raise
            noted.append(error)

    return note
