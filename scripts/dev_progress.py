"""Runs a program with its output in a log, and says meanwhile what it is doing and for how long."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO


class Progress:
    """A line rewritten in place on a terminal; elsewhere one at each change of text and every 30 seconds."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self.text = ""
        self.shown_at = 0.0

    def show(self, text: str, seconds: float) -> None:
        line = f"{text}; {clock(seconds)} so far" if seconds >= 1 else f"{text} ..."
        if self.live:
            self._rewrite(line)
        elif text != self.text or seconds - self.shown_at >= 30:
            self.stream.write(line + "\n")
            self.shown_at = seconds
        self.text = text
        self.stream.flush()

    def close(self, outcome: str) -> None:
        if self.live:
            self._rewrite("")
            self.stream.write("\r")
        self.stream.write(f"{self.text}: {outcome}\n")
        self.stream.flush()

    def _rewrite(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self.stream.write("\r" + line[:width].ljust(width))


def clock(seconds: float) -> str:
    """Minutes and seconds, e.g. 1:20."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def run_logged(argv: list[str], log: Path, phase: Callable[[bytes], str], cwd: Path) -> int:
    """Run a program, return its exit code; `phase` tells from the log so far what it is doing."""
    progress, started, code = Progress(sys.stderr), time.monotonic(), None
    with log.open("wb") as out:
        child = subprocess.Popen(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            while code is None:
                progress.show(phase(log.read_bytes()), time.monotonic() - started)
                code = poll(child, seconds=1)
            progress.show(phase(log.read_bytes()), time.monotonic() - started)
            return code
        except KeyboardInterrupt:
            stop(child)
            raise
        finally:
            outcome = "done" if code == 0 else "failed" if code else "stopped"
            progress.close(f"{outcome} after {clock(time.monotonic() - started)}")


def poll(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code once the child has ended; None if it still runs after so many seconds."""
    try:
        return child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def stop(child: subprocess.Popen[bytes]) -> None:
    """Wait for a child that has had Ctrl-C too; kill it after 10 seconds or at a second Ctrl-C."""
    try:
        gone = poll(child, seconds=10) is not None
    except KeyboardInterrupt:
        gone = False
    if not gone:
        child.kill()
        child.wait()
