"""A program in a terminal whose screen can be read: pexpect types, pyte is the screen. POSIX only."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

ROOT = Path(__file__).parents[1]
SECONDS = 120
PROMPT = ">"


class Window:
    """A terminal of `columns` x `rows`, which keeps what scrolled away."""

    def __init__(
        self, home: Path, *arguments: str, columns: int = 60, rows: int = 20, **variables: str
    ) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        environment |= {
            "LOCALSPEC_HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "PYTHONIOENCODING": "utf-8",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "XTERM_VERSION": "pyte",  # it does not break lines anew when it becomes narrower
            "SSH_CONNECTION": "none",  # the clipboard is the terminal's
        }
        self.screen = pyte.HistoryScreen(columns, rows, history=2000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "tests.paced_llm", *arguments],
            cwd=str(ROOT),
            env=environment | variables,
            dimensions=(rows, columns),
            timeout=SECONDS,
            # As a terminal starts it, also where the tests run under nohup, whose children inherit what it ignores.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.child.close(force=True)

    @property
    def lines(self) -> list[str]:
        """What scrolled away and what is on the screen, without the empty lines at the end."""
        gone = ["".join(line[at].data for at in range(len(line))) for line in self.screen.history.top]
        lines = [line.rstrip() for line in [*gone, *self.screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    def until(self, seen: str | Callable[[Window], bool]) -> None:
        """Wait until the text, or what the function asks for, is there."""
        there = seen if callable(seen) else lambda window: seen in window.text
        end = time.monotonic() + SECONDS
        while not there(self):
            assert time.monotonic() < end, f"{seen!r} never came:\n{self.text}"
            assert self._read(), f"it ended without {seen!r}:\n{self.text}"

    def prompt(self) -> None:
        """Wait until an empty line can be typed."""
        self.until(lambda window: window.lines[-1:] == [PROMPT] and window.edits)

    def enter(self, line: str) -> None:
        """Wait for the prompt, type a line, send it, and wait until it was taken."""
        self.prompt()
        taken = self.raw.count(b"\x1b[?2004l")
        self.child.send(f"{line}\r")
        self.until(lambda window: window.raw.count(b"\x1b[?2004l") > taken)

    @property
    def edits(self) -> bool:
        """Whether the line editor reads keys: it asks for marked pastes then."""
        return self.raw.rfind(b"\x1b[?2004h") > self.raw.rfind(b"\x1b[?2004l")

    def resize(self, columns: int, rows: int) -> None:
        """As if the window were drawn larger or smaller."""
        self.child.setwinsize(rows, columns)
        self.screen.resize(rows, columns)

    def exit_code(self) -> int | None:
        """Read to the end, which must come."""
        end = time.monotonic() + SECONDS
        while self._read():
            assert time.monotonic() < end, f"it does not end:\n{self.text}"
        self.child.close()
        return self.child.exitstatus  # type: ignore[no-any-return]

    def _read(self) -> bool:
        try:
            data = self.child.read_nonblocking(1 << 16, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True
