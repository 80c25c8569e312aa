"""Calls that may not take for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], late: Callable[[T], None] | None = None) -> T:
    """The call's result, or TimeoutError.

    Timeouts of sockets count per address and per read, and leave out the name look-up, so a firewall that drops
    packets, or a server that sends its headers byte by byte, can hold a call for minutes. The thread left behind
    ends with its socket.
    late: gets a result that came after the time was over.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            value = call()
        except BaseException as error:
            with suppress(InvalidStateError):
                result.set_exception(error)
            return
        try:
            result.set_result(value)
        except InvalidStateError:
            if late is not None:
                late(value)

    threading.Thread(target=run, name="localspec-probe", daemon=True).start()
    try:
        return result.result(timeout=seconds)
    finally:
        result.cancel()
