"""A flag that stops llama.cpp in mid-pass, without Python in the way."""

from __future__ import annotations

import ctypes
from typing import Any

from localspec.llama.backend import library, native_strlen
from localspec.system.load_watch import current_watch


class CancelFlag:
    """Read by llama.cpp between the operations of a pass (CPU only; elsewhere between passes).

    The callback is C's own `strlen` over a two-byte buffer: empty means go on. A callback written in Python takes
    the interpreter lock hundreds of times a pass, which made passes 20 times slower beside a busy thread.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        self.callback: Any = ctypes.cast(native_strlen(), library().ggml_abort_callback)
        self.data: Any = ctypes.cast(self._buffer, ctypes.c_void_p)
        if (watch := current_watch()) is not None:
            watch.adopt(self)

    def set(self) -> None:
        """Stop the pass that runs, and every later one until `clear`."""
        self._buffer[0] = b"x"

    def clear(self) -> None:
        """Let passes run."""
        self._buffer[0] = b"\0"

    @property
    def is_set(self) -> bool:
        """Whether passes are being stopped."""
        return self._buffer[0] != b"\0"
