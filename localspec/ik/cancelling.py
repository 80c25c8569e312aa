"""What stops a pass of ik_llama.cpp: a flag that says so late enough for all its threads to go the same way."""

from __future__ import annotations

import ctypes
from typing import Any

from localspec.ggml import callbacks

DELAY_BYTES = 32 << 20
"""Blanks before the number: C's `atoi` reads about one in a nanosecond, 30 ms in all. A thread that was not running
when it was to go on gets its turn within that time, also where others use its processor."""


class CancelFlag(callbacks.CancelFlag):
    """As that of the others, and slow to say that the pass is to stop.

    Between two operations of a pass ik_llama.cpp's first thread asks and notes the answer, all threads wait for each
    other, and each then looks at the note. One that comes late out of the wait before may so see the note of the next
    operation, and leaves while the first one waits for it: for ever. What it lacks is time, so the callback takes some:
    `atoi` over an empty text, which is 0, or over many blanks and a number. The memory is taken at the first `set`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffer = (ctypes.c_char * DELAY_BYTES)()
        self.data = ctypes.cast(self._buffer, ctypes.c_void_p)
        self._filled = False

    def callback(self, function_type: Any) -> Any:
        """For C, as the library's own type of function, with `data` as its argument."""
        return ctypes.cast(callbacks.libc().atoi, function_type)

    def set(self) -> None:
        """Stop the pass that runs, and every later one until `clear`."""
        if not self._filled:
            ctypes.memset(ctypes.byref(self._buffer, 1), ord(" "), DELAY_BYTES - 3)
            self._buffer[DELAY_BYTES - 2] = b"1"
            self._filled = True
        self._buffer[0] = b" "
