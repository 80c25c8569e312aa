"""Calls into C code that recurses once per character."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

SHORT = 4096
"""Bytes of text that any thread's own stack is deep enough for."""
BYTES_PER_CHARACTER = 512
"""Some pre-tokenizers use std::regex, which was seen to take 315 bytes of stack for each character of a run."""

Result = TypeVar("Result")
_starting = threading.Lock()


def with_deep_stack(call: Callable[[], Result], length: int) -> Result:
    """The result of `call`, run where the stack is deep enough for a text of `length` bytes. Raises what it raises."""
    if length <= SHORT:
        return call()
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    with _starting:
        before = threading.stack_size(_rounded((8 << 20) + BYTES_PER_CHARACTER * length))
        try:
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return future.result()


def _rounded(size: int) -> int:
    """The next multiple of 64 KiB, and so of every page size in use."""
    return ((size >> 16) + 1) << 16
