"""An answer as Markdown while it comes: finished blocks are printed once, the last one is drawn anew as it grows."""

from __future__ import annotations

import os
import shutil
import sys
import time

from rich.cells import cell_len

from localspec.cli.chat.markdown import Line, Renderer, blocks, finished, is_table
from localspec.cli.chat.pieces import Pieces
from localspec.cli.terminal import styled, wrapped
from localspec.text.controls import printable

INTERVAL, LONGEST = 0.1, 0.5
"""Seconds between two drawings, at least and at most."""
SHARE = 0.02
"""Of a processor that drawing may take from the model: a long block is drawn less often."""


class Live:
    """A view of one answer. Below it stands a line on how it goes, which leaves with the answer.

    accepted: whether drafted text is painted.
    """

    def __init__(self, *, accepted: bool) -> None:
        self._renderer = Renderer(accepted=accepted)
        self._text = ""
        self._marks: list[bool] = []
        self._status = ""
        self._notes: list[str] = []
        self._drawn: list[int] = []  # columns of each line that can be drawn anew
        self._above = 0  # lines of the unfinished block that scrolled away, and are not drawn any more
        self._width = 0  # that it is broken for, as long as some of its lines are above
        self._begun = self._dirty = False
        self._due = 0.0

    def take(self, pieces: Pieces, status: str) -> None:
        """More text, and how it goes."""
        for text, mark in pieces:
            shown = printable(text).replace("\r", "")
            self._text += shown
            self._marks += [mark] * len(shown)
        self._status, self._dirty = status, True
        self.tick()

    def tick(self) -> None:
        """Draw, if it is time to."""
        if self._dirty and time.monotonic() >= self._due:
            began = time.thread_time()
            self._draw()
            pause = (time.thread_time() - began) / SHARE
            self._due = time.monotonic() + min(max(pause, INTERVAL), LONGEST)

    def note(self, sentence: str) -> None:
        """A sentence beside the answer, which stays."""
        self._notes.append(sentence)
        self._dirty = True

    def end(self) -> None:
        """All that is there, for good."""
        self._status, self._due = "", 0.0
        self._draw(whole=True)

    def _draw(self, *, whole: bool = False) -> None:
        columns, rows = shutil.get_terminal_size()
        kept = [
            line
            for block in (blocks if whole else finished)(self._text)
            for line in self._leave(block, columns - 1)
        ]
        for note in self._notes:
            kept += [Line(text, cell_len(text)) for text in wrapped(note, columns).split("\n")]
        tail = self._lines(self._text, columns - 1)[self._above :]
        room = max(rows - 2, 2)
        if len(tail) > room:
            if not is_table(self._text):
                self._width = self._width or columns - 1
                kept += tail[:-room]
                self._above += len(tail) - room
            tail = tail[-room:]
        self._notes, self._dirty = [], False
        self._print(kept, tail, columns, rows)

    def _leave(self, block: str, width: int) -> list[Line]:
        """Lines of a finished block that are not above yet; it is forgotten."""
        lines = self._lines(block, width)
        left, self._above = lines[self._above :], max(self._above - len(lines), 0)
        self._text, self._marks = self._text[len(block) :], self._marks[len(block) :]
        self._begun = self._begun or bool(lines)
        self._width = self._width if self._above else 0
        return left

    def _lines(self, text: str, width: int) -> list[Line]:
        """All lines of the blocks in the text, an empty one before each but the very first."""
        found: list[Line] = []
        at = 0
        for block in blocks(text):
            lines = self._renderer.lines(block, self._marks[at : at + len(block)], self._width or width)
            found += [Line("", 0), *lines] if lines and (self._begun or found) else lines
            at += len(block)
        return found

    def _print(self, kept: list[Line], tail: list[Line], columns: int, rows: int) -> None:
        """In one go, so that nothing flickers."""
        out = self._erased(columns, rows) + "".join(f"{line.text}\n" for line in kept)
        below = [line.text for line in tail]
        self._drawn = [line.cells for line in tail]
        if self._status:
            status = _fitting(self._status, columns - 1)
            below.append(styled(status, dim=True))
            self._drawn.append(cell_len(status))
        sys.stdout.write(out + "\n".join(below))
        sys.stdout.flush()

    def _erased(self, columns: int, rows: int) -> str:
        """What takes back the lines that were drawn. Most terminals break them anew when their window is narrower."""
        if not self._drawn:
            return ""
        breaks = "XTERM_VERSION" not in os.environ
        count = sum(max(1, -(-cells // columns)) if breaks else 1 for cells in self._drawn)
        count = min(count, rows)
        return "\r" + (f"\x1b[{count - 1}A" if count > 1 else "") + "\x1b[J"


def _fitting(status: str, columns: int) -> str:
    """As many of its parts as the window has room for."""
    while len(status) > columns and ", " in status:
        status = status.rpartition(", ")[0]
    return status[:columns]
