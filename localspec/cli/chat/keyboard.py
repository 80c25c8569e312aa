"""The keyboard while nobody reads it: what is typed is not shown, and kept for the input line."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from localspec.cli.terminal import is_terminal

if sys.platform != "win32":
    import termios

# What keys and the terminal itself send beside text: an arrow, a place of the cursor, a mark of a paste.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[O ].|.)?", re.DOTALL)
_ERASE, _ERASE_LINE = "\x08\x7f", "\x15"


class Keyboard:
    """Standard input where it is a terminal; elsewhere, and on Windows, nothing is changed. For the main thread."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.platform != "win32" and is_terminal(sys.stdin) else None
        self._found: list[Any] = []
        self._stopped: list[Any] = []

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """In the block nothing is echoed, and Ctrl-C forgets no key. Undone at its end, and while it is suspended."""
        if sys.platform == "win32" or self._fd is None:
            yield
            return
        try:
            self._found = termios.tcgetattr(self._fd)
        except termios.error:
            yield
            return
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT)}
        try:
            self._set(_silent(self._found))
            if set(handlers.values()) == {signal.SIG_DFL}:
                signal.signal(signal.SIGTSTP, self._suspend)
                signal.signal(signal.SIGCONT, self._resume)
            yield
        finally:
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)
            self._set(self._found)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """In the block, within `held`, another program has the terminal as it was found."""
        if sys.platform == "win32" or self._fd is None or not self._found:
            yield
            return
        now = termios.tcgetattr(self._fd)
        self._set(self._found)
        try:
            yield
        finally:
            self._set(now)

    def _set(self, attributes: list[Any]) -> None:
        """Of a terminal that is ours at the moment: in the background this would stop the process."""
        if sys.platform != "win32" and self._fd is not None:
            with contextlib.suppress(termios.error, OSError):
                if os.tcgetpgrp(self._fd) == os.getpgrp():
                    termios.tcsetattr(self._fd, termios.TCSANOW, attributes)

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        if sys.platform != "win32" and self._fd is not None:
            with contextlib.suppress(termios.error):
                self._stopped = termios.tcgetattr(self._fd)
            self._set(self._found)
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            self._resume()

    def _resume(self, *_arguments: object) -> None:
        if sys.platform != "win32":
            signal.signal(signal.SIGTSTP, self._suspend)
            if self._stopped:
                self._set(self._stopped)

    def typed(self) -> str:
        """The text that was typed and not read yet, without the keys that are none."""
        if self._fd is None:
            return ""
        data = b""
        with contextlib.suppress(OSError, ValueError):
            while select.select([self._fd], [], [], 0)[0] and (more := os.read(self._fd, 1 << 16)):
                data += more
        return as_text(data.decode("utf-8", "ignore"))


def _silent(attributes: list[Any]) -> list[Any]:
    """Keys are taken one by one, or the terminal would forget a line that is too long, and edit it unseen."""
    changed = [*attributes]
    if sys.platform != "win32":
        changed[3] = changed[3] & ~(termios.ECHO | termios.ECHONL | termios.ICANON) | termios.NOFLSH
        changed[6] = [*changed[6]]
        changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    return changed


def as_text(keys: str) -> str:
    """What a line editor would have made of the keys; line breaks at the end do not send it."""
    text = ""
    for key in _SEQUENCE.sub("", keys).replace("\r\n", "\n").replace("\r", "\n"):
        if key in _ERASE:
            text = text[:-1]
        elif key == _ERASE_LINE:
            text = text[: text.rfind("\n") + 1]
        elif key.isprintable() or key in "\t\n":
            text += key
    return text.rstrip("\n")
