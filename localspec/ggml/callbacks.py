"""What a compiled library calls back: its log, whether a load goes on, and whether a pass is to stop."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections import deque
from typing import Any

from localspec.system.load_watch import LoadWatch, current_watch
from localspec.system.signals import in_main_thread

_WARN, _ERROR, _CONTINUED = 3, 4, 5  # enum ggml_log_level


class CancelFlag:
    """Read by a library between the operations of a pass (CPU only; elsewhere between passes).

    The callback is C's own `strlen` over a two-byte buffer: empty means go on. A callback written in Python takes
    the interpreter lock hundreds of times a pass, which made passes 20 times slower beside a busy thread.
    """

    def __init__(self) -> None:
        self._clearing = threading.RLock()  # a signal handler may cancel
        self._latest = object()
        self._buffer = ctypes.create_string_buffer(2)
        self.data: Any = ctypes.cast(self._buffer, ctypes.c_void_p)

    def callback(self, function_type: Any) -> Any:
        """For C, as the library's own type of function, with `data` as its argument."""
        return ctypes.cast(libc().strlen, function_type)

    def set(self) -> None:
        """Stop the pass that runs, and every later one until `clear`."""
        self._buffer[0] = b"x"

    def clear(self) -> None:
        """Let passes run."""
        with self._clearing:
            if self.is_set:
                self._latest = object()
                self._buffer[0] = b"\0"

    @property
    def is_set(self) -> bool:
        """Whether passes are being stopped."""
        return self._buffer[0] != b"\0"

    def look(self) -> object:
        """For `was_set_since`."""
        with self._clearing:
            return None if self.is_set else self._latest

    def was_set_since(self, look: object) -> bool:
        """Whether it was set at any time since then: a pass may have been stopped by it, also where it is clear again,
        as another thread clears it for whoever comes next.
        """
        with self._clearing:
            return self.is_set or look is not self._latest


class NativeLog:
    """A library's log lines, of which the important ones explain its errors."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self._recent: deque[tuple[int, str]] = deque(maxlen=50)

    def take_in(self, level: int, line: str) -> None:
        """One line, or the rest of one."""
        if level == _CONTINUED and self._recent:
            self._recent[-1] = (self._recent[-1][0], f"{self._recent[-1][1]} {line}".rstrip())
        elif level in (_WARN, _ERROR) and line:
            self._recent.append((level, line))
        self.logger.debug("%s", line)

    def last_line(self) -> str:
        """The first error since `forget`, which is the cause of the others; else the latest warning, or ""."""
        errors = [line for level, line in self._recent if level == _ERROR]
        return errors[0] if errors else (self._recent[-1][1] if self._recent else "")

    def forget(self) -> None:
        """Start collecting anew, so that an error is explained by its own lines."""
        self._recent.clear()


class LoadingGate:
    """Whether the load that runs goes on. What Python raises while C calls it back is kept for `raise_interrupt`."""

    def __init__(self) -> None:
        self._go_on = ctypes.create_string_buffer(b"x")
        self._interrupt: list[BaseException] = []

    def parameters(self, function_type: Any, noted: list[BaseException]) -> dict[str, Any]:
        """Of a load that `stop` ends: the same native `strlen` as in `CancelFlag`, inverted. Keep while it runs.

        On Windows a float before the pointer moves it to another register, so a load there runs to its end. A watched
        load, and one in the main thread, reports and ends through Python instead, once for each tensor: only there do
        signal handlers run. noted: what they raised (`signals_noted`) ends the load. function_type: the library's own.
        """
        self._go_on[0] = b"x"
        self._interrupt.clear()
        if (watch := current_watch()) is not None or in_main_thread():
            return {"progress_callback": function_type(self._progress(watch, noted))}
        if sys.platform == "win32":
            return {}
        return {
            "progress_callback": ctypes.cast(libc().strlen, function_type),
            "progress_callback_user_data": ctypes.cast(self._go_on, ctypes.c_void_p),
        }

    def _progress(self, watch: LoadWatch | None, noted: list[BaseException]) -> Any:
        def progress(fraction: float, _data: object) -> bool:
            try:
                return (watch is None or watch.advance(fraction)) and not noted and self._go_on[0] != b"\0"
            except BaseException as error:  # from whoever is told: raised in here it would be lost
                self._interrupt.append(error)
                return False

        return progress

    def stop(self) -> None:
        """End the load that runs."""
        self._go_on[0] = b"\0"

    def interrupt(self, error: BaseException) -> None:
        """End it because of what was raised while C called back."""
        self._interrupt.append(error)
        self.stop()

    def raise_interrupt(self) -> None:
        """Raise what was raised while C was calling back."""
        if self._interrupt:
            raise self._interrupt.pop()


def log_callback(function_type: Any, lines: NativeLog, gate: LoadingGate) -> Any:
    """For C's log, as the library's own type of function: to be kept for the life of the process, as C keeps it."""

    def callback(level: int, text: bytes, _data: object) -> None:
        try:
            lines.take_in(level, (text or b"").decode("utf-8", "replace").rstrip())
        except BaseException as error:
            # From a log handler of the application: raised in here it would be lost.
            gate.interrupt(error)

    return function_type(callback)


def silence(lib: Any, function_type: Any) -> None:
    """Let a library's log end nowhere: C's `abs` takes log lines and does nothing."""
    lib.llama_log_set(ctypes.cast(libc().abs, function_type), None)


def libc() -> Any:
    """C's own library: its functions are callbacks that run without the interpreter."""
    return ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
